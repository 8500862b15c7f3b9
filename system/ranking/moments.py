"""The rank kind that finds windows in long recordings. Never imports torch."""

from typing import Literal

from pydantic import Field

from system.moments.windows import By, Decoding
from system.ranking.checkpoint import ByOneModel


class RankMoments(ByOneModel):
    """Windows of the queries of a source's moments, found by one checkpoint: the edition's file, with and without
    scores, and its figures."""

    kind: Literal["moments"]
    data: str  # the source whose moments are looked for
    windows: By  # a moment most probably overlaps with them, or is them, or frames are above thresholds
    decoding: Decoding = Field(Decoding())  # how windows are chosen
    fit: str | None = None  # a source whose moments scale, offset and transitions are fitted to; null: as trained
    edition: int  # challenge year; it decides the figures and the file

    finds_windows = True
