"""When queries are heard in their recordings, by a trained model."""

import logging
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment
from system.batches.sampler import items_of_moments
from system.features.build import Features
from system.models.moment_score import MomentScore, frames_of_queries
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded, Embeddings
from system.moments.two_state import log_likelihood, moment_posteriors
from system.moments.windows import Decoding, Found, best_windows, labels_of, threshold_windows
from system.networks.layers import length_mask
from system.runs.retrieve import embed_clips, embed_texts_together

# Q queries, T frames

TABLE = 1 << 23  # numbers of posteriors held at a time: 64 MiB in float64

log = logging.getLogger(__name__)


def windows_of(
    model: RetrievalModel,
    clips: Embeddings,
    clip_of: list[int],
    captions: Embedded,
    asked: Sequence[Clip],
    features: Features,
    by: Literal["posterior", "thresholds"],
    decoding: Decoding,
) -> list[list[Found]]:
    """The windows of Q queries, best first.

    by: the probability that a window is one whole moment, which is its score; or thresholds on the frames, see
    threshold_windows. clips: embedded. clip_of: by query, the number of its clip. captions: (Q,) of the queries,
    embedded. asked: by query, its clip.

    KitError for a model that has no score of moments.
    """
    score = _score_of(model)
    (grid,) = features.grids.values()
    found: list[list[Found]] = [[] for _ in clip_of]
    with torch.inference_mode():
        longest = int(clips.lengths.max()) if clips.lengths is not None else 1
        at_once = max(1, TABLE // longest**2)
        for queries, scores, lengths in frames_of_queries(score, clips, clip_of, captions, at_once):
            scores, lengths = scores.double().cpu(), lengths.cpu()
            tables = None
            if by == "posterior":
                enter, leave = score.enter.double().cpu(), score.leave.double().cpu()
                tables = moment_posteriors(scores, lengths, enter, leave).numpy()
            frames = scores.sigmoid().masked_fill(~length_mask(lengths, scores.shape[1]), 0.0).numpy()
            for row, query in enumerate(queries):
                size = int(lengths[row])
                edges = grid.edges(size, asked[query].seconds or float(grid.edges(size, torch.inf)[-1]))
                if tables is None:
                    found[query] = threshold_windows(frames[row, :size], edges, decoding)
                else:
                    best = best_windows(tables[row, :size, :size], edges, decoding)
                    found[query] = [window._replace(score=math.exp(window.score)) for window in best]
    return found


def windows_of_moments(
    model: RetrievalModel,
    clips: Sequence[Clip],
    moments: Sequence[Moment],
    features: Features,
    by: Literal["posterior", "thresholds"],
    decoding: Decoding,
) -> list[list[Found]]:
    """The windows of every moment's text in its clip, which is one of `clips`; as of windows_of."""
    embedded, row = embed_clips(model, clips, features), {clip.id: number for number, clip in enumerate(clips)}
    captions = embed_texts_together(model, [moment.text for moment in moments])
    clip_of = [row[moment.clip] for moment in moments]
    asked = [clips[number] for number in clip_of]
    return windows_of(model, embedded, clip_of, captions, asked, features, by, decoding)


def fit_score(model: RetrievalModel, clips: Sequence[Clip], moments: Sequence[Moment], features: Features) -> None:
    """Set scale, offset and transitions of the model's score to those under which known moments are the most likely,
    per frame; nothing else of it changes. For a model that has never been trained on windows.

    By 200 steps of Adam at a rate of 0.1, from the values that it has. KitError for moments without windows.
    """
    items = items_of_moments(clips, moments)
    row = {clip.id: number for number, clip in enumerate(clips)}
    embedded = embed_clips(model, clips, features)
    captions = embed_texts_together(model, [item.captions[0] for item in items])
    (expert,) = features.banks
    batches = []
    for queries, _, lengths in frames_of_queries(_score_of(model), embedded, [row[i.clip.id] for i in items], captions):
        labels = torch.zeros(len(queries), int(lengths.max()), dtype=torch.bool)
        for line, query, length in zip(labels, queries, lengths.tolist(), strict=True):
            line[:length] = torch.from_numpy(labels_of(items[query].windows, length, features.grids[expert]))
        batches.append((queries, labels.to(model.device)))
    score = _score_of(model)
    parameters = list(score.parameters())
    embedded, captions = _cloned(embedded), _cloned(captions)
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        for queries, labels in batches:
            part = embedded.rows([row[items[query].clip.id] for query in queries])
            scores, lengths = score.frames(part, captions.rows(queries))
            found = log_likelihood(scores, lengths, labels, score.enter, score.leave) / lengths
            (-found.sum() / len(items)).backward()
        optimizer.step()
    log.info(
        "fitted to %s: scale %.2f, offset %.2f, enter %.2f, leave %.2f",
        counted(len(items), "moment", ","), *(one.item() for one in parameters),
    )  # fmt: skip


def _score_of(model: RetrievalModel) -> MomentScore:
    try:
        return model.moments
    except ValueError as error:
        raise KitError(f"{error}; train one with score moments") from None


def _cloned(embedded: Any) -> Any:
    """Outside of inference mode, so that gradients may be taken of what follows."""
    return type(embedded)(embedded.values.clone(), None if embedded.lengths is None else embedded.lengths.clone())
