"""What the search page asks: the best clips of a pool for sentences, without the web."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch

from data_tools.manifest import Clip
from submission.ordering import ClipOrder, ranked_columns, require_finite
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded, Embeddings, prepared, unit_vectors
from system.runs.retrieve import embed_texts
from system.serve.index import index_of

if TYPE_CHECKING:
    from system.runs.moments import Located

# Q queries, C clips, D embedding

MAX_EXAMPLE = 90  # characters of a query to try
SPARE = 100  # clips that the index names beyond four times those of an answer, to be scored exactly
MAX_INDEXED = 1000  # clips of an answer; for more of them, every clip is scored


class SearchQuery(NamedTuple):
    """A query: its text, how many clips at most, and how many better ones are left out."""

    text: str
    max_results: int
    offset: int = 0


class Hit(NamedTuple):
    """A clip found: its row in the pool, and its score, higher is better. located: where in it; None for models that
    do not say."""

    row: int
    score: float
    located: "Located | None" = None


class Answer(NamedTuple):
    """hits: the clips found, best first; None where the model knows no word of the query. unknown: its words that the
    model does not know."""

    hits: list[Hit] | None
    unknown: list[str]


class Search:
    """A pool of clips, embedded, and the model that ranks it. Not for several threads at once."""

    def __init__(
        self,
        model: RetrievalModel,
        clips: Sequence[Clip],
        embedded: Embeddings,
        skipped: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """embedded: of the C clips, (C, D) or ragged series, on the model's device. skipped: paths of the pool's
        files that are not among them -> why.

        Raises SubmissionError where the model gives scores that are not finite.
        """
        self.model, self.clips, self.skipped = model, clips, skipped
        with torch.inference_mode():
            self._pool = prepared(embedded)
        self._index = index_of(self._pool)
        self._names = [clip.file_name for clip in clips]
        self._order = ClipOrder(self._names)
        self.paths = _below_common_folder(clips)
        model.text.remembers = False  # what people type is theirs, and would fill the memory of a page served for weeks
        for scores in model.score_blocks(embed_texts(model, ["a sound"]), self._pool):
            require_finite(scores)  # also lets the first real query find everything loaded

    def answer(self, wanted: Sequence[SearchQuery]) -> list[Answer]:
        """The best clips of each query.

        All queries are embedded together; that changes no score by more than rounding. Equal scores stand in the order
        of submission.ordering: by file name. Where there is an index, clips that it does not find are missing; the
        others have their scores.
        """
        texts = list(dict.fromkeys(query.text for query in wanted))
        unreadable = set(self.model.text.unreadable(texts))
        known = [text for text in texts if text not in unreadable]
        hits = {}
        if known:
            last = min(max(query.offset + query.max_results for query in wanted), len(self._names))
            captions = embed_texts(self.model, known)
            indexed = self._index is not None and last <= MAX_INDEXED
            found = self._indexed(captions, last) if indexed else self._exact(captions, last)
            hits = dict(zip(known, found, strict=True))
        unknown = {text: self.model.text.unknown_words(text) for text in texts}
        return [
            Answer(
                hits[query.text][query.offset :][: query.max_results] if query.text in hits else None,
                unknown[query.text],
            )
            for query in wanted
        ]

    def examples(self, count: int) -> list[str]:
        """Queries to try: captions of clips from all over the pool; fewer where it has fewer, none without captions."""
        captions = list(dict.fromkeys(clip.captions[0] for clip in self.clips if clip.captions))
        spread = [text for text in captions[:: max(1, len(captions) // (8 * count))] if len(text) <= MAX_EXAMPLE]
        unreadable = set(self.model.text.unreadable(spread))
        known = [text for text in spread if text not in unreadable]
        return known[:: max(1, len(known) // count)][:count]

    def _exact(self, captions: Embedded, count: int) -> Iterator[list[Hit]]:
        """The best clips of every caption, of all."""
        for scores in self.model.score_blocks(captions, self._pool):
            require_finite(scores)
            for row_scores, best in zip(scores, self._order.best(scores, count), strict=True):
                yield [Hit(int(row), float(row_scores[row])) for row in best]

    def _indexed(self, captions: Embedded, count: int) -> Iterator[list[Hit]]:
        """The best clips of every caption, of those that the index finds."""
        assert self._index is not None
        with torch.inference_mode():
            vectors = unit_vectors(captions).float().cpu()
        for vector, rows in zip(vectors, self._index.candidates(vectors, 4 * count + SPARE), strict=True):
            scores = (self._pool.values[torch.from_numpy(rows)] @ vector).numpy()
            best = ranked_columns(scores[None], [self._names[row] for row in rows], min(count, len(rows)))[0]
            yield [Hit(int(rows[column]), float(scores[column])) for column in best]


def _below_common_folder(clips: Sequence[Clip]) -> list[str]:
    """The clips' paths, from the folder that holds all of them: the one that was named, where their names are paths in
    it."""
    paths = [str(Path(clip.path).absolute()) for clip in clips]
    depths = [len(Path(clip.file_name).parts) if clip.path.endswith(f"/{clip.file_name}") else 1 for clip in clips]
    folders = {path.rsplit(os.sep, depth)[0] or os.sep for path, depth in zip(paths, depths, strict=True)}
    top = os.path.commonpath(folders)
    return [path[len(top) :].lstrip(os.sep) for path in paths]
