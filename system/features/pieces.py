"""Frames of pieces of recordings.

A sliding window cuts the frames of a recording into pieces.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from data_tools.embeddings import Vectors
from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.features.build import Features
from system.features.piece_bank import MARK, PieceBank
from system.moments.windows import MAX_FRAMES


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
    banks = {}
    for name, bank in features.banks.items():
        if isinstance(bank, Vectors):
            raise KitError(
                "windows need several embeddings per recording, but this model's files have one per recording; "
                "use another model"
            )
        banks[name] = PieceBank(bank, features.grids[name], seconds, hop)
    return pieces, Features(banks, keys, {}, features.grids)
