"""Matrices that do not fit into memory, a block of rows after the other. Q queries, C clips."""

import mmap
from collections.abc import Iterator

import numpy as np

from submission.arrays import Floats, Ints

MAX_ROWS = 512
MAX_NUMBERS = 1 << 22  # of a block: 16 MiB of float32
MAX_COLUMNS = 1024  # read at once: a page of a row


def row_blocks(values: Floats) -> Iterator[slice]:
    """The rows of (Q, C) values in blocks of at most MAX_ROWS and MAX_NUMBERS, or one row: bounds what a copy takes,
    and changes no result. Of memory-mapped values what a block has read is given back before the next one."""
    for block in spans(len(values), values.shape[1]):
        yield block
        release(values)


def spans(rows: int, columns: int) -> Iterator[slice]:
    """Blocks of that many rows, as row_blocks gives them."""
    size = max(1, min(MAX_ROWS, MAX_NUMBERS // max(1, columns)))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def transposed_blocks(values: Floats, columns: Ints) -> Iterator[Floats]:
    """These columns of (Q, C) values as rows, (n, Q) at a time: the file is read once for MAX_COLUMNS of them."""
    for begin in range(0, len(columns), MAX_COLUMNS):
        wanted = columns[begin : begin + MAX_COLUMNS]
        found = np.empty((len(wanted), len(values)), values.dtype)
        for block in row_blocks(values):
            found[:, block] = values[block][:, wanted].T
        yield found


def release(values: Floats) -> None:
    """Give back the pages of a memory-mapped file that is only read; they stay in the system's cache of files."""
    if isinstance(values, np.memmap) and values.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        mapped = getattr(values, "_mmap", None)
        if isinstance(mapped, mmap.mmap):
            mapped.madvise(mmap.MADV_DONTNEED)
