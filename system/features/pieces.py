"""Frames of pieces of recordings.

Frames of pieces of recordings, which are cut by a sliding window.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.features.bank import Bank
from system.features.build import Features
from system.moments.windows import MAX_FRAMES, Grid

MARK = "@"  # between a recording's key and a piece's number


class PieceBank(Bank):
    """The series of a bank cut into pieces. The key of a piece is its recording's, MARK, and its number from 0."""

    def __init__(self, bank: Bank, grid: Grid, seconds: float, hop: float) -> None:
        """grid: Times of the bank's frames. seconds: Length of a piece. hop: See pieces_of."""
        super().__init__(bank.folder, bank.dim, bank.dtype, bank.repair_hint, verify=False)
        self._grid, self._seconds, self._hop = grid, seconds, hop
        self._last: tuple[str, np.ndarray] | None = None

    def rows_of(self, key: str) -> int:
        """Return the number of frames of a piece."""
        recording, _, number = key.rpartition(MARK)
        first, behind = self._range(int(number), super().rows_of(recording))
        return behind - first

    def read(self, key: str) -> np.ndarray:
        """Return the frames of a piece."""
        recording, _, number = key.rpartition(MARK)
        if self._last is None or self._last[0] != recording:
            self._last = recording, super().read(recording)
        whole = self._last[1]
        first, behind = self._range(int(number), len(whole))
        return whole[first:behind]

    def _range(self, number: int, frames: int) -> tuple[int, int]:
        """Return the first frame of a piece, and the frame after its last.

        They are the frames with centres in the piece, or the one frame nearest to its middle.
        """
        middle = (number + 0.5) * self._hop
        first, behind = (
            min(max(ceil((edge - self._grid.first) / self._grid.hop), 0), frames)
            for edge in (middle - self._seconds / 2, middle + self._seconds / 2)
        )
        if first < behind:
            return first, behind
        nearest = min(max(round((middle - self._grid.first) / self._grid.hop), 0), frames - 1)
        return nearest, nearest + 1


def pieces_of(
    recordings: Sequence[Clip], features: Features, seconds: float, hop: float
) -> tuple[list[list[Clip]], Features]:
    """Cut recordings into overlapping pieces, one every `hop` seconds, including a last partial one.

    seconds: Length of a piece. Its middle is that of its hop. At the ends of a recording it is shorter.
    Returns: The pieces of every recording as separate clips, and their frames.
    Raises: KitError for a recording without a length, and for more pieces than MAX_FRAMES.
    """
    pieces: list[list[Clip]] = []
    keys: dict[str, str] = {}
    for recording in recordings:
        if not recording.seconds:
            raise KitError(
                f"recording {recording.id} has no length, which windows need; add `seconds` to its line in the manifest"
            )
        if (count := ceil(recording.seconds / hop - 1e-9)) > MAX_FRAMES:
            raise KitError(
                f"recording {recording.id} has {count:,} pieces (one every {hop:g} s of {recording.seconds:,.0f} s), "
                f"but the limit is {MAX_FRAMES:,}; use a longer hop, or cut the recording"
            )
        names = [f"{recording.id}{MARK}{number}" for number in range(max(1, count))]
        key = features.keys[recording.id]
        keys |= {name: f"{key}{MARK}{number}" for number, name in enumerate(names)}
        pieces.append([recording.model_copy(update={"id": name, "seconds": seconds}) for name in names])
    banks = {name: PieceBank(bank, features.grids[name], seconds, hop) for name, bank in features.banks.items()}
    return pieces, Features(dict(banks), keys, {}, features.grids)
