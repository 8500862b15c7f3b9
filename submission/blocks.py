"""Blocks of rows of large matrices.

Blocks of rows of matrices that do not fit into memory. Q queries, C clips.
"""

import mmap
from collections.abc import Iterator

import numpy as np

from submission.arrays import Floats, Ints

MAX_ROWS = 512
MAX_NUMBERS = 1 << 22  # per block: 16 MiB of float32
MAX_COLUMNS = 1024  # read together: one page of a row


def row_blocks(values: Floats) -> Iterator[slice]:
    """Yield the rows of (Q, C) values in blocks of at most MAX_ROWS rows and MAX_NUMBERS numbers, but at least one row.

    This limits the memory of copies and changes no result. The pages of memory-mapped values are released after each
    block.
    """
    for block in block_slices(len(values), values.shape[1]):
        yield block
        release_pages(values)


def block_slices(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows that divide a (rows, columns) matrix into blocks as row_blocks does."""
    size = max(1, min(MAX_ROWS, MAX_NUMBERS // max(1, columns)))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def transposed_blocks(values: Floats, columns: Ints) -> Iterator[Floats]:
    """Yield the given `columns` of (Q, C) values as rows, (n, Q) at a time; one pass over the file per MAX_COLUMNS."""
    for begin in range(0, len(columns), MAX_COLUMNS):
        batch = columns[begin : begin + MAX_COLUMNS]
        rows = np.empty((len(batch), len(values)), values.dtype)
        for block in row_blocks(values):
            rows[:, block] = values[block][:, batch].T
        yield rows


def release_pages(values: Floats) -> None:
    """Free the memory of `values` if they are mapped from a file, read only; a later access reads the file again."""
    if isinstance(values, np.memmap) and values.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        mapped = getattr(values, "_mmap", None)
        if isinstance(mapped, mmap.mmap):
            mapped.madvise(mmap.MADV_DONTNEED)
