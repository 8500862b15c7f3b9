"""Validation after an epoch: the loss and the paper's m1 and m2 over fixed batches, mAP@10 and recalls over
everything."""

import numpy as np
import torch

from data_tools.errors import KitError
from data_tools.manifest import Clip
from submission.metrics.retrieval import average_precision, recall
from submission.ordering import relevant_ranks
from system.batches.collate import without_audio
from system.batches.sampler import Item, items_of
from system.features.build import Features
from system.losses import terms
from system.losses.relevance.relax import Relevance
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded
from system.recipe import schema
from system.runs.retrieve import embed_clips, embed_texts
from system.training.collapse import alike, watch


class Validation:
    """Loss, m1 and m2 over batches of the training size, mAP@10 and the sum of recalls over all captions and clips;
    always the same batches, and the same random negatives.

    Batches take the clips in one fixed random order; a last smaller one is left out unless it is the only one, since
    m1 and m2 depend on the number of items. A batch of clips uses the first `captions_per_clip` captions.
    """

    def __init__(
        self, clips: list[Clip], stage: schema.Stage, features: Features, relevance: Relevance | None = None
    ) -> None:
        self.clips = {clip.id: clip for clip in clips if clip.captions}
        if len(self.clips) < 2:
            raise KitError(
                f"validation needs at least two clips with captions; {stage.monitor.data} have {len(self.clips)}"
            )
        self.stage, self.features = stage, features
        items = items_of(list(self.clips.values()), stage.unit)
        order = np.random.default_rng(0).permutation(len(items))
        full = len(items) // stage.batch_size * stage.batch_size or len(items)
        count = stage.captions_per_clip
        chosen = [items[i] for i in order[:full]]
        if isinstance(count, int):
            chosen = [Item(item.clip, item.captions[:count]) for item in chosen]
        groups = [chosen[i : i + stage.batch_size] for i in range(0, full, stage.batch_size)]
        self.batches = [(group, without_audio(group, features, relevance)) for group in groups]
        self.texts = [caption for clip in self.clips.values() for caption in clip.captions]

    def __call__(self, model: RetrievalModel) -> tuple[dict[str, float], dict[str, float]]:
        """The monitored metrics, and what the collapse watch sees."""
        clips = embed_clips(model, list(self.clips.values()), self.features)
        captions = embed_texts(model, self.texts)
        with torch.inference_mode(), torch.random.fork_rng():
            torch.manual_seed(0)
            values, captions_alike = self._of_batches(model, clips, captions)
        if {"mAP@10", "recall_sum"} & set(self.stage.monitor.metrics):
            values |= self._of_everything(model, clips, captions)
        return {name: values[name] for name in self.stage.monitor.metrics}, watch(clips, captions, captions_alike)

    def _of_batches(self, model: RetrievalModel, clips: Embedded, captions: Embedded) -> tuple[dict[str, float], float]:
        """Means over the batches of loss, m1 and m2, and of the share of captions that all clips score alike."""
        sums = dict.fromkeys(("loss", "m1", "m2", "alike"), 0.0)
        clip_row = {clip_id: row for row, clip_id in enumerate(self.clips)}
        text_row = {text: row for row, text in enumerate(self.texts)}
        for items, batch in self.batches:
            scores = model.batch_scores(
                batch.to(clips.values.device),
                clips.rows([clip_row[item.clip.id] for item in items]),
                captions.rows([text_row[text] for text in batch.captions]),
            )
            loss = float(terms.total(scores, self.stage.losses))
            for name, value in zip(sums, (loss, *terms.accuracies(scores), alike(scores.each)), strict=True):
                sums[name] += value / len(self.batches)
        captions_alike = sums.pop("alike")
        return sums, captions_alike

    def _of_everything(self, model: RetrievalModel, clips: Embedded, captions: Embedded) -> dict[str, float]:
        with torch.inference_mode():
            matrix = model.score_matrix(captions, clips)
        owners = [[row] for row, clip in enumerate(self.clips.values()) for _ in clip.captions]
        ranks, ones = relevant_ranks(matrix, owners, list(self.clips)), np.ones(len(owners), dtype=np.int64)
        recalls = [float(recall(ranks, ones, k).mean()) for k in (1, 5, 10)]
        return {"mAP@10": float(average_precision(ranks, ones).mean()), "recall_sum": sum(recalls)}
