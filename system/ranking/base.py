"""Interface of all rankers.

A ranker computes scores of clips for queries. This file never imports torch.

Each kind of rank entry has one file in this folder, with the kind's settings in a recipe, its text in a plan, and its
ranker. `__init__.py` lists the kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query
from data_tools.settings import Strict
from submission.formats.score_matrix import Labels, ScoreMatrix, matrix_from_blocks
from submission.ordering import ClipOrder, require_finite
from system.ranking.listing import Listed

if TYPE_CHECKING:
    from system.batches.loader import Taught
    from system.ranking.windows import Located

# Q queries, C clips


class Hit(NamedTuple):
    """A clip found for a query.

    row: Index of the clip in the pool. score: Score of the clip; higher is better. located: Times at which the query is
    heard in the recording; None for rankers of whole clips.
    """

    row: int
    score: float
    located: "Located | None" = None


@dataclass(kw_only=True)
class Pool:
    """Clips that a ranker has opened. A subclass may store more data about the clips.

    clips: The C clips that can be ranked. skipped: Dict from the path of every other file to the reason for skipping.
    norms: Dict from expert to the norms (C,) of its embeddings of the clips; empty unless the model averages several
    experts. An embedding with a larger norm has more weight in the average.
    """

    clips: Sequence[Clip]
    skipped: Mapping[str, str] = field(default_factory=dict)
    norms: Mapping[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def order(self) -> ClipOrder:
        """Order of the clips by file name. Clips with equal scores are ranked in this order."""
        return ClipOrder([clip.file_name for clip in self.clips])


class Ranker(ABC):
    """Computes scores of clips for queries.

    facts: Metadata about the origin of the scores (recipe, run, checkpoint), stored with the scores. origin: Text that
    names the source of the scores, such as "last checkpoint of train".
    """

    facts: Mapping[str, Any]
    origin: str

    @property
    def meanings(self) -> dict[str, str]:
        """Dict from each kind of number on the search page, such as `score`, to its explanation."""
        return {"score": "the model's score; higher is better"}

    def open(self, listed: Listed, strict: bool = False) -> Pool:
        """Return a pool of the readable clips, ready to be ranked.

        strict: Raise KitError for a clip that cannot be read; if False, skip such clips with a warning.
        Raises KitError if no clip can be read.
        """
        return Pool(clips=listed.clips, skipped=listed.others)

    @abstractmethod
    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the score matrix, with a row per query and a column per clip, in blocks of rows.

        A block is (n, C) float32. Rows are in the order of the queries. A higher score is better.
        pool: The pool that `open` returned. With several processes, each process gets all rows.
        """

    def best(self, queries: Sequence[Query], pool: Pool, count: int) -> Iterator[list[Hit]]:
        """Yield the best `count` clips of each query, best first; equal scores are ordered by file name.

        Raises SubmissionError for a score that is not finite.
        """
        for block in self.scores(queries, pool):
            require_finite(block)
            for scores, best in zip(block, pool.order.best(block, count), strict=True):
                yield [Hit(int(row), float(scores[row])) for row in best]

    def matrix(self, queries: Sequence[Query], pool: Pool) -> ScoreMatrix:
        """Return the score matrix (Q, C) of all queries and clips.

        Raises KitError if there is no query or no clip.
        """
        require_clips_and_queries(queries, pool)
        return matrix_from_blocks(matrix_labels(pool.clips, queries, self.facts), self.scores(queries, pool))

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the items of `texts` without any word that the ranker knows.

        For such a text, all clips would have the same score.
        """
        return []

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that the ranker does not know."""
        return []

    def forget_queries(self) -> None:  # noqa: B027
        """Stop caching queries from now on, since the queries that people type are private."""

    def find_times(self, text: str, pool: Pool, rows: Sequence[int]) -> "list[Located | None] | None":
        """Return the times of the sound `text` in the recordings at the indexes `rows`; None for rankers without times.

        The list has None instead of times for a recording that is too long.
        """
        return None

    def text_vectors(self, texts: Sequence[str], normalize: bool = True) -> np.ndarray:
        """Embed N texts by a single vector each. Returns: (N, D) float32.

        normalize: Scale the vectors to unit length, so that dot products are scores; if False, return the encoder's
        output.
        Raises: KitError for a ranker without a single vector per text.
        """
        raise KitError(f"ranker ({self.origin}) has no single embedding per text; use lbar rank instead")

    def clip_vectors(self, pool: Pool, normalize: bool = True) -> np.ndarray:
        """Embed the pool's clips by a single vector each. Returns: (C, D) float32.

        normalize: Scale the vectors to unit length; if False, return the encoder's output. Raises KitError for a ranker
        without a single vector per clip.
        """
        raise KitError(f"ranker ({self.origin}) has no single embedding per clip; use lbar rank instead")

    def require_known_words(self, queries: Sequence[Query]) -> None:
        """Raise KitError if any query has no word that the ranker knows."""
        refuse_unknown_queries(queries, self.without_known_words([query.text for query in queries]))


