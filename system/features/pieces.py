"""Frames of pieces of recordings.

A sliding window cuts the frames of a recording into pieces.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.features.bank import Bank
from system.features.extract import Features, Waveforms
from system.moments.windows import MAX_FRAMES, Grid

MARK = "@"  # between a recording's id or key and a piece's number


class PieceBank:
    """Pieces of the series of a bank, by key.

    It is used like a Bank.
    """

    def __init__(self, bank: Bank | Waveforms) -> None:
        self._bank, self.dim, self.dtype, self.threads = bank, bank.dim, bank.dtype, bank.threads
        self.places: dict[str, tuple[str, int, int]] = {}  # key of the recording, first frame, number of frames

    def rows_of(self, key: str) -> int:
        return self.places[key][2]

    def part(self, key: str, first: int, count: int) -> np.ndarray:
        recording, begin, _ = self.places[key]
        return self._bank.part(recording, begin + first, count)


def frame_range(middle: float, seconds: float, grid: Grid, frames: int) -> tuple[int, int]:
    """Return the first frame of a piece, and their number.

    A frame belongs to the piece if its centre is in the piece. If the piece contains no centre of a frame, it has the
    frame nearest to its middle.

    Args:
        middle, seconds: Of the piece.
        frames: Of the recording.
    """
    first, behind = (
        min(max(ceil((edge - grid.first) / grid.hop), 0), frames)
        for edge in (middle - seconds / 2, middle + seconds / 2)
    )
    if first < behind:
        return first, behind - first
    return min(max(round((middle - grid.first) / grid.hop), 0), frames - 1), 1


def pieces_of(
    recordings: Sequence[Clip], features: Features, seconds: float, hop: float
) -> tuple[list[list[Clip]], Features]:
    """Cut recordings into overlapping pieces, each a clip.

    The middle of piece i is at (i + 0.5) x `hop` seconds; pieces at both ends of a recording are shorter.

    Args:
        seconds: Length of a piece.
        hop: Seconds from one piece to the next.

    Returns:
        Each recording's pieces, and their frames.

    Raises:
        KitError: A recording has no length, or more pieces than MAX_FRAMES.
    """
    banks = {name: PieceBank(bank) for name, bank in features.banks.items() if isinstance(bank, Bank | Waveforms)}
    if not banks:
        raise KitError(
            "windows need several embeddings per recording, but this model's files have one; use another model"
        )
    pieces: list[list[Clip]] = []
    keys: dict[str, str] = {}
    for recording in recordings:
        if not recording.seconds:
            raise KitError(f"recording {recording.id}: no length; add `seconds` to its line in the manifest")
        if (count := ceil(recording.seconds / hop - 1e-9)) > MAX_FRAMES:
            said = f"recording {recording.id} has {count:,} pieces, but the limit is {MAX_FRAMES:,}"
            raise KitError(f"{said}; use a longer hop, or cut the recording")
        whole = features.keys[recording.id]
        of_recording = {f"{recording.id}{MARK}{number}": f"{whole}{MARK}{number}" for number in range(count)}
        for name, bank in banks.items():
            frames, grid = features.banks[name].rows_of(whole), features.grids[name]
            for number, key in enumerate(of_recording.values()):
                bank.places[key] = (whole, *frame_range((number + 0.5) * hop, seconds, grid, frames))
        keys |= of_recording
        pieces.append([replace(recording, id=name, seconds=seconds) for name in of_recording])
    return pieces, Features({**banks}, keys, grids=features.grids)
