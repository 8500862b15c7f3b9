"""Blocks of rows of large matrices.

Divide matrices that do not fit into memory into blocks of rows. Q: number of queries; C: number of clips.
"""

import mmap
from collections.abc import Iterator

import numpy as np

from submission.arrays import Floats, Ints

MAX_ROWS = 512
MAX_NUMBERS = 1 << 22  # per block: 16 MiB of float32
MAX_COLUMNS = 1024  # read together: one page of a row


def row_blocks(values: Floats) -> Iterator[slice]:
    """Yield slices that divide the rows of a score matrix, `values` (Q, C), into blocks which fit into memory.

    Q queries are the rows, C clips the columns. A block has at most MAX_ROWS rows and MAX_NUMBERS numbers, but at least
    one row. The size of blocks changes no result. If `values` are mapped from a file, their memory is freed after each
    block.
    """
    for block in block_slices(len(values), values.shape[1]):
        yield block
        release_pages(values)


def block_slices(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices that divide the rows of a (rows, columns) matrix into the same blocks as row_blocks."""
    size = max(1, min(MAX_ROWS, MAX_NUMBERS // max(1, columns)))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def transposed_blocks(values: Floats, columns: Ints) -> Iterator[Floats]:
    """Yield the given `columns` of the matrix `values` (Q, C), transposed: blocks (n, Q) of at most MAX_COLUMNS rows.

    Q queries are the rows, C clips the columns. The whole matrix is read once for each block.
    """
    for begin in range(0, len(columns), MAX_COLUMNS):
        batch = columns[begin : begin + MAX_COLUMNS]
        rows = np.empty((len(batch), len(values)), values.dtype)
        for block in row_blocks(values):
            rows[:, block] = values[block][:, batch].T
        yield rows


def release_pages(values: Floats) -> None:
    """Free the memory of `values` if they are mapped read-only from a file; a later access reads the file again."""
    if isinstance(values, np.memmap) and values.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        mapped = getattr(values, "_mmap", None)
        if isinstance(mapped, mmap.mmap):
            mapped.madvise(mmap.MADV_DONTNEED)
