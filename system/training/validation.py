"""Validation after an epoch, and detection of collapse.

The loss and the accuracies m1 and m2 are computed over fixed batches: m1 is the share of clips, and m2 the share of
captions, whose own pair has the highest score in the batch. mAP and recalls are computed over all captions and clips. A
model has collapsed if most embeddings are equal or zero, or if all clips have the same score for most captions.
"""

import numpy as np
import torch
import torch.nn.functional as F

from data_tools.errors import KitError
from data_tools.manifest import Clip
from submission.metrics.retrieval import average_precision, recall
from submission.ordering import relevant_ranks, sizes
from system.batches.items import Item, make_items
from system.batches.loader import Teachers, make_batch_without_audio
from system.compute.device import in_precision, seed_generators
from system.features.extract import Features
from system.losses import terms
from system.losses.cider import Relevance
from system.losses.diagnostics import accuracies
from system.models.embeddings import Embedded, Embeddings, Ragged
from system.models.retrieval import RetrievalModel
from system.moments.labellings import length_mask
from system.ranking.embedding import embed_clips, embed_texts
from system.recipe import schema

ALIKE = 1e-5  # spread below which embeddings count as equal: a mean cosine above 0.99999
ZEROS = 0.5  # share of zero vectors, or of captions with equal scores for all clips, above which a model has collapsed


class Validation:
    """Validation by the loss, m1, m2, mAP@10, mAP@16 and the sum of recalls.

    m1 is the share of clips, and m2 the share of captions, whose own pair has the highest score in the batch.
    Loss, m1 and m2 are means over batches. The batches have the size of training batches. They are the same in every
    epoch, and so are random negatives. The order of the clips is random, but fixed. A smaller last batch is left out,
    unless it is the only batch, since m1 and m2 depend on the number of items. If a training item is a clip, a batch
    has the first `captions_per_clip` captions of each clip.
    mAP and recalls are computed over all captions and clips.
    """

    def __init__(
        self,
        clips: list[Clip],
        stage: schema.Stage,
        features: Features,
        relevance: Relevance | None = None,
        teachers: Teachers | None = None,
        precision: str = "float32",
    ) -> None:
        """Collect the clips and captions to validate on. precision: Precision of embeddings; scores are in float32."""
        self.precision = precision
        self.clips = {clip.id: clip for clip in clips if clip.captions}
        if len(self.clips) < 2:
            raise KitError(
                f"validation needs at least two clips with captions, but {stage.monitor.data} have {len(self.clips)}; "
                "add clips, or change monitor.data"
            )
        self.stage, self.features = stage, features
        items = make_items(list(self.clips.values()), stage.unit)
        order = np.random.default_rng(0).permutation(len(items))
        full = len(items) // stage.batch_size * stage.batch_size or len(items)
        count = stage.captions_per_clip
        chosen = [items[i] for i in order[:full]]
        if isinstance(count, int):
            chosen = [Item(item.clip, item.captions[:count], item.numbers[:count]) for item in chosen]
        groups = [chosen[i : i + stage.batch_size] for i in range(0, full, stage.batch_size)]
        self.batches = [(group, make_batch_without_audio(group, features, relevance, teachers)) for group in groups]
        self.texts = [caption for clip in self.clips.values() for caption in clip.captions]
        self.relevant = [[row] for row, clip in enumerate(self.clips.values()) for _ in clip.captions]

    def __call__(self, model: RetrievalModel) -> tuple[dict[str, float], dict[str, float]]:
        """Validate a model; return the monitored metrics, and numbers that show whether embeddings have collapsed."""
        with in_precision(model.device, self.precision):
            clips = embed_clips(model, list(self.clips.values()), self.features).float()
            captions = embed_texts(model, self.texts).float()
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.inference_mode(), torch.random.fork_rng(devices):
            values, captions_alike = self._metrics_of_batches(model, clips, captions)
        if {"mAP@10", "mAP@16", "recall_sum"} & set(self.stage.monitor.metrics):
            values |= self._metrics_of_all(model, clips, captions)
        found: dict[str, float] = {name: values[name] for name in self.stage.monitor.metrics}
        return found, collapse_diagnostics(clips, captions, captions_alike)

    def _metrics_of_batches(
        self, model: RetrievalModel, clips: Embeddings, captions: Embedded
    ) -> tuple[dict[str, float], float]:
        """Return the means of loss, m1 and m2 over batches, and the share of captions with one score for all clips.

        The metric m1 is the share of clips, and m2 the share of captions, whose own pair scores highest in the batch.
        A caption has equal scores if all clips of its batch have the same score for it.
        """
        batch_values = []
        clip_row = {clip_id: row for row, clip_id in enumerate(self.clips)}
        text_row = {text: row for row, text in enumerate(self.texts)}
        for number, (items, batch) in enumerate(self.batches):
            seed_generators(number)  # of the random negatives
            scores = model.batch_scores(
                batch.to(clips.values.device),
                clips.rows([clip_row[item.clip.id] for item in items]),
                captions.rows([text_row[text] for text in batch.captions]),
            )
            loss = float(terms.total_loss(scores, self.stage.losses))
            batch_values.append((loss, *accuracies(scores), share_of_equal_scores(scores.scores_by_caption)))
        means = [sum(value / len(batch_values) for value in values) for values in zip(*batch_values, strict=True)]
        return dict(zip(("loss", "m1", "m2"), means, strict=False)), means[3]

    def _metrics_of_all(self, model: RetrievalModel, clips: Embeddings, captions: Embedded) -> dict[str, float]:
        """Compute mAP@10, mAP@16 and the sum of recalls over all captions and clips."""
        with torch.inference_mode():
            matrix = np.concatenate(list(model.score_blocks(captions, clips)))
        ranks, counts = relevant_ranks(matrix, self.relevant, list(self.clips)), sizes(self.relevant)
        recalls = [float(recall(ranks, counts, k).mean()) for k in (1, 5, 10)]
        found = {f"mAP@{k}": float(average_precision(ranks, counts, k).mean()) for k in (10, 16)}
        return found | {"recall_sum": sum(recalls)}


