"""Random crops of long clips for training."""

from typing import NamedTuple

import numpy as np

# B items of a batch, T frames of a clip, D values in a frame


class Crops(NamedTuple):
    """Random crops of the longer clips of a batch: `longest` frames from a random position.

    offsets: (B, 2) positions in [0, 1), for the clip of an item and for the clip that is mixed into it. 0 selects the
    first frames of a clip, and a number near 1 its last frames.
    """

    longest: int
    offsets: np.ndarray

    def range(self, length: int, item: int, added: bool = False) -> tuple[int, int]:
        """Return the first frame and the size of an item's random crop. length: Number of frames of the whole clip.

        The size is at most `longest`. item: Index of the item. added: Whether to crop the clip that is mixed into the
        item's clip, instead of the item's clip.
        """
        spare = max(0, length - self.longest)
        first = min(int(self.offsets[item, int(added)] * (spare + 1)), spare)
        return first, min(length, self.longest)
