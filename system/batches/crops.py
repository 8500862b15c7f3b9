"""Random crops of long clips for training. Without torch."""

from typing import NamedTuple

import numpy as np

# B items of a batch, T frames of a clip, D values in a frame


class Crops(NamedTuple):
    """Random crops of the longer clips of a batch: `longest` frames from a random position.

    offsets: (B, 2) positions in [0, 1), of an item's own clip and of the added one: 0 for the clip's first frames, near
    1 for its last.
    """

    longest: int
    offsets: np.ndarray

    def of(self, frames: np.ndarray, item: int, added: bool = False) -> np.ndarray:
        """Cut a clip's frames (T, D) to at most `longest` frames, from the item's random position.

        item: The item's index. added: Whether this is the clip that is added to the item's own. Returns: A view.
        """
        spare = max(0, len(frames) - self.longest)
        first = min(int(self.offsets[item, int(added)] * (spare + 1)), spare)
        return frames[first : first + self.longest]
