"""Frames of pieces of recordings.

A sliding window cuts the frames of a recording into pieces.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from data_tools.embeddings import Vectors
from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.features.bank import Bank
from system.features.extract import Features, Waveforms
from system.moments.windows import MAX_FRAMES, Grid

MARK = "@"  # between a recording's key and a piece's number


class PieceBank:
    """Pieces of the series of a bank. The key of a piece is the key of its recording, MARK, and its number from 0."""

    def __init__(self, bank: "Bank | Waveforms | PieceBank", grid: Grid, seconds: float, hop: float) -> None:
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


def pieces_of(
    recordings: Sequence[Clip], features: Features, seconds: float, hop: float
) -> tuple[list[list[Clip]], Features]:
    """Cut recordings into overlapping pieces, one every `hop` s; return each recording's pieces, and their frames.

    seconds: Length of a piece. The middle of piece i is at (i + 0.5) x `hop` seconds; pieces at both ends of a
    recording are shorter. Each piece is a separate clip.
    Raises: KitError for a recording without a length, and for more pieces than MAX_FRAMES.
    """
    pieces: list[list[Clip]] = []
    keys: dict[str, str] = {}
    for recording in recordings:
        if not recording.seconds:
            raise KitError(
                f"recording {recording.id} has no length, which is needed to cut it into pieces; "
                "add `seconds` to its line in the manifest"
            )
        if (count := ceil(recording.seconds / hop - 1e-9)) > MAX_FRAMES:
            raise KitError(
                f"recording {recording.id} has {count:,} pieces (one every {hop:g} s of {recording.seconds:,.0f} s), "
                f"but the limit is {MAX_FRAMES:,}; use a longer hop, or cut the recording"
            )
        names = [f"{recording.id}{MARK}{number}" for number in range(max(1, count))]
        key = features.keys[recording.id]
        keys |= {name: f"{key}{MARK}{number}" for number, name in enumerate(names)}
        pieces.append([replace(recording, id=name, seconds=seconds) for name in names])
    banks: dict[str, Bank | Waveforms | PieceBank | Vectors] = {}
    for name, bank in features.banks.items():
        if isinstance(bank, Vectors):
            raise KitError(
                "windows need several embeddings per recording, but this model's files have one per recording; "
                "use another model"
            )
        banks[name] = PieceBank(bank, features.grids[name], seconds, hop)
    return pieces, Features(banks, keys, {}, features.grids)
