"""Divide a batch among processes and parts.

Divide a batch into chunks of clips that are embedded together, by one process each. Never imports torch.
"""

from collections.abc import Sequence

import numpy as np

# B clips of a batch


def divide_into_chunks(lengths: Sequence[int], size: int | None, count: int) -> list[list[int]]:
    """Divide clips into chunks of `size` clips, or else into one chunk per process; return indexes per chunk.

    lengths: (B,) lengths of the clips. size: Number of clips per chunk. The clips of a chunk then have similar lengths,
    and the last chunk may have fewer clips. None: the chunks have equal numbers of clips if possible.
    count: Number of processes; ignored with a `size`.
    """
    if size is not None:
        order = np.argsort(np.asarray(lengths), kind="stable").tolist()
        return [order[start : start + size] for start in range(0, len(order), size)]
    return [list(range(first, len(lengths), count)) for first in range(min(count, len(lengths)))]
