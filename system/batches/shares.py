"""Which clips of a batch are embedded together, and which process embeds them. Without torch."""

from collections.abc import Sequence

import numpy as np

# B clips of a batch


def parts_of(lengths: Sequence[int], size: int | None, count: int) -> list[list[int]]:
    """Of the clips of a batch, (B,) lengths: as many parts as processes, as even as can be; or parts of `size`,
    the last one of what is left, of like lengths and the same for any number of processes."""
    if size is not None:
        order = np.argsort(np.asarray(lengths), kind="stable").tolist()
        return [order[start : start + size] for start in range(0, len(order), size)]
    return [list(range(first, len(lengths), count)) for first in range(min(count, len(lengths)))]
