"""Find windows of moments.

The kind of rank entry that finds windows in long recordings. Never imports torch.
"""

from typing import Literal

from pydantic import Field

from system.moments.windows import By, Decoding
from system.ranking.checkpoint import ByOneModel


class RankMoments(ByOneModel):
    """Find windows for the texts of a data source's moments, by one checkpoint. Writes the edition's file, with and
    without scores, and its metrics.
    """

    kind: Literal["moments"]
    data: str  # source whose moments are searched
    windows: By  # windows of most probable overlap, or frames above thresholds
    decoding: Decoding = Field(Decoding())  # selection of windows
    fit: str | None = None  # source to whose moments scale, offset and transitions are fitted; null: as trained
    edition: int  # challenge year; it decides the figures and the file

    finds_windows = True
