"""What training hears of long clips. Without torch."""

from typing import NamedTuple

import numpy as np

# B items of a batch, T frames of a clip, D values in a frame


class Parts(NamedTuple):
    """Which part of every longer clip of a batch is heard: `longest` frames from a random place on.

    offsets: (B, 2) in [0, 1): of an item's own clip and of the one that is added to it; 0 for the clip's first frames,
    near 1 for its last.
    """

    longest: int
    offsets: np.ndarray

    def of(self, frames: np.ndarray, item: int, added: bool = False) -> np.ndarray:
        """(T, D) -> (at most `longest`, D), a view. added: of the clip that is added to the item's own."""
        spare = max(0, len(frames) - self.longest)
        first = min(int(self.offsets[item, int(added)] * (spare + 1)), spare)
        return frames[first : first + self.longest]
