"""Rank by the mean of entries.

Ranking by the mean of the scores of earlier entries. Never imports torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from data_tools.manifest import Query
from submission.formats.score_matrix import ScoreMatrix, matrix_from_blocks, read_scores
from submission.metrics.blend import blend
from submission.ordering import row_blocks
from system.compute.distributed import on_first
from system.ranking.base import Models, Pool, RankEntry, Ranker, matrix_labels


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
        self.facts = {"mean of": {name: dict(member.facts) for name, member in members.items()}}

    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the mean of the rankers' score matrices, in blocks of rows."""
        blocks = {
            name: matrix_from_blocks(matrix_labels(pool.clips, queries, member.facts), member.scores(queries, pool))
            for name, member in self.members.items()
        }
        yield blend(blocks).values

    def matrix(self, queries: Sequence[Query], pool: Pool) -> ScoreMatrix | None:
        """Return the mean of the rankers' score matrices; None in processes other than the first."""
        found = {name: member.matrix(queries, pool) for name, member in self.members.items()}
        matrices = {name: matrix for name, matrix in found.items() if matrix is not None}
        return in_first_process(lambda: blend(matrices))


class StoredScores(Ranker):
    """Ranker that returns the scores which an earlier rank entry has stored for the same queries and clips."""

    def __init__(self, path: Path) -> None:
        """Store the path of a stored score matrix, without reading it."""
        self.path, self.origin, self.facts = path, path.stem, {}

    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the stored score matrix, in blocks of rows."""
        values = read_scores(self.path).values
        yield from (values[rows] for rows in row_blocks(values))

    def matrix(self, queries: Sequence[Query], pool: Pool) -> ScoreMatrix | None:
        """Read the stored score matrix; None in processes other than the first."""
        return in_first_process(lambda: read_scores(self.path))


def in_first_process(make: Callable[[], ScoreMatrix]) -> ScoreMatrix | None:
    """Call `make` in the first process only, and return its result; return None in all other processes."""
    made: list[ScoreMatrix] = []
    on_first(lambda: made.append(make()))
    return made[0] if made else None
