"""Convert published weights to the kit's formats."""

import logging
from pathlib import Path

import numpy as np

from data_tools.errors import KitError
from data_tools.files import replacing
from system.audio.base import file_sha256
from system.audio.tflite import PUBLIC_SHA256, read_layers
from system.models.text.published import load_tokens
from system.models.text.words import write_word_vectors
from system.recipe.load import load_recipe
from system.runs.export import export_model
from system.runs.m2d_text import write_text_encoder
from system.runs.published import open_published

log = logging.getLogger(__name__)


def convert_file(
    file: Path, out: Path, recipe: Path | None = None, text: str | None = None, words: bool = False,
    changes: list[str] | None = None,
) -> str:  # fmt: skip
    """Convert a published file, and say what was written.

    Args:
        file: yamnet.tflite; with `recipe`, a checkpoint of PyTorch Lightning; with `text`, the file of M2D-CLAP; with
            `words`, the folder or hub name of a BERT-like model with whole words in lower case.
        text: Folder or hub name of the text model that M2D-CLAP fine-tuned: google-bert/bert-base-uncased.
        changes: Changed settings of the recipe.
    """
    if (recipe is not None) + (text is not None) + words > 1:
        raise KitError("--recipe, --text and --words are for different files; give one of them")
    if changes and recipe is None:
        raise KitError(f"--set {changes[0]}: only works with --recipe; leave it out")
    if recipe is not None:
        export_model(open_published(file, load_recipe(recipe, changes).recipe), out)
        return f"wrote the model of {recipe} with the weights of {file} to {out}"
    if text is not None:
        return f"wrote {write_text_encoder(file, text, out)} tensors of the text encoder in {file} to {out}"
    if words:
        return _convert_words(str(file), out)
    if file.suffix == ".ckpt":
        raise KitError(f"{file}: a checkpoint needs the recipe of its model; name the recipe with --recipe")
    return _convert_yamnet(file, out)


def _convert_yamnet(file: Path, out: Path) -> str:
    layers = read_layers(file)
    if file_sha256(file) != PUBLIC_SHA256:
        log.warning("%s is not the public file that was tested, but its layers have the right shapes", file)
    with replacing(out) as temporary, temporary.open("wb") as opened:
        np.savez_compressed(opened, **layers)  # type: ignore[arg-type]
    return f"wrote {len(layers)} arrays of weights and biases to {out}"


def _convert_words(model: str, out: Path) -> str:
    """Write the input embeddings of whole words as word vectors, in place of Word2Vec's."""
    if out.suffix != ".bin":
        raise KitError(f"--out {out}: must end in .bin")
    transformer = load_tokens(model, "mean")[0]
    table = transformer.model.get_input_embeddings().weight.detach().float().cpu().numpy()
    special = set(transformer.tokenizer.all_special_tokens)
    tokens = sorted(transformer.tokenizer.get_vocab().items(), key=lambda item: item[1])
    words = {token: table[number] for token, number in tokens if token not in special and token.isalnum()}
    if not words:
        raise KitError(f"{model} has no token that is a whole word; use a model with BERT's vocabulary")
    write_word_vectors(out, words)
    return f"wrote {len(words):,} words of dimension {table.shape[1]} to {out}"
