"""Interface of all rankers.

The interface of all rankers: queries and clips become scores. Never imports torch.

A kind of rank entry is one file in this folder: its settings in a recipe, the words of its plan line, and its ranker.
The list of kinds is `__init__.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from data_tools.cli import counted
from data_tools.documents.strict import Strict
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query
from submission.formats.score_matrix import Labels, ScoreMatrix, matrix_from_blocks
from submission.ordering import ClipOrder, require_finite
from system.compute.distributed import is_first
from system.ranking.listing import Listed

if TYPE_CHECKING:
    from system.batches.teachers import Taught
    from system.ranking.frame_series import Located

# Q queries, C clips


class Hit(NamedTuple):
    """A clip found for a query.

    row: Its row in the pool. score: Higher is better. located: Times at which the query is heard in the recording;
    None for rankers of whole clips.
    """

    row: int
    score: float
    located: "Located | None" = None


@dataclass(kw_only=True)
class Pool:
    """Clips that a ranker has opened. A subclass may hold more data about them.

    clips: The C clips that can be ranked. skipped: The reason for every other file, by path.
    norms: (C,) norms of every expert's embedding, by the expert's name, if a model averages several experts. A larger
    norm weighs more.
    """

    clips: Sequence[Clip]
    skipped: Mapping[str, str] = field(default_factory=dict)
    norms: Mapping[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def order(self) -> ClipOrder:
        """Positions of the clips in the order of file names, which decides between clips with equal scores."""
        return ClipOrder([clip.file_name for clip in self.clips])


class Ranker(ABC):
    """Scores clips for queries.

    facts: Recorded with the scores. origin: Names the source of the scores, such as "last checkpoint of train".
    """

    facts: Mapping[str, Any]
    origin: str

    @property
    def meanings(self) -> dict[str, str]:
        """Dict from each kind of number on the search page, such as `score`, to its explanation."""
        return {"score": "a number, higher is better"}

    def open(self, listed: Listed, strict: bool = False) -> Pool:
        """Prepare clips for ranking. Returns: A pool of the clips that can be ranked, ready for `scores`.

        strict: Raise KitError for the first clip that cannot be read; if False, skip such clips with a warning.
        Raises KitError if no clip can be read.
        """
        return Pool(clips=listed.clips, skipped=listed.others)

    @abstractmethod
    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield blocks of rows of the score matrix of queries against clips.

        A block is (n, C) float32, in the order of the queries; higher is better.
        pool: The pool that `open` returned. With several processes, each one gets all rows.
        """

    def best(self, queries: Sequence[Query], pool: Pool, count: int) -> Iterator[list[Hit]]:
        """Yield the best `count` clips of each query, best first; equal scores are ordered by file name.

        Raises SubmissionError for a score that is not finite.
        """
        for block in self.scores(queries, pool):
            require_finite(block)
            for scores, best in zip(block, pool.order.best(block, count), strict=True):
                yield [Hit(int(row), float(scores[row])) for row in best]

    def matrix(self, queries: Sequence[Query], pool: Pool) -> ScoreMatrix | None:
        """Score all clips for all queries: the score matrix (Q, C).

        With several processes, the first process gets it, and the others get None.
        Raises KitError if there is no query or no clip.
        """
        require_some(queries, pool)
        blocks = self.scores(queries, pool)
        if is_first():
            return matrix_from_blocks(labels_of(pool.clips, queries, self.facts), blocks)
        for _ in blocks:
            pass
        return None

    def unreadable(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without any word that the ranker knows.

        For such a text, all clips would have the same score.
        """
        return []

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that the ranker does not know."""
        return []

    def forget_queries(self) -> None:  # noqa: B027
        """Stop caching queries from now on, since the queries that people type are private."""

    def located(self, text: str, pool: Pool, rows: Sequence[int]) -> "list[Located | None] | None":
        """Find the times of the sound that `text` describes, in the recordings at the indexes `rows` of the pool.

        Returns: None for rankers that find no times, and in the list for recordings that are too long.
        """
        return None

    def text_vectors(self, texts: Sequence[str], normalize: bool = True) -> np.ndarray:
        """Embed texts. Returns: (N, D) float32.

        normalize: Scale the vectors to unit length, so that dot products are scores; if False, return the encoder's
        output.
        Raises: KitError for a ranker without a single vector per text.
        """
        raise KitError(f"{self.origin} has no single embedding per text; use python -m system rank instead")

    def clip_vectors(self, pool: Pool, normalize: bool = True) -> np.ndarray:
        """Embed the pool's clips. Returns: (C, D) float32.

        `normalize` and errors are as in text_vectors.
        """
        raise KitError(f"{self.origin} has no single embedding per clip; use python -m system rank instead")

    def require_readable(self, queries: Sequence[Query]) -> None:
        """Raise KitError for queries without any word that the ranker knows."""
        require_known(queries, self.unreadable([query.text for query in queries]))


class Models(Protocol):
    """The models of a run, for its rank entries."""

    chosen: dict[str, dict[str, float]]  # validation of corrections that were compared, by all that they depend on

    @property
    def recipe_name(self) -> str:
        """Name of the recipe."""
        ...

    @property
    def contents(self) -> Mapping[str, str]:
        """Checksums of the ranked clips' audio, by clip id."""

    def model(self, stage: str | None, checkpoint: str | None) -> Ranker:
        """Return the ranker of the run's model at a stage's checkpoint.

        stage: None for the model with its published weights, before training.
        """

    def entry(self, name: str) -> Ranker:
        """Return the ranker that gives the scores of the rank entry `name`."""

    def taught(self, teacher: str, clips: Sequence[Clip]) -> "Taught":
        """Return the embeddings that a teacher gives to clips and their captions."""

    def live(self, name: str, source: str | None = None) -> Ranker:
        """Return the ranker of the rank entry `name`, for any queries.

        source: Data source whose clips are ranked; None: those of the entry that is ranked now.
        """

    def queries(self, source: str) -> Sequence[Query]:
        """Return the captions of a data source's readable clips as queries."""

    def ranked_clips(self, source: str) -> Sequence[Clip]:
        """Return the readable clips of a data source."""

    def earlier_facts(self, entry: "RankEntry") -> Mapping[str, Any]:
        """Return the facts of the scores that a finished run has of an entry; empty while a run is ranked."""


class RankEntry(Strict):
    """Base of the kinds of rank entries. A kind that ranks a data source has the keys data, edition and csv.

    combined_entries: Names of the earlier entries that this entry combines.
    """

    if TYPE_CHECKING:  # keys of most kinds
        data: str
        edition: int | Literal["custom"]
        csv: bool

    finds_windows: ClassVar[bool] = False  # of long recordings, instead of scoring clips
    ranks_any_clips: ClassVar[bool] = True  # whether a run that begins with it ranks other clips and queries by it

    @property
    def combined_entries(self) -> list[str]:
        """Names of the rank entries that this entry combines."""
        return []

    @property
    def other_sources(self) -> list[str]:
        """Names of the data sources that the scores depend on, besides the ranked one."""
        return []

    @property
    def teacher_names(self) -> list[str]:
        """Names of the teachers that the scores depend on."""
        return []

    @property
    @abstractmethod
    def how(self) -> str:
        """Description of the source of the scores, such as "by the last checkpoint of train".

        The plan prints it.
        """

    @abstractmethod
    def ranker(self, models: Models) -> Ranker:
        """Return the ranker that computes this entry's scores."""
        ...


def require_known(queries: Sequence[Query], unknown: Collection[str]) -> None:
    """Raise KitError if any query has no known word.

    unknown: Texts without any known word.
    """
    unknown = set(unknown)
    if named := [query for query in queries if query.text in unknown]:
        raise KitError(
            f"the model knows no word of {counted(len(named), 'query')}, first {named[0].id} "
            f"({named[0].text[:60]!r}); reword them, use a pre-trained text encoder, rank with --allow-unknown, or, "
            "for embeddings of another model, add those of all queries to its file"
        )


def require_some(queries: Sequence[Query], pool: Pool) -> None:
    """Raise KitError if there is no readable clip, or no query."""
    if not pool.clips or not queries:
        raise KitError(
            f"nothing to rank: {len(pool.clips)} readable clips, {counted(len(queries), 'query')}; "
            "give at least one of each"
        )


def labels_of(clips: Sequence[Clip], queries: Sequence[Query], facts: Mapping[str, Any]) -> Labels:
    """Return the labels of a score matrix: its queries, clips and facts."""
    return Labels(
        query_ids=[query.id for query in queries],
        query_texts=[query.text for query in queries],
        clip_ids=[clip.id for clip in clips],
        file_names=[clip.file_name for clip in clips],
        relevant=[query.relevant for query in queries],
        facts=dict(facts),
    )
