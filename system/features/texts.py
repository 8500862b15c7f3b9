"""Stored vectors of texts.

Vectors of texts are computed and stored in a bank in parts, so that an interruption loses one part at most.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from data_tools.cli import counted, progress
from system.features.bank import Bank

STORED_AT_ONCE = 512  # texts


def store_vectors(
    bank: Bank, texts: Mapping[str, str], vectors: Callable[[Sequence[str]], torch.Tensor], by_model: str
) -> None:
    """Compute the vectors of those texts that have none in a bank, and store the vectors in the bank.

    Args:
        texts: Dict from key to text.
        vectors: Function that computes (N, V) vectors of N texts. It gets texts of similar length together, to
            reduce padding.
        by_model: Text for the progress bar, such as "by bert-base-uncased". The bar is only shown for more than one
            batch.
    """
    missing = sorted((key for key in texts if key not in bank), key=lambda key: len(texts[key]))
    batches = [missing[start : start + STORED_AT_ONCE] for start in range(0, len(missing), STORED_AT_ONCE)]
    if len(batches) > 1:
        title = f"embedding {counted(len(missing), 'caption', ',')} {by_model}"
        with progress(title, len(missing), "caption") as bar:
            for batch in batches:
                _store_batch(bank, batch, texts, vectors)
                bar.advance(len(batch))
    elif batches:
        _store_batch(bank, missing, texts, vectors)


def _store_batch(
    bank: Bank, keys: list[str], texts: Mapping[str, str], vectors: Callable[[Sequence[str]], torch.Tensor]
) -> None:
    """Compute the vectors of the texts with the given keys, and store them in a bank."""
    rows = vectors([texts[key] for key in keys]).float().cpu().numpy()
    with bank.writing() as store:
        for key, row in zip(keys, rows, strict=True):
            store(key, row[None])