class Models(Protocol):
    """Access of rank entries to the models and data of a run."""

    chosen: dict[str, dict[str, float]]  # validation of corrections that were compared, by all that they depend on

    @property
    def recipe_name(self) -> str:
        """Name of the recipe."""
        ...

    @property
    def content_keys(self) -> Mapping[str, str]:
        """Dict from the id of each ranked clip to the checksum of its audio."""

    def model_ranker(self, stage: str | None, checkpoint: str | None) -> Ranker:
        """Return the ranker of the run's model at a stage's checkpoint.

        stage: None for the model with its published weights, before training.
        """

    def entry_ranker(self, name: str) -> Ranker:
        """Return a ranker with the scores of the rank entry `name`, read from the entry's file if it has one."""

    def teacher_embeddings(self, teacher: str, clips: Sequence[Clip]) -> "Taught":
        """Return the embeddings of clips and of their captions by the teacher model `teacher`."""

    def live_ranker(self, name: str, source: str | None = None) -> Ranker:
        """Return a ranker of the rank entry `name`, for any queries.

        source: Data source whose clips are ranked. None: the data source of the rank entry that is computed now. This
        may be another entry than `name`, and use the scores of `name`.
        """

    def caption_queries(self, source: str) -> Sequence[Query]:
        """Return the captions of a data source's readable clips as queries."""

    def ranked_clips(self, source: str) -> Sequence[Clip]:
        """Return the clips of a data source that can be ranked, because their audio is readable."""

    def earlier_facts(self, entry: "RankEntry") -> Mapping[str, Any]:
        """Return the metadata that a finished run stored with a rank entry's scores; empty while a run is ranked."""


class RankEntry(Strict):
    """Base class of the kinds of rank entries. A kind that ranks a data source has the keys data, edition and csv."""

    if TYPE_CHECKING:  # keys of most kinds
        data: str
        edition: int | Literal["custom"]
        csv: bool

    finds_windows: ClassVar[bool] = False  # of long recordings, instead of scoring clips
    ranks_any_clips: ClassVar[bool] = True  # whether a run that begins with it ranks other clips and queries by it

    @property
    def combined_entries(self) -> list[str]:
        """Names of the earlier rank entries whose scores this entry combines."""
        return []

    @property
    def other_sources(self) -> list[str]:
        """Names of the data sources that the scores depend on, besides the ranked data source."""
        return []

    @property
    def teacher_names(self) -> list[str]:
        """Names of the teachers that the scores depend on."""
        return []

    @property
    @abstractmethod
    def how_scored(self) -> str:
        """Text for the plan that states how the scores are computed, such as "by the last checkpoint of train"."""

    @abstractmethod
    def ranker(self, models: Models) -> Ranker:
        """Return the ranker that computes this entry's scores."""
        ...


def refuse_unknown_queries(queries: Sequence[Query], unknown: Collection[str]) -> None:
    """Raise KitError if the text of any query is in `unknown`, the texts without any known word."""
    unknown = set(unknown)
    if named := [query for query in queries if query.text in unknown]:
        raise KitError(
            f"the model knows no word of {counted(len(named), 'query')}, first {named[0].id} "
            f"({named[0].text[:60]!r}); reword these queries, use a pre-trained text encoder, or rank with "
            "--allow-unknown; if the embeddings of texts come from a file, add those of all queries to this file"
        )


def require_clips_and_queries(queries: Sequence[Query], pool: Pool) -> None:
    """Raise KitError if there is no readable clip, or no query."""
    if not pool.clips or not queries:
        raise KitError(
            f"nothing to rank: {len(pool.clips)} readable clips, {counted(len(queries), 'query')}; "
            "give at least one of each"
        )


def matrix_labels(clips: Sequence[Clip], queries: Sequence[Query], facts: Mapping[str, Any]) -> Labels:
    """Return the labels of a score matrix: queries (rows), clips (columns), and metadata of the model (facts)."""
    return Labels(
        query_ids=[query.id for query in queries],
        query_texts=[query.text for query in queries],
        clip_ids=[clip.id for clip in clips],
        file_names=[clip.file_name for clip in clips],
        relevant=[query.relevant for query in queries],
        facts=dict(facts),
    )
