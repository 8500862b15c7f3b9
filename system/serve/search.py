"""What the search page asks: the best clips of a pool for sentences, without the web."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from data_tools.errors import KitError
from data_tools.manifest import Clip, of_split
from submission.ordering import ranked_columns, require_finite
from system.features.build import build_features
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded
from system.recipe import schema
from system.runs.open import Trained
from system.runs.retrieve import embed_clips, embed_texts, read_pool

# Q queries, C clips, D embedding


class SearchQuery(NamedTuple):
    """A query: its text, and how many clips at most."""

    text: str
    max_results: int


class Hit(NamedTuple):
    """A clip found: its row in the pool, and its score, higher is better."""

    row: int
    score: float


class Search:
    """A pool of clips, embedded, and the model that ranks it. Not for several threads at once."""

    def __init__(
        self,
        model: RetrievalModel,
        clips: Sequence[Clip],
        embedded: Embedded,
        skipped: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """embedded: of the C clips, (C, D) or a padded series, on the model's device. skipped: paths of the pool's
        files that are not among them -> why.

        Raises SubmissionError where the model gives scores that are not finite.
        """
        self.model, self.clips, self.skipped, self._embedded = model, clips, skipped, embedded
        self._names = [clip.file_name for clip in clips]
        model.text.remembers = False  # what people type is theirs, and would fill the memory of a page served for weeks
        require_finite(self._scores(["a sound"]))  # also lets the first real query find everything loaded

    def answer(self, wanted: Sequence[SearchQuery]) -> list[list[Hit] | None]:
        """The best clips of each query, best first; None for one of which the model knows no word.

        All queries are embedded together; that changes no score by more than rounding. Equal scores stand in the order
        of submission.ordering: by file name.
        """
        texts = list(dict.fromkeys(query.text for query in wanted))
        unknown = set(self.model.text.unreadable(texts))
        known = [text for text in texts if text not in unknown]
        hits = {}
        if known:
            scores, max_results = self._scores(known), max(query.max_results for query in wanted)
            columns = ranked_columns(scores, self._names, min(max_results, len(self._names)))
            for text, row_scores, best in zip(known, scores, columns, strict=True):
                hits[text] = [Hit(int(row), float(row_scores[row])) for row in best]
        return [hits[query.text][: query.max_results] if query.text in hits else None for query in wanted]

    @torch.inference_mode()
    def _scores(self, texts: Sequence[str]) -> np.ndarray:
        """(Q, C) float32."""
        return self.model.score_matrix(embed_texts(self.model, texts), self._embedded)


def pool_of(recipe: schema.Recipe, audio: Path | None, split: str | None) -> list[Clip]:
    """The clips of `audio` (a manifest or a folder); by default those that the recipe's first `rank` entry ranks.

    split: only this split's clips. Raises KitError for no clip at all, and DataError as reading a manifest does.
    """
    if audio is None:
        if not recipe.scored:
            raise KitError(f"the recipe {recipe.name} ranks nothing; name the clips with --audio")
        source = recipe.data[recipe.ranked_source(next(iter(recipe.scored)))]
        audio, split = Path(source.manifest), split or source.split
        if not audio.exists():
            raise KitError(f"{audio}, which the recipe {recipe.name} ranks, is not here; name the clips with --audio")
    return of_split(read_pool(audio), split, audio)


def make_search(trained: Trained, clips: list[Clip]) -> Search:
    """Embed the clips, computing frames that the banks lack. Raises KitError when no clip is readable."""
    recipe = trained.recipe
    experts = dict(recipe.model.audio.experts)
    features = build_features(clips, experts, Path(recipe.banks), device=trained.model.device)
    whole = [clip for clip in clips if clip.id in features.keys]
    if not whole:
        first = features.broken[clips[0].id]
        raise KitError(f"none of {len(clips)} clips is readable, first {first}")
    skipped = {clip.path: features.broken[clip.id] for clip in clips if clip.id not in features.keys}
    return Search(trained.model, whole, embed_clips(trained.model, whole, features), skipped)
