"""Networks that hear segments of a fixed length, trained or frozen, with an embedding behind them."""

from pathlib import Path

import torch
from torch import nn

from data_tools.errors import KitError
from system.compute.device import suited_to
from system.experts.waveform import FULL_SCALE
from system.models.audio.encoder import AudioEncoder
from system.models.audio.segmented import Segmented
from system.models.audio.segments import SegmentAttention, SegmentMean, cut, segmented
from system.models.batch import Series
from system.models.similarity import Embedded
from system.networks.layers import mlp

# B clips, S segments of all of them, N samples, D values

SEGMENTS_AT_ONCE = {"cpu": 4, "cuda": 64}  # in evaluation


class SegmentedEncoder(AudioEncoder):
    """16-bit waves -> segments -> network -> pooled over segments -> one linear layer, or two; see segmented.py.

    The network hears each segment by itself. Every segment is filled with silence to the same length, so that in
    evaluation an embedding does not depend on the others. Draws of training are the same for all that is embedded at
    once: a batch, or each part of one where gradients are cached.
    Source: github.com/CPJKU/dcase2025_task6_baseline. Deviations: only segments with something of the clip are computed
    (there, always three, and the others left out of the mean); where 16 bits are used, front-ends stay in float32.
    """

    def __init__(self, settings: Segmented, out: int) -> None:
        super().__init__()
        self.settings = settings
        ((self.expert, _),) = settings.experts.items()
        self.network = settings.build_network().requires_grad_(settings.trainable)
        dim = self.network.dim
        self.pooling = SegmentAttention(dim) if settings.segment_pooling == "attention" else SegmentMean()
        self.head = _head(settings, dim, out)

    def train(self, mode: bool = True) -> "SegmentedEncoder":
        """A frozen network stays in evaluation mode."""
        super().train(mode)
        self.network.train(mode and self.settings.trainable)
        return self

    def load_pretrained(self) -> None:
        path = self.settings.pretrained()
        if path is not None:
            self.network.take_published(path)

    def save_assets(self, folder: Path) -> None:
        self.network.save_assets(folder)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        waves, rate = audio[self.expert], self.settings.sample_rate
        if self.training:
            waves = cut(waves, self.settings.training_frames)  # batches are cut before; this is for what is not
        size, hop = (round(seconds * rate) for seconds in (self.settings.segment_seconds, self.settings.hop_seconds))
        segments = segmented(waves, size, hop)
        at_once = len(segments.waves) if self.training else suited_to(waves.values.device, SEGMENTS_AT_ONCE)
        parts = zip(segments.waves.split(at_once), segments.lengths.split(at_once), strict=True)
        vectors = torch.cat([self.network(part.float() / FULL_SCALE, lengths) for part, lengths in parts])
        return Embedded(self.head(self.pooling(vectors, segments.clips, len(waves.lengths))))

    def parts(self) -> dict[str, nn.Module]:
        return {"network": self.network, "head": nn.ModuleList([self.pooling, self.head])}


def _head(settings: Segmented, dim: int, out: int) -> nn.Module:
    if settings.head == "none":
        if dim != out:
            raise KitError(f"model.audio: its vectors have {dim} values, the text's embeddings {out}; say head: linear")
        return nn.Identity()
    return nn.Linear(dim, out) if settings.hidden is None else mlp(dim, settings.hidden, out)
