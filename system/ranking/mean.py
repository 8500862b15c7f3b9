"""Rank by the mean of entries.

Ranking by the mean of the scores of earlier entries. Never imports torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from data_tools.manifest import Query
from submission.formats.score_matrix import read_scores
from submission.metrics.blend import blend
from submission.ordering import row_blocks
from system.ranking.base import Models, Pool, RankEntry, Ranker


class RankByMean(RankEntry):
    """Rank by the mean of the score matrices of earlier entries, which rank the same data source or blind set."""

    kind: Literal["mean"]
    of: Annotated[list[str], Field(min_length=2)]  # names of earlier entries
    edition: int | Literal["custom"]  # challenge year, or custom
    csv: bool  # write the edition's CSV

    ranks_any_clips = False

    @property
    def combined_entries(self) -> list[str]:
        """Names of the earlier rank entries whose scores are averaged."""
        return self.of

    @property
    def how_scored(self) -> str:
        """Text for the plan: how the scores are computed."""
        return f"ranked by the mean of {', '.join(self.of)}"

    def ranker(self, models: Models) -> Ranker:
        """Return the ranker that averages the scores of the earlier entries."""
        return MeanRanker({name: models.entry_ranker(name) for name in self.of})


class MeanRanker(Ranker):
    """Ranks by the mean of several rankers' scores, with equal weights."""

    def __init__(self, members: Mapping[str, Ranker]) -> None:
        """Store the rankers whose scores are averaged. members: Dict from rank entry to its ranker."""
        self.members, self.origin = members, f"mean of {', '.join(members)}"
        self.facts = {"of": {name: dict(member.facts) for name, member in members.items()}}

    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the mean of the rankers' score matrices, in blocks of rows."""
        yield blend({name: member.matrix(queries, pool) for name, member in self.members.items()}).values


class StoredScores(Ranker):
    """Ranker that returns the scores which an earlier rank entry has stored for the same queries and clips."""

    def __init__(self, path: Path) -> None:
        """Store the path of a stored score matrix, without reading it."""
        self.path, self.origin, self.facts = path, path.stem, {}

    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the stored score matrix, in blocks of rows."""
        values = read_scores(self.path).values
        yield from (values[rows] for rows in row_blocks(values))
