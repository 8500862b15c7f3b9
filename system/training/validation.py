"""Validation after an epoch, and detection of collapse.

Embeddings that are nearly equal have collapsed.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment
from submission.editions import get_moments_edition
from submission.metrics.moments import score_moments
from submission.metrics.retrieval import average_precision, recall
from submission.metrics.summary import metric_values
from submission.ordering import relevant_ranks
from system.batches.items import Item, make_items, make_moment_items
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


class Validation:
    """Validates a model by the metrics of a subclass."""

    def __init__(self, stage: schema.Stage, features: Features, precision: str) -> None:
        """Keep the settings.

        Args:
            precision: Of embeddings; scores are in float32.
        """
        self.stage, self.features, self.precision = stage, features, precision
        self.clips: list[Clip] = []
        self.texts: list[str] = []

    def __call__(self, model: RetrievalModel) -> tuple[dict[str, float], dict[str, float]]:
        """Return the monitored metrics, and the embeddings' spreads."""
        with in_precision(model.device, self.precision):
            clips = embed_clips(model, self.clips, self.features).float()
            captions = embed_texts(model, self.texts).float()
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.inference_mode(), torch.random.fork_rng(devices):
            values = self.metrics(model, clips, captions)
        return {name: values[name] for name in self.stage.monitor.metrics}, spreads(clips, captions)

    def metrics(self, model: RetrievalModel, clips: Embeddings, captions: Embedded) -> dict[str, float]:
        raise NotImplementedError


class ClipValidation(Validation):
    """Validation by loss, m1, m2, mAP and recalls.

    mAP and recalls are computed over all captions and clips. Loss, m1 and m2 (see `accuracies`) are means over batches
    of the size of training batches. The batches are the same in every epoch, and so are random negatives. The order of
    the clips is random, but fixed. A smaller last batch is left out, unless it is the only batch, since m1 and m2
    depend on the number of items. If a training item is a clip, a batch has the first `captions_per_clip` captions of
    each clip.
    """

    def __init__(
        self,
        clips: Sequence[Clip],
        stage: schema.Stage,
        features: Features,
        relevance: Relevance | None = None,
        teachers: Teachers | None = None,
        precision: str = "float32",
    ) -> None:
        """Collect the clips and captions to validate on."""
        super().__init__(stage, features, precision)
        self.clips = list({clip.id: clip for clip in clips if clip.captions}.values())
        if len(self.clips) < 2:
            raise KitError(f"monitor.data {stage.monitor.data}: fewer than two clips with captions; add clips")
        items, size, count = make_items(self.clips, stage.unit), stage.batch_size, stage.captions_per_clip
        full = len(items) // size * size or len(items)
        chosen = [items[i] for i in np.random.default_rng(0).permutation(len(items))[:full]]
        if isinstance(count, int):
            chosen = [Item(item.clip, item.captions[:count], item.numbers[:count]) for item in chosen]
        groups = [chosen[i : i + size] for i in range(0, full, size)]
        self.batches = [(group, make_batch_without_audio(group, features, relevance, teachers)) for group in groups]
        self.texts = [caption for clip in self.clips for caption in clip.captions]
        self.clip_row = {clip.id: row for row, clip in enumerate(self.clips)}
        self.text_row = {text: row for row, text in enumerate(self.texts)}

    def metrics(self, model: RetrievalModel, clips: Embeddings, captions: Embedded) -> dict[str, float]:
        found = []
        for number, (items, batch) in enumerate(self.batches):
            seed_generators(number)  # of the random negatives
            of_batch = clips.rows([self.clip_row[item.clip.id] for item in items])
            texts = captions.rows([self.text_row[text] for text in batch.captions])
            scores = model.batch_scores(batch.to(model.device), of_batch, texts)
            found.append((float(terms.total_loss(scores, self.stage.losses)), *accuracies(scores)))
        means = [sum(value / len(found) for value in values) for values in zip(*found, strict=True)]
        values = dict(zip(("loss", "m1", "m2"), means, strict=True))
        if OF_ALL & set(self.stage.monitor.metrics):
            matrix = np.concatenate(list(model.score_blocks(captions, clips)))
            relevant = [[row] for row, clip in enumerate(self.clips) for _ in clip.captions]
            ranks, counts = relevant_ranks(matrix, relevant, list(self.clip_row)), [1] * len(relevant)
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

    def __init__(
        self,
        watched: Mapping[str, tuple[Sequence[Clip], Sequence[Moment]]],
        stage: schema.Stage,
        features: Features,
        precision: str = "float32",
    ) -> None:
        """Collect the moments to validate on.

        Args:
            watched: Clips and moments by data source.
        """
        super().__init__(stage, features, precision)
        self.items = [item for clips, moments in watched.values() for item in make_moment_items(clips, moments)]
        if not self.items:
            raise KitError(f"monitor.data {stage.monitor.data}: no moment of a readable recording; repair these")
        self.clips = list({item.clip.id: item.clip for item in self.items}.values())
        self.texts = [item.captions[0] for item in self.items]
        row = {clip.id: number for number, clip in enumerate(self.clips)}
        self.clip_of = [row[item.clip.id] for item in self.items]
        starts, size = range(0, len(self.items), stage.batch_size), stage.batch_size
        self.batches = [(i, make_batch_without_audio(self.items[i : i + size], features, None)) for i in starts]

    def metrics(self, model: RetrievalModel, clips: Embeddings, captions: Embedded) -> dict[str, float]:
        total, monitor = 0.0, self.stage.monitor
        for start, batch in self.batches:
            rows = list(range(start, start + len(batch.clip_keys)))
            of_batch = clips.rows([self.clip_of[row] for row in rows])
            scores = model.batch_scores(batch.to(model.device), of_batch, captions.rows(rows))
            total += float(terms.total_loss(scores, self.stage.losses)) * len(rows)
        values = {"loss": total / len(self.items)}
        if schema.OF_WINDOWS & set(monitor.metrics):
            series = frame_series(model, clips, self.clips, self.clip_of, captions, self.features.grids)
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
    vectors = embedded.values
    if isinstance(embedded, Ragged):
        vectors = torch.segment_reduce(vectors, "sum", lengths=embedded.lengths)
    elif embedded.lengths is not None:
        mask = length_mask(embedded.lengths, vectors.shape[1])
        vectors = torch.einsum("bld,bl->bd", vectors, mask.to(vectors.dtype))  # without a copy of all frames
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
