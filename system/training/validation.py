"""Validation after an epoch, and detection of collapse.

Embeddings that are nearly equal have collapsed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from data_tools.errors import KitError
from submission.editions import get_moments_edition
from submission.metrics.moments import score_moments
from submission.metrics.retrieval import average_precision, recall
from submission.metrics.summary import metric_values
from submission.ordering import relevant_ranks
from system.batches.items import Item
from system.batches.loader import Teachers, make_batch_without_audio
from system.devices import in_precision, seed_generators
from system.features.extract import Features
from system.losses import terms
from system.losses.cider import Relevance
from system.losses.terms import BatchScores
from system.models.batch import Embedded, Embeddings, Ragged
from system.models.retrieval import RetrievalModel
from system.moments.labellings import length_mask
from system.moments.windows import Decoding
from system.ranking.embedding import embed_clips, embed_texts
from system.ranking.windows import find_windows, frame_series
from system.recipe import schema

ALIKE = 1e-5  # spread below which embeddings count as equal: a mean cosine above 0.99999
OF_ALL = {"mAP@10", "mAP@16", "recall_sum"}  # metrics over all captions and clips


class Validation(ABC):
    """Validates a model by the metrics of a subclass."""

    fewest, lack = 1, "no moment of a readable recording; repair these"  # clips, and what to do without them

    def __init__(
        self,
        items: Sequence[Item],
        stage: schema.Stage,
        features: Features,
        relevance: Relevance | None = None,
        teachers: Teachers | None = None,
        precision: str = "float32",
    ) -> None:
        """Divide the items into batches.

        Args:
            precision: Of embeddings; scores are in float32.
        """
        self.items, self.stage, self.features, self.precision = items, stage, features, precision
        self.clips = list({item.clip.id: item.clip for item in items}.values())
        if len(self.clips) < self.fewest:
            raise KitError(f"monitor.data {stage.monitor.data}: {self.lack}")
        row = {clip.id: number for number, clip in enumerate(self.clips)}
        self.clip_of = [row[item.clip.id] for item in items]
        self.texts = [caption for item in items for caption in item.captions]
        first = np.cumsum([0, *(len(item.captions) for item in items)]).tolist()  # rows of items' texts
        order, size, most = self.order(len(items)), stage.batch_size, stage.captions_per_clip
        count = most if isinstance(most, int) else None
        self.batches = []  # with the rows of their clips and captions
        for rows in (order[start : start + size] for start in range(0, len(order), size)):
            group = [
                items[i]._replace(captions=items[i].captions[:count], numbers=items[i].numbers[:count]) for i in rows
            ]
            texts = [first[i] + n for i, item in zip(rows, group, strict=True) for n in range(len(item.captions))]
            batch = make_batch_without_audio(group, features, relevance, teachers)
            self.batches.append((batch, [self.clip_of[i] for i in rows], texts))

    def order(self, count: int) -> list[int]:
        """Return the items of the batches."""
        return list(range(count))

    def __call__(self, model: RetrievalModel) -> tuple[dict[str, float], dict[str, float]]:
        """Return the monitored metrics, and the embeddings' spreads."""
        with in_precision(model.device, self.precision):
            clips = embed_clips(model, self.clips, self.features).float()
            captions = embed_texts(model, self.texts).float()
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.inference_mode(), torch.random.fork_rng(devices):
            values = self.metrics(model, clips, captions)
        return {name: values[name] for name in self.stage.monitor.metrics}, spreads(clips, captions)

    def batch_scores(self, model: RetrievalModel, clips: Embeddings, captions: Embedded) -> Iterator[BatchScores]:
        """Score each batch; its random negatives are always the same."""
        for number, (batch, of_clips, of_texts) in enumerate(self.batches):
            seed_generators(number)
            yield model.batch_scores(batch.to(model.device), clips.rows(of_clips), captions.rows(of_texts))

    @abstractmethod
    def metrics(self, model: RetrievalModel, clips: Embeddings, captions: Embedded) -> dict[str, float]:
        """Return the metrics that can be monitored."""


