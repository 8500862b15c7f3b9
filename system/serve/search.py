"""What the search page asks: the best clips of a pool for sentences, without the web."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from data_tools.manifest import Clip
from submission.ordering import ranked_columns, require_finite
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embeddings
from system.runs.retrieve import embed_texts

# Q queries, C clips, D embedding

MAX_EXAMPLE = 90  # characters of a query to try


class SearchQuery(NamedTuple):
    """A query: its text, how many clips at most, and how many better ones are left out."""

    text: str
    max_results: int
    offset: int = 0


class Hit(NamedTuple):
    """A clip found: its row in the pool, and its score, higher is better."""

    row: int
    score: float


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
        self.model, self.clips, self.skipped, self._embedded = model, clips, skipped, embedded
        self._names = [clip.file_name for clip in clips]
        self.paths = _below_common_folder(clips)
        model.text.remembers = False  # what people type is theirs, and would fill the memory of a page served for weeks
        require_finite(self._scores(["a sound"]))  # also lets the first real query find everything loaded

    def answer(self, wanted: Sequence[SearchQuery]) -> list[Answer]:
        """The best clips of each query.

        All queries are embedded together; that changes no score by more than rounding. Equal scores stand in the order
        of submission.ordering: by file name.
        """
        texts = list(dict.fromkeys(query.text for query in wanted))
        unreadable = set(self.model.text.unreadable(texts))
        known = [text for text in texts if text not in unreadable]
        hits = {}
        if known:
            scores, last = self._scores(known), max(query.offset + query.max_results for query in wanted)
            columns = ranked_columns(scores, self._names, min(last, len(self._names)))
            for text, row_scores, best in zip(known, scores, columns, strict=True):
                hits[text] = [Hit(int(row), float(row_scores[row])) for row in best]
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

    @torch.inference_mode()
    def _scores(self, texts: Sequence[str]) -> np.ndarray:
        """(Q, C) float32."""
        return self.model.score_matrix(embed_texts(self.model, texts), self._embedded)


def _below_common_folder(clips: Sequence[Clip]) -> list[str]:
    """The clips' paths, from the folder that holds all of them: the one that was named, where their names are paths in
    it."""
    paths = [Path(clip.path).absolute() for clip in clips]
    depths = [len(Path(clip.file_name).parts) if clip.path.endswith(f"/{clip.file_name}") else 1 for clip in clips]
    top = os.path.commonpath({Path(*path.parts[:-depth]) for path, depth in zip(paths, depths, strict=True)})
    return [str(path.relative_to(top)) for path in paths]
