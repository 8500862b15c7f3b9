"""What the page asks of long recordings: where in each of them a sentence is heard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch

from data_tools.manifest import Clip
from system.features.build import Features
from system.models.moment_score import frames_of_queries
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded, Embeddings
from system.moments.two_state import frame_posteriors
from system.moments.windows import Decoding, Found, Grid
from system.runs.moments import windows_of
from system.runs.retrieve import embed_texts
from system.serve.search import Answer, Search, SearchQuery

# R recordings that are shown, T frames of one

FRAMES = 64  # recordings whose frames are looked at together


@dataclass(frozen=True)
class Timeline:
    """Where a sentence is heard in a recording. windows: best first. edges: (T + 1,) seconds of its frames.
    probabilities: (T,) that a frame is in a moment, in [0, 1]."""

    windows: list[Found]
    edges: np.ndarray
    probabilities: np.ndarray


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
        by: Literal["posterior", "thresholds"] = "posterior",
        decoding: Decoding | None = None,
    ) -> None:
        """embedded: ragged series. grid: when their frames are heard. by, decoding: as of windows_of."""
        self._by: Literal["posterior", "thresholds"] = by
        self._decoding = decoding or Decoding()
        self._features = Features({}, grids={"": grid})
        super().__init__(model, clips, embedded, skipped)

    def answer(self, wanted: Sequence[SearchQuery]) -> list[Answer]:
        """As Search.answer, every hit with where it is heard."""
        answers = []
        for query, found in zip(wanted, super().answer(wanted), strict=True):
            if found.hits:
                timelines = self.timelines(query.text, [hit.row for hit in found.hits])
                hits = [hit._replace(timeline=one) for hit, one in zip(found.hits, timelines, strict=True)]
                found = found._replace(hits=hits)
            answers.append(found)
        return answers

    @property
    def meaning(self) -> dict[str, str]:
        """What the numbers of a recording's frames and windows are, in words."""
        of_posterior = "its probability to be one whole moment"
        return {
            "frames": "the probability of every frame to be in a moment",
            "windows": of_posterior if self._by == "posterior" else "the mean of its frames less that of all others",
        }

    def timelines(self, text: str, rows: Sequence[int]) -> list[Timeline]:
        """Where a sentence is heard in these recordings, (R,) by their rows in the pool."""
        asked = [self.clips[row] for row in rows]
        clips, numbers = self._pool.rows(list(rows)), list(range(len(rows)))
        one = embed_texts(self.model, [text])
        captions = Embedded(one.values.expand(len(rows), *one.values.shape[1:]))
        windows = windows_of(self.model, clips, numbers, captions, asked, self._features, self._by, self._decoding)
        found: dict[int, Timeline] = {}
        for row, probabilities in self._frames(clips, captions).items():
            edges = _edges(self._features.grids[""], len(probabilities), asked[row].seconds)
            found[row] = Timeline(windows[row], edges, probabilities)
        return [found[row] for row in numbers]

    def _frames(self, clips: Embeddings, captions: Embedded) -> dict[int, np.ndarray]:
        """By recording, (T,) probabilities of its frames: posteriors, or those that thresholds are held against."""
        score, found = self.model.moments, {}
        with torch.inference_mode():
            for rows, scores, lengths in frames_of_queries(score, clips, list(range(clips.size)), captions, FRAMES):
                scores = scores.double()
                if self._by == "posterior":
                    values = frame_posteriors(scores, lengths, score.enter.double(), score.leave.double())
                else:
                    values = scores.sigmoid()
                for row, line, length in zip(rows, values.cpu().numpy(), lengths.tolist(), strict=True):
                    found[row] = line[:length]
        return found


def _edges(grid: Grid, frames: int, seconds: float | None) -> np.ndarray:
    return grid.edges(frames, seconds or float(grid.edges(frames, np.inf)[-1]))
