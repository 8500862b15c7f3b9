"""Validate moments.

Validate a model on moments after an epoch: compute the loss, and the challenge's metrics of the found windows.
"""

from collections.abc import Mapping, Sequence

import torch

from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment
from submission.editions import get_moments_edition
from submission.metrics.moments import score_moments
from submission.metrics.summary import metric_values
from system.batches.items import make_moment_items, require_known_windows
from system.batches.loader import make_batch_without_audio
from system.compute.device import in_precision
from system.features.extract import Features
from system.losses import terms
from system.models.embeddings import Embedded, Embeddings
from system.models.retrieval import RetrievalModel
from system.moments.windows import Decoding
from system.ranking.embedding import embed_clips, embed_texts
from system.ranking.windows import find_windows, frame_series, require_short_recordings
from system.recipe import schema
from system.recipe.data import Data
from system.training.validation import spreads


def require_windows(recipe: schema.Recipe, data: Data) -> None:
    """Raise KitError if a stage trains or validates on moments whose windows are not known.

    The error is also raised if validation must find windows in recordings with too many frames.
    """
    for stage in recipe.stages.values():
        if stage.unit != "moment":
            continue
        for source in dict.fromkeys((*stage.train.data, *stage.monitor.data)):
            require_known_windows(data.moments[source])
        if schema.OF_WINDOWS & set(stage.monitor.metrics):
            for source in stage.monitor.data:
                require_short_recordings(data.moments[source], data.features)


class MomentValidation:
    """Validation by the loss, and by R1@0.5, R1@0.7 and mAP of the latest edition.

    The loss is the mean over batches, weighted by their number of items. Batches have the size of training batches,
    except for a smaller last batch. Their items are in the order of the moments file. Windows are found by the method
    in the stage's setting `monitor`.
    """

    def __init__(
        self,
        watched: Mapping[str, tuple[Sequence[Clip], Sequence[Moment]]],
        stage: schema.Stage,
        features: Features,
        precision: str = "float32",
    ) -> None:
        """Collect the moments to validate on. watched: Dict from data source to (clips, moments).

        precision: Precision for computing embeddings. Scores are always in float32.
        """
        self.stage, self.features, self.precision = stage, features, precision
        self.items = [item for clips, moments in watched.values() for item in make_moment_items(clips, moments)]
        if not self.items:
            raise KitError(
                f"validation needs at least one moment of a readable recording, but {stage.monitor.data} have none; "
                "repair the recordings, or change monitor.data"
            )
        self.clips = list({item.clip.id: item.clip for item in self.items}.values())
        row = {clip.id: number for number, clip in enumerate(self.clips)}
        self.clip_of = [row[item.clip.id] for item in self.items]
        self.texts = [item.captions[0] for item in self.items]
        size = stage.batch_size
        starts = range(0, len(self.items), size)
        self.batches = [(i, make_batch_without_audio(self.items[i : i + size], features, None)) for i in starts]

    def __call__(self, model: RetrievalModel) -> tuple[dict[str, float], dict[str, float]]:
        """Validate a model; return the monitored metrics, and how much the embeddings differ."""
        with in_precision(model.device, self.precision):
            clips = embed_clips(model, self.clips, self.features).float()
            captions = embed_texts(model, self.texts).float()
        return self._compute_metrics(model, clips, captions), spreads(clips, captions)

    @torch.inference_mode()
    def _compute_metrics(self, model: RetrievalModel, clips: Embeddings, captions: Embedded) -> dict[str, float]:
        """Compute the monitored metrics. clips: Embeddings of recordings. captions: Embeddings of moments' texts."""
        total = 0.0
        for start, batch in self.batches:
            rows = list(range(start, start + len(batch.clip_keys)))
            of_batch = clips.rows([self.clip_of[row] for row in rows])
            scores = model.batch_scores(batch.to(model.device), of_batch, captions.rows(rows))
            total += float(terms.total_loss(scores, self.stage.losses)) * len(rows)
        values = {"loss": total / len(self.items)}
        monitor = self.stage.monitor
        if schema.OF_WINDOWS & set(monitor.metrics):
            series = frame_series(model, clips, self.clips, self.clip_of, captions, self.features.grids)
            decoding = monitor.decoding or Decoding()
            found = find_windows([(model.moments, series)], decoding, monitor.windows or "overlap")
            predictions = {str(number): [list(window) for window in one.windows] for number, one in enumerate(found)}
            truth = {str(number): [list(window) for window in item.windows] for number, item in enumerate(self.items)}
            values |= metric_values(score_moments(predictions, truth), get_moments_edition().metrics)
        return {name: values[name] for name in monitor.metrics}
