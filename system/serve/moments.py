"""What the page asks of long recordings: where in each of them a sentence is heard."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from data_tools.manifest import Clip
from system.models.moment_score import MomentScore
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded, Embeddings
from system.moments.windows import By, Decoding, Grid
from system.runs.moments import Located, frame_series, require_few_frames, score_of, windows_of
from system.runs.retrieve import embed_texts
from system.serve.search import Answer, Search, SearchQuery

# R recordings that are shown


class MomentSearch(Search):
    """Long recordings, embedded frame by frame, and the model that says where a sentence is heard.

    Recordings are ranked by the model's score of a whole recording, the log odds that the sentence is heard in it at
    all, which is the sum over all labellings of its frames but the empty one: one pass over the frames of the pool.
    Windows are decoded for those that are shown, as the model's rank entry says.
    """

    def __init__(
        self,
        model: RetrievalModel,
        clips: Sequence[Clip],
        embedded: Embeddings,
        skipped: Mapping[str, str] = MappingProxyType({}),
        *,
        grid: Grid,
        score: MomentScore | None = None,
        by: By = "posterior",
        decoding: Decoding | None = None,
    ) -> None:
        """embedded: ragged series. grid: when their frames are heard. score: that windows are found by; None: the
        model's own. by, decoding: as of windows_of. KitError for a recording whose windows are too many to be
        compared."""
        self._by: By = by
        self._score = score or score_of(model)
        self._decoding = decoding or Decoding()
        self._grid = grid
        require_few_frames(embedded.lengths.tolist() if embedded.lengths is not None else [], [c.path for c in clips])
        super().__init__(model, clips, embedded, skipped)

    def answer(self, wanted: Sequence[SearchQuery]) -> list[Answer]:
        """As Search.answer, every hit with where it is heard."""
        answers = []
        for query, found in zip(wanted, super().answer(wanted), strict=True):
            if found.hits:
                located = self.located(query.text, [hit.row for hit in found.hits])
                hits = [hit._replace(located=one) for hit, one in zip(found.hits, located, strict=True)]
                found = found._replace(hits=hits)
            answers.append(found)
        return answers

    @property
    def meaning(self) -> dict[str, str]:
        """What the numbers of a recording's frames and windows are, in words."""
        windows = {
            "overlap": "the probability that a moment has an IoU of 0.7 or more with it",
            "posterior": "its probability to be one whole moment",
            "thresholds": "the mean of its frames less that of all others",
        }
        return {"frames": "the probability of every frame to be in a moment", "windows": windows[self._by]}

    def located(self, text: str, rows: Sequence[int]) -> list[Located]:
        """Where a sentence is heard in these recordings, (R,) by their rows in the pool."""
        recordings, clips = [self.clips[row] for row in rows], self._pool.rows(list(rows))
        one = embed_texts(self.model, [text])
        captions = Embedded(one.values.expand(len(rows), *one.values.shape[1:]))
        series = frame_series(clips, recordings, list(range(len(rows))), captions, self._grid)
        return windows_of(self._score, series, self._by, self._decoding)
