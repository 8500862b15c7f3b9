"""Ranking by the mean of teachers' cosines.

Never imports torch.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from data_tools.manifest import Query, caption_queries
from system.ranking.base import Models, Pool, RankEntry, Ranker


class RankByTeachers(RankEntry):
    """Rank by the mean of several teachers' cosines. This is the target of a stage that is distilled from them."""

    kind: Literal["teachers"]
    data: str  # source whose captions are the queries for its clips
    of: Annotated[list[str], Field(min_length=1)]  # names of teachers
    edition: int | Literal["custom"]  # challenge year; it decides the figures and the file
    csv: bool  # write the edition's CSV

    ranks_any_clips = False

    @property
    def teacher_names(self) -> list[str]:
        """Names of the teachers whose cosines are averaged."""
        return self.of

    @property
    def how_scored(self) -> str:
        """Text for the plan: how the scores are computed."""
        return f"ranked by the mean of the cosines of {', '.join(self.of)}"

    def ranker(self, models: Models) -> Ranker:
        """Return the ranker that averages the teachers' cosines."""
        return TeachersRanker(self.of, models)


class TeachersRanker(Ranker):
    """Ranks by the mean of teachers' cosines. Its queries must be captions of the ranked clips."""

    def __init__(self, names: Sequence[str], models: Models) -> None:
        """Create the ranker. names: The recipe's teachers to average. models: Models and data of the run."""
        self.names, self.models = names, models
        self.origin = f"mean of the cosines of {', '.join(names)}"
        self.facts = {"recipe": models.recipe_name, "teachers": list(names)}

    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the mean of the teachers' cosines of all queries and clips."""
        from system.batches.items import caption_key
        from system.batches.loader import read_unit_embeddings

        keys = {
            query.id: caption_key(clip, number)
            for clip in pool.clips
            for number, query in enumerate(caption_queries([clip]))
        }
        total = np.zeros((len(queries), len(pool.clips)), np.float32)
        for name in self.names:
            taught = self.models.teacher_embeddings(name, pool.clips)
            captions = read_unit_embeddings(taught.captions, [keys[query.id] for query in queries])
            clips = read_unit_embeddings(taught.clips, [self.models.content_keys[clip.id] for clip in pool.clips])
            total += captions @ clips.T / len(self.names)
        yield total
