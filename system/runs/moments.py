"""When queries are heard in their recordings, by a trained model."""

import logging
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment
from system.features.build import Features
from system.models.moment_score import MomentScore, frames_of_queries
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded, Embeddings
from system.moments.two_state import frame_posteriors, log_likelihood, moment_posteriors
from system.moments.windows import Decoding, Found, Grid, best_windows, labels_of, threshold_windows
from system.runs.retrieve import embed_clips, embed_texts_together

# Q queries, T frames

TABLE = 1 << 23  # numbers of posteriors held at a time: 64 MiB in float64

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmbeddedMoments:
    """Q queries and the recordings in which they are looked for, embedded.

    clips: frames of the recordings. clip_of: by query, the number of its recording. captions: (Q,) of the queries.
    edges: by recording, (T + 1,) seconds, as Grid gives them. grid: of the frames.
    """

    clips: Embeddings
    clip_of: list[int]
    captions: Embedded
    edges: list[np.ndarray]
    grid: Grid

    def edges_of(self, query: int) -> np.ndarray:
        """(T + 1,) seconds of the query's recording."""
        return self.edges[self.clip_of[query]]


class Located(NamedTuple):
    """Where one query is heard. windows: best first. edges: (T + 1,) seconds of the frames. frames: (T,) probability
    that a frame is in a moment."""

    windows: list[Found]
    edges: np.ndarray
    frames: np.ndarray


def join_moments(
    clips: Embeddings, recordings: Sequence[Clip], clip_of: list[int], captions: Embedded, grid: Grid
) -> EmbeddedMoments:
    """Of embedded recordings and queries. KitError for recordings that are embedded as a whole."""
    if clips.lengths is None:
        raise KitError("moments need a series of frames, and this model gives one embedding a recording")
    sizes = clips.lengths.tolist()
    edges = [grid.edges(size, clip.seconds or math.inf) for size, clip in zip(sizes, recordings, strict=True)]
    return EmbeddedMoments(clips, clip_of, captions, edges, grid)


def embed_moments(
    model: RetrievalModel, recordings: Sequence[Clip], moments: Sequence[Moment], features: Features
) -> EmbeddedMoments:
    """The texts of moments, and `recordings`, in which they are looked for. KitError as of join_moments."""
    clips, row = embed_clips(model, recordings, features), {clip.id: number for number, clip in enumerate(recordings)}
    captions = embed_texts_together(model, [moment.text for moment in moments])
    (grid,) = features.grids.values()
    return join_moments(clips, recordings, [row[moment.clip] for moment in moments], captions, grid)


def windows_of(
    score: MomentScore, asked: EmbeddedMoments, by: Literal["posterior", "thresholds"], decoding: Decoding
) -> list[Located]:
    """The windows of Q queries.

    by: the probability that a window is one whole moment, which is its score, and the frames' posteriors; or thresholds
    on the frames, see threshold_windows, each frame alone.
    """
    found: dict[int, Located] = {}
    longest = max(len(edges) - 1 for edges in asked.edges)
    with torch.inference_mode():
        at_once = max(1, TABLE // longest**2)
        for queries, scores, lengths in frames_of_queries(score, asked.clips, asked.clip_of, asked.captions, at_once):
            scores, lengths = scores.double().cpu(), lengths.cpu()
            transitions = score.enter.double().cpu(), score.leave.double().cpu()
            if by == "posterior":
                tables = moment_posteriors(scores, lengths, *transitions).numpy()
                frames = frame_posteriors(scores, lengths, *transitions).numpy()
            else:
                frames = scores.sigmoid().numpy()
            for row, (query, size) in enumerate(zip(queries, lengths.tolist(), strict=True)):
                edges, here = asked.edges_of(query), frames[row, :size]
                if by == "posterior":
                    best = best_windows(tables[row, :size, :size], edges, decoding)
                    best = [window._replace(score=math.exp(window.score)) for window in best]
                else:
                    best = threshold_windows(here, edges, decoding)
                found[query] = Located(best, edges, here)
    return [found[query] for query in range(len(asked.clip_of))]


def fitted_score(score: MomentScore, asked: EmbeddedMoments, moments: Sequence[Moment]) -> MomentScore:
    """A score with the scale, offset and transitions under which known moments are the most likely, per frame. For a
    model that has never been trained on windows.

    By 200 steps of Adam at a rate of 0.1, from the values of `score`, which stays as it is. moments: of the queries.
    KitError for moments without windows.
    """
    if unknown := next((moment.id for moment in moments if moment.windows is None), None):
        raise KitError(f"the query {unknown} has no windows, so that nothing can be fitted to it; name other moments")
    score = deepcopy(score).train()
    clips, captions = _cloned(asked.clips), _cloned(asked.captions)
    batches = []
    for queries, _, lengths in frames_of_queries(score, clips, asked.clip_of, captions):
        labels = torch.zeros(len(queries), int(lengths.max()), dtype=torch.bool)
        for line, query, length in zip(labels, queries, lengths.tolist(), strict=True):
            line[:length] = torch.from_numpy(labels_of(moments[query].windows or [], length, asked.grid))
        batches.append((queries, labels.to(score.scale.device)))
    parameters = list(score.parameters())
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        for queries, labels in batches:
            part = clips.rows([asked.clip_of[query] for query in queries])
            scores, lengths = score.frames(part, captions.rows(queries))
            found = log_likelihood(scores, lengths, labels, score.enter, score.leave) / lengths
            (-found.sum() / len(moments)).backward()
        optimizer.step()
    log.info(
        "fitted to %s: scale %.2f, offset %.2f, enter %.2f, leave %.2f",
        counted(len(moments), "moment", ","), *(one.item() for one in parameters),
    )  # fmt: skip
    return score


def score_of(model: RetrievalModel) -> MomentScore:
    """KitError for a model that has no score of moments."""
    try:
        return model.moments
    except ValueError as error:
        raise KitError(f"{error}; train one with score moments") from None


def _cloned(embedded: Any) -> Any:
    """Outside of inference mode, so that gradients may be taken of what follows."""
    return type(embedded)(embedded.values.clone(), None if embedded.lengths is None else embedded.lengths.clone())