def direction_spread(embedded: Embeddings) -> float:
    """Return how much the directions of embeddings differ: 1 - mean cosine of all pairs.

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


def share_of_zeros(embedded: Embeddings) -> float:
    """Return the share of embeddings whose values are all 0, within 1e-6.

    For series of frames, the result is the share of such frames; padding is not counted.
    """
    largest = torch.linalg.vector_norm(embedded.values, torch.inf, dim=-1)
    if isinstance(embedded, Embedded) and embedded.lengths is not None:
        largest = largest[length_mask(embedded.lengths, largest.shape[1])]
    return float((largest <= 1e-6).float().mean())


def share_of_equal_scores(scores: torch.Tensor) -> float:
    """Return the share of captions whose scores are the same for all clips, within 1e-6.

    The clamped scores of the kind frame_word may all be 0 although the embeddings differ.
    scores: (B, N) scores of B clips (rows) against N captions (columns).
    """
    return float((scores.amax(0) - scores.amin(0) <= 1e-6).float().mean())


def collapse_diagnostics(
    clips: Embeddings, captions: Embedded, captions_alike: float | None = None
) -> dict[str, float]:
    """Return a dict from name to number, with numbers that show whether embeddings have collapsed.

    The numbers are, for clips and for captions, the spread of the embeddings' directions and the share of embeddings
    that are zero. captions_alike: Share of captions with equal scores for all clips; added to the dict if not None.
    """
    diagnostics = {
        "spread_of_clips": direction_spread(clips),
        "zeros_of_clips": share_of_zeros(clips),
        "spread_of_captions": direction_spread(captions),
        "zeros_of_captions": share_of_zeros(captions),
    }
    return diagnostics if captions_alike is None else diagnostics | {"captions_alike": captions_alike}


def collapse_messages(diagnostics: dict[str, float]) -> list[str]:
    """Return a message for each sign that the model has collapsed; an empty list if it has not collapsed.

    diagnostics: The result of collapse_diagnostics.
    """
    reasons = [
        f"most embeddings of {side} are equal or zero (spread {diagnostics[f'spread_of_{side}']:.1e}, "
        f"{100 * diagnostics[f'zeros_of_{side}']:.0f} % zeros)"
        for side in ("clips", "captions")
        if diagnostics[f"spread_of_{side}"] < ALIKE or diagnostics[f"zeros_of_{side}"] > ZEROS
    ]
    if diagnostics.get("captions_alike", 0.0) > ZEROS:
        reasons.append(f"all clips have the same score for {100 * diagnostics['captions_alike']:.0f} % of captions")
    return reasons
