"""Rank by one model.

Ranking by one trained model, which embeds clips and queries and compares the embeddings.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query
from submission.ordering import ranked_columns
from system.features.extract import Features
from system.models.embeddings import Embedded, Embeddings, prepare_for_scoring, unit_vectors
from system.models.retrieval import RetrievalModel
from system.models.scores import Cosine, MomentScore, ScoreSettings
from system.moments.windows import MAX_FRAMES, By, Decoding, Grid
from system.ranking.base import Hit, Pool, Ranker
from system.ranking.embedding import embed_pool, embed_texts, vectors
from system.ranking.index import VectorIndex, build_index
from system.ranking.listing import Listed
from system.ranking.windows import Located, find_windows, frame_series

log = logging.getLogger(__name__)

# Q queries, C clips, R recordings

SPARE = 100  # candidates of the index in addition to four per clip of an answer; all are scored exactly
COSINE = Cosine(kind="cosine")
MAX_INDEXED = 1000  # clips of an answer; for more of them, every clip is scored


@dataclass(kw_only=True)
class ModelPool(Pool):
    """Pool of clips with their embeddings by one model.

    embedded: Vectors (C, D), or ragged series of frame embeddings, on the model's device. unit_length: Whether the
    model's score only depends on the directions of embeddings.
    """

    embedded: Embeddings
    unit_length: bool = True

    def prepare(self) -> Embeddings:
        """Return the clips' embeddings, scaled to unit length if the score only depends on their directions.

        The scaled embeddings replace the original embeddings.
        """
        with torch.inference_mode():
            self.embedded = prepare_for_scoring(self.embedded) if self.unit_length else self.embedded
        return self.embedded

    @cached_property
    def index(self) -> VectorIndex | None:
        """Index for searching a large pool by cosines; None if every clip is scored."""
        return build_index(self.prepare()) if self.unit_length else None


class ClipSource(ABC):
    """Reads or computes the frames of clips. grids: Dict from expert to the times of its frames."""

    grids: Mapping[str, Grid]

    @abstractmethod
    def open(self, model: RetrievalModel, listed: Listed, strict: bool) -> ModelPool:
        """Embed the readable clips, and return a pool of these. strict: A clip that cannot be read is an error."""

    @abstractmethod
    def features(self, model: RetrievalModel, clips: Sequence[Clip]) -> Features:
        """Return the experts' frames of clips: stored frames are read, and missing frames are computed."""


class KnownFeatures(ClipSource):
    """Source of frames that were computed before, such as those of a run's data sources and blind sets."""

    def __init__(self, features: Features) -> None:
        """Store the frames of all clips that can be ranked."""
        self._features, self.grids = features, features.grids

    def open(self, model: RetrievalModel, listed: Listed, strict: bool = False) -> ModelPool:
        """Return a pool with the embeddings of the listed clips that have frames. strict: Has no effect here."""
        clips = [clip for clip in listed.clips if clip.id in self._features.keys]
        if not clips:
            size = counted(len(listed.clips), "clip")
            raise KitError(f"nothing to rank: none of {size} can be read; repair the audio files")
        embedded, norms = embed_pool(model, clips, self._features)
        return ModelPool(
            clips=clips, skipped=listed.others, norms=norms, embedded=embedded, unit_length=model.unit_length
        )

    def features(self, model: RetrievalModel, clips: Sequence[Clip]) -> Features:
        """Return all computed frames, which include the frames of `clips`."""
        return self._features


class WindowSettings(NamedTuple):
    """Settings for finding windows by a model of moments.

    score: Score of moments, with its scale, its offset, and its weights of moment starts and ends. by: Score that
    selects windows: `overlap` (probability of a moment with an IoU of 0.7 or more), or `thresholds` (all frames reach a
    probability). decoding: Number of windows, allowed overlap,
    rounding, and other settings that select windows.
    """

    score: MomentScore
    by: By = "overlap"
    decoding: Decoding = Decoding()

    def with_threshold(self, threshold: float) -> "WindowSettings":
        """Return a copy of the settings, to find windows of frames with a probability of at least `threshold`."""
        return self._replace(by="thresholds", decoding=self.decoding.model_copy(update={"threshold": threshold}))

    @property
    def meanings(self) -> dict[str, str]:
        """Dict with explanations of two kinds of numbers on the search page: `frames` and `windows`."""
        windows = {
            "overlap": "the probability that a moment has an IoU of 0.7 or more with the window",
            "thresholds": "the mean of the window's frames minus the mean of all other frames",
        }
        return {"frames": "the probability that a frame is in a moment", "windows": windows[self.by]}