class ClipValidation(Validation):
    """Validation by loss, m1, m2, mAP and recalls.

    mAP and recalls are computed over all captions and clips. Loss, m1 and m2 (see `accuracies`) are means over batches
    of the size of training batches. The batches are the same in every epoch, and so are random negatives. The order of
    the clips is random, but fixed. A smaller last batch is left out, unless it is the only batch, since m1 and m2
    depend on the number of items. If a training item is a clip, a batch has the first `captions_per_clip` captions of
    each clip.
    """

    fewest, lack = 2, "fewer than two clips with captions; add clips"

    def __init__(self, items: Sequence[Item], *rest: Any) -> None:
        """Leave out the items of a clip that is in several sources."""
        super().__init__(list({(item.clip.id, item.numbers): item for item in items}.values()), *rest)

    def order(self, count: int) -> list[int]:
        full = count // self.stage.batch_size * self.stage.batch_size or count
        found: list[int] = np.random.default_rng(0).permutation(count)[:full].tolist()
        return found

    def metrics(self, model: RetrievalModel, clips: Embeddings, captions: Embedded) -> dict[str, float]:
        found = [
            (float(terms.total_loss(scores, self.stage.losses)), *accuracies(scores))
            for scores in self.batch_scores(model, clips, captions)
        ]
        means = [sum(value / len(found) for value in values) for values in zip(*found, strict=True)]
        values = dict(zip(("loss", "m1", "m2"), means, strict=True))
        if OF_ALL & set(self.stage.monitor.metrics):
            matrix = np.concatenate(list(model.score_blocks(captions, clips)))
            relevant = [[row] for row, clip in enumerate(self.clips) for _ in clip.captions]
            ranks, counts = relevant_ranks(matrix, relevant, [clip.id for clip in self.clips]), [1] * len(relevant)
            values |= {f"mAP@{k}": float(average_precision(ranks, counts, k).mean()) for k in (10, 16)}
            values["recall_sum"] = sum(float(recall(ranks, counts, k).mean()) for k in (1, 5, 10))
        return values


def accuracies(batch: BatchScores) -> tuple[float, float]:
    """Return m1 and m2 of a batch.

    m1 is the share of clips, and m2 the share of captions, whose own pair has the highest score in the batch.

    Source: "Take it easy" (2022), section 4. Deviation: a tie counts as a miss; the paper's s_ii = max_j s_ij counts
    it as a hit, so that a model with equal scores would have the accuracy 1.
    """
    matching, others = batch.scores.diagonal(), batch.scores.masked_fill(batch.same_clip, -math.inf)
    return tuple(float((matching > others.amax(dim)).float().mean()) for dim in (1, 0))  # type: ignore[return-value]


class MomentValidation(Validation):
    """Validation by loss, R1@0.5, R1@0.7 and mAP.

    The metrics are those of the latest edition. The loss is the mean over batches, weighted by their number of items.
    Batches have the size of training batches, except for a smaller last batch. Their items are in the order of the
    moments file. Windows are found by the method in the stage's setting `monitor`.
    """

    def metrics(self, model: RetrievalModel, clips: Embeddings, captions: Embedded) -> dict[str, float]:
        total, monitor = 0.0, self.stage.monitor
        for (_, rows, _), scores in zip(self.batches, self.batch_scores(model, clips, captions), strict=True):
            total += float(terms.total_loss(scores, self.stage.losses)) * len(rows)
        values = {"loss": total / len(self.items)}
        if schema.OF_WINDOWS & set(monitor.metrics):
            series = frame_series(model, clips, self.clips, self.clip_of, captions)
            decoding = monitor.decoding or Decoding()
            located = find_windows([(model.moments, series)], decoding, monitor.windows or "overlap")
            found = {str(number): [list(window) for window in one.windows] for number, one in enumerate(located)}
            truth = {str(number): [list(window) for window in item.windows] for number, item in enumerate(self.items)}
            values |= metric_values(score_moments(found, truth), get_moments_edition().metrics)
        return values


def direction_spread(embedded: Embeddings) -> float:
    """Return 1 - mean cosine of all pairs of embeddings.

    The result is 0 if all vectors are equal, and about 1 if their directions are random. A vector and itself count as a
    pair. A series is replaced by the mean of its frames, without padding. Vectors of zeros count as equal.
    """
    if isinstance(embedded, Ragged):
        vectors = torch.stack([series.sum(0) for series in embedded.series])
    elif embedded.lengths is None:
        vectors = embedded.values
    else:
        mask = length_mask(embedded.lengths, embedded.values.shape[1])
        vectors = torch.einsum("bld,bl->bd", embedded.values, mask.to(embedded.values.dtype))  # no copy of all frames
    units = F.normalize(vectors.cpu().double(), dim=-1)  # not every GPU computes in float64
    if not len(units) or not units.any():
        return 0.0
    return float(1 - units.mean(0).square().sum())


def spreads(clips: Embeddings, captions: Embedded) -> dict[str, float]:
    """Return the spread of the directions of clips and captions."""
    return {"spread_of_clips": direction_spread(clips), "spread_of_captions": direction_spread(captions)}


def collapse_messages(found: dict[str, float]) -> list[str]:
    """Say which embeddings have collapsed."""
    return [
        f"all embeddings are nearly equal ({name.replace('_', ' ')}: {value:.1e})"
        for name, value in found.items()
        if value < ALIKE
    ]
