"""Captions of real data sets."""

from pathlib import Path

from data_tools.tables import read_table


def read_corpus(path: Path) -> list[list[str]]:
    """The captions of every row of a captions CSV of Clotho or AudioCaps."""
    rows = [row for _, row in read_table(path, columns=[])]
    return [[text for name, text in row.items() if name.startswith("caption")] for row in rows]
