"""Verb word_vectors: replace Word2Vec.

Write the input embeddings of a pre-trained transformer as word vectors.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import KitError


def word_embeddings(tokenizer: Any, model: Any) -> dict[str, np.ndarray]:
    """Return a dict from each whole word in a transformer's vocabulary to its input embedding (D,).

    A word consists of letters and digits. Special tokens, and tokens that continue a word ("##ing"), are left out.
    """
    table = model.get_input_embeddings().weight.detach().float().cpu().numpy()
    special = set(tokenizer.all_special_tokens)
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return {token: table[number] for token, number in tokens if token not in special and token.isalnum()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `word_vectors` to its parser."""
    parser.add_argument(
        "model", help="Hugging Face name or folder of a BERT-like model with lower-case whole words in its vocabulary"
    )
    parser.add_argument("--out", type=Path, required=True, help="the .bin file to write, in word2vec's binary format")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `word_vectors`: write a model's word embeddings to a .bin file. Returns: The exit status."""
    if arguments.out.suffix != ".bin":
        raise KitError(f"--out {arguments.out}: must end in .bin")
    from system.models.text.published import load_tokens
    from system.models.text.words import write_word_vectors

    transformer = load_tokens(arguments.model, "mean")[0]
    words = word_embeddings(transformer.tokenizer, transformer.model)
    if not words:
        raise KitError(f"{arguments.model} has no token that is a whole word; use a model with BERT's vocabulary")
    write_word_vectors(arguments.out, words)
    dim = len(next(iter(words.values())))
    print(f"wrote {len(words):,} words of dimension {dim} to {arguments.out}")
    return 0
