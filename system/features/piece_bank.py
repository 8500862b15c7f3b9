"""Bank of pieces of recordings."""

from concurrent.futures import Executor
from math import ceil
from typing import Any

import numpy as np

from system.features.audio_files import AudioFiles
from system.features.bank import Bank
from system.moments.windows import Grid

MARK = "@"  # between a recording's key and a piece's number


class PieceBank:
    """Pieces of the series of a bank. The key of a piece is the key of its recording, MARK, and its number from 0."""

    def __init__(self, bank: "Bank | AudioFiles | PieceBank", grid: Grid, seconds: float, hop: float) -> None:
        """Divide the series of `bank` into pieces of `seconds` s, one every `hop` s. grid: Times of the frames."""
        self._bank, self._grid, self._seconds, self._hop = bank, grid, seconds, hop
        self.dim: int = bank.dim
        self.dtype: np.dtype[Any] = bank.dtype
        self.threads: Executor | None = bank.threads

    def rows_of(self, key: str) -> int:
        """Return the number of frames of the piece with the key `key`."""
        recording, _, number = key.rpartition(MARK)
        first, behind = self._frame_range(int(number), self._bank.rows_of(recording))
        return behind - first

    def read(self, key: str) -> np.ndarray:
        """Return the frames of the piece with the key `key`."""
        return self.part(key, 0, self.rows_of(key))

    def part(self, key: str, first: int, count: int) -> np.ndarray:
        """Return a part of the piece with the key `key`: `count` frames from the piece's frame `first` on."""
        recording, _, number = key.rpartition(MARK)
        begin, _ = self._frame_range(int(number), self._bank.rows_of(recording))
        return self._bank.part(recording, begin + first, count)

    def _frame_range(self, number: int, frames: int) -> tuple[int, int]:
        """Return the first frame of piece `number` of a recording, and the frame after the piece's last frame.

        frames: Number of frames of the recording. A frame belongs to the piece if its centre is in the piece. If the
        piece contains no centre of a frame, it has the frame nearest to its middle.
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
