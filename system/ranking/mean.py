"""Rank by the mean of entries.

Ranking by the mean of the scores of earlier entries. Never imports torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from data_tools.manifest import Query
from submission.blocks import row_blocks
from submission.formats.score_matrix import ScoreMatrix, matrix_from_blocks, read_scores
from submission.metrics.blend import blend, blended
from system.compute.distributed import on_first
from system.ranking.base import Models, Pool, RankEntry, Ranker, labels_of


class RankByMean(RankEntry):
    """The mean of the score matrices of earlier entries, which rank the same source, or the same blind set."""

    kind: Literal["mean"]
    of: Annotated[list[str], Field(min_length=2)]  # names of earlier entries
    edition: int | Literal["custom"]  # challenge year, or custom
    csv: bool  # write the edition's CSV

    ranks_any_clips = False

    @property
    def combined_entries(self) -> list[str]:
        """Names of the rank entries that this entry combines."""
        return self.of

    @property
    def how(self) -> str:
        """Description of the source of the scores, for the plan."""
        return f"by the mean of {', '.join(self.of)}"

    def ranker(self, models: Models) -> Ranker:
        """Return the ranker that averages the scores of the entries."""
        return MeanRanker({name: models.entry(name) for name in self.of})


class MeanRanker(Ranker):
    """The mean of several rankers' scores, with equal weights."""

    def __init__(self, members: Mapping[str, Ranker]) -> None:
        self.members, self.origin = members, f"mean of {', '.join(members)}"
        self.facts = {"mean of": {name: dict(member.facts) for name, member in members.items()}}

    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the mean of the members' scores, block by block."""
        blocks = {
            name: matrix_from_blocks(labels_of(pool.clips, queries, member.facts), member.scores(queries, pool))
            for name, member in self.members.items()
        }
        yield from blended(blocks)[1]

    def matrix(self, queries: Sequence[Query], pool: Pool) -> ScoreMatrix | None:
        """Return the mean of the members' score matrices; None in processes other than the first."""
        found = {name: member.matrix(queries, pool) for name, member in self.members.items()}
        matrices = {name: matrix for name, matrix in found.items() if matrix is not None}
        return from_first(lambda: blend(matrices))


class StoredScores(Ranker):
    """The scores that an earlier entry wrote for the same queries and clips."""

    def __init__(self, path: Path) -> None:
        self.path, self.origin, self.facts = path, path.stem, {}

    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the stored scores, block by block."""
        values = read_scores(self.path).values
        yield from (values[rows] for rows in row_blocks(values))

    def matrix(self, queries: Sequence[Query], pool: Pool) -> ScoreMatrix | None:
        """Read the stored score matrix; None in processes other than the first."""
        return from_first(lambda: read_scores(self.path))


def from_first(make: Callable[[], ScoreMatrix]) -> ScoreMatrix | None:
    """Call `make` in the first process, and return its result; None in the others."""
    made: list[ScoreMatrix] = []
    on_first(lambda: made.append(make()))
    return made[0] if made else None
