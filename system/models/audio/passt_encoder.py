"""PaSST on waveforms, with an embedding behind it."""

from pathlib import Path

import torch
from torch import nn

from system.device import suited_to
from system.experts.waveform import FULL_SCALE
from system.models.audio.encoder import AudioEncoder
from system.models.audio.panns_encoder import stripes
from system.models.audio.passt import Passt
from system.models.audio.segments import SegmentAttention, SegmentMean, cut, segmented
from system.models.batch import Series
from system.models.similarity import Embedded
from system.networks import passt
from system.networks.kaldi_log_mel import MASKED, KaldiLogMel
from system.networks.layers import mlp
from system.networks.passt_published import DIM, RATE

# B clips, S segments of all of them

SEGMENTS_AT_ONCE = {"cpu": 4, "cuda": 64}  # in evaluation


class PasstEncoder(AudioEncoder):
    """16-bit waves -> segments -> log-mel -> network -> pooled over segments -> one linear layer, or two; see passt.py.

    The log-mel is made of each segment by itself. Every segment is filled with silence to the same length, so that in
    evaluation an embedding does not depend on the others; draws of training are the same for all of a batch.
    Source: github.com/CPJKU/dcase2025_task6_baseline. Deviations: only segments with something of the clip are computed
    (there, always three, and the others left out of the mean); where 16 bits are used, the log-mel stays in float32.
    """

    def __init__(self, settings: Passt, out: int) -> None:
        super().__init__()
        self.settings = settings
        ((self.expert, _),) = settings.experts.items()
        self.front_end = KaldiLogMel(settings.edge_jitter)
        self.network = passt.Passt(
            settings.network, (settings.patchout_time, settings.patchout_bands, settings.patchout_tokens)
        )
        self.network.requires_grad_(settings.trainable)
        self.pooling = SegmentAttention(DIM) if settings.segment_pooling == "attention" else SegmentMean()
        self.head = nn.Linear(DIM, out) if settings.hidden is None else mlp(DIM, settings.hidden, out)

    def train(self, mode: bool = True) -> "PasstEncoder":
        """A frozen network stays in evaluation mode: all patches."""
        super().train(mode)
        self.network.train(mode and self.settings.trainable)
        self.front_end.train(mode and self.settings.trainable)
        return self

    def load_pretrained(self) -> None:
        if self.settings.weights is not None:
            passt.take_published(self.network, Path(self.settings.weights))

    def forward(self, audio: dict[str, Series]) -> Embedded:
        waves = audio[self.expert]
        if self.training:
            waves = cut(waves, round(self.settings.max_seconds * RATE))
        size, hop = (round(seconds * RATE) for seconds in (self.settings.segment_seconds, self.settings.hop_seconds))
        segments, clips = segmented(waves, size, hop)
        at_once = len(segments) if self.training else suited_to(segments.device, SEGMENTS_AT_ONCE)
        features = torch.cat([self._features(part) for part in segments.split(at_once)])
        return Embedded(self.head(self.pooling(features, clips, len(waves.lengths))))

    def _features(self, waves: torch.Tensor) -> torch.Tensor:
        """(S, N) int16 -> (S, 768)."""
        columns = self.front_end(waves.float() / FULL_SCALE)
        augment = self.settings.spec_augment
        if self.network.training and augment is not None:
            batch, bands, length = columns.shape
            in_time = stripes(batch, length, augment.time_stripes, augment.time_width, columns.device)
            in_bands = stripes(batch, bands, augment.band_stripes, augment.band_width, columns.device)
            columns = columns.masked_fill(in_time[:, None, :] | in_bands[:, :, None], MASKED)
        tokens: torch.Tensor = self.network(columns)[:, :2]
        return tokens.mean(1)

    def parts(self) -> dict[str, nn.Module]:
        return {"network": self.network, "head": nn.ModuleList([self.pooling, self.head])}