class ModelRanker(Ranker):
    """Ranks clips by one model, which scores pairs of a clip and a query.

    score: Settings of the score. windows: Settings for finding windows in recordings; None if no windows are needed.
    name: Name of the model's folder.
    """

    def __init__(
        self,
        model: RetrievalModel,
        source: ClipSource,
        facts: Mapping[str, Any],
        origin: str = "",
        *,
        score: ScoreSettings = COSINE,
        windows: WindowSettings | None = None,
        name: str = "",
    ) -> None:
        """Create the ranker. source: Reads or computes frames. facts: Metadata of the model, stored with the scores.

        origin: Text that names the source of the scores, such as "last checkpoint of train".
        """
        self.model, self.source, self.facts, self.origin = model, source, facts, origin
        self.score, self.windows, self.name = score, windows, name

    @property
    def meanings(self) -> dict[str, str]:
        """Dict with explanations of numbers on the search page: `score` and, for moments, `frames` and `windows`."""
        return {"score": self.score.meaning, **(self.windows.meanings if self.windows else {})}

    def open(self, listed: Listed, strict: bool = False) -> ModelPool:
        """Embed the readable clips; return their pool. strict: A clip that cannot be read is an error.

        Warns of recordings that are too long to find windows in.
        """
        pool = self.source.open(self.model, listed, strict)
        if too_long := [clip.path for row, clip in enumerate(pool.clips) if not self._can_find_times(pool, row)]:
            some = f"{counted(len(too_long), 'recording')} with more than {MAX_FRAMES:,} frames, first {too_long[0]}"
            log.warning("no times are found in %s; cut such recordings into pieces", some)
        return pool

    def _can_find_times(self, pool: ModelPool, row: int) -> bool:
        """Return false if the recording at the pool's index `row` has too many frames to find windows, else true."""
        if self.windows is None or self.windows.by == "thresholds" or pool.embedded.lengths is None:
            return True
        return int(pool.embedded.lengths[row]) <= MAX_FRAMES

    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the model's score matrix of all queries and clips, in blocks of rows."""
        captions = embed_texts(self.model, [query.text for query in queries])
        return self.model.score_blocks(captions, _require_model_pool(pool).prepare())

    def best(self, queries: Sequence[Query], pool: Pool, count: int) -> Iterator[list[Hit]]:
        """Yield the best `count` clips of each query, best first. In a large pool, an index finds them.

        The index may miss a clip. All found clips have exact scores.
        """
        pool = _require_model_pool(pool)
        if count > MAX_INDEXED or pool.index is None:
            yield from super().best(queries, pool, count)
            return
        with torch.inference_mode():
            vectors = unit_vectors(embed_texts(self.model, [query.text for query in queries])).float().cpu()
        for vector, rows in zip(vectors, pool.index.candidates(vectors, 4 * count + SPARE), strict=True):
            scores = (pool.embedded.values[torch.from_numpy(rows)] @ vector).numpy()
            names = [pool.clips[row].file_name for row in rows]
            best = ranked_columns(scores[None], names, min(count, len(rows)))[0]
            yield [Hit(int(rows[column]), float(scores[column])) for column in best]

    def find_times(self, text: str, pool: Pool, rows: Sequence[int]) -> list[Located | None] | None:
        """Return a query's windows in the recordings at the indexes `rows` of the pool; None without window settings.

        In the list, a recording that is too long has None instead of windows.
        """
        if self.windows is None:
            return None
        short = [row for row in rows if self._can_find_times(_require_model_pool(pool), row)]
        found = dict(zip(short, self._windows_in(text, pool, short, self.windows), strict=True)) if short else {}
        return [found.get(row) for row in rows]

    def _windows_in(self, text: str, pool: Pool, rows: Sequence[int], windows: WindowSettings) -> list[Located]:
        """Find a query's windows in the recordings at the indexes `rows` of the pool."""
        recordings, clips = [pool.clips[row] for row in rows], _require_model_pool(pool).prepare().rows(list(rows))
        one = embed_texts(self.model, [text])
        captions = Embedded(one.values.expand(len(rows), *one.values.shape[1:]))
        series = frame_series(self.model, clips, recordings, range(len(rows)), captions, self.source.grids)
        return find_windows([(windows.score, series)], windows.decoding, windows.by)

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the items of `texts` without any word that the model knows."""
        return self.model.text.without_known_words(texts)

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that the model does not know."""
        return self.model.text.unknown_words(text)

    def forget_queries(self) -> None:
        """Stop caching the embeddings of queries from now on, since the queries that people type are private."""
        self.model.text.caches_texts = False

    def text_vectors(self, texts: Sequence[str], normalize: bool = True) -> np.ndarray:
        """Embed texts. normalize: Scale the vectors to length 1. Returns: (N, D) float32."""
        return vectors(embed_texts(self.model, texts), normalize)

    def clip_vectors(self, pool: Pool, normalize: bool = True) -> np.ndarray:
        """Return the pool's embeddings, (C, D) float32. normalize: Scale the vectors to length 1."""
        return vectors(_require_model_pool(pool).embedded, normalize)


def _require_model_pool(pool: Pool) -> ModelPool:
    """Return `pool` unchanged. Raises TypeError if it was not opened by a ModelRanker."""
    if not isinstance(pool, ModelPool):
        raise TypeError("this pool was opened by another kind of ranker; pass the result of ModelRanker.open")
    return pool
