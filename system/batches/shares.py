"""Divide a batch among processes and parts.

Divide a batch into parts of clips that are embedded together, by one process each. Without torch.
"""

from collections.abc import Sequence

import numpy as np

# B clips of a batch


def parts_of(lengths: Sequence[int], size: int | None, count: int) -> list[list[int]]:
    """Divide the clips of a batch into parts. lengths: (B,) of the clips.

    size: clips of similar length per part, with the rest in the last one; the same for any number of processes. None:
    one part per process, of equal sizes if possible.
    """
    if size is not None:
        order = np.argsort(np.asarray(lengths), kind="stable").tolist()
        return [order[start : start + size] for start in range(0, len(order), size)]
    return [list(range(first, len(lengths), count)) for first in range(min(count, len(lengths)))]
