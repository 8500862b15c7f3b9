"""Networks for segments: encoder.

Networks for segments of a fixed length, trained or frozen, followed by an embedding layer.
"""

from pathlib import Path
from typing import Literal, Self

import torch
from torch import nn

from data_tools.errors import KitError
from system.compute.device import suited_to
from system.experts.waveform import FULL_SCALE
from system.models.audio.encoder import AudioEncoder
from system.models.audio.segments import SegmentAttention, SegmentMean, crop_long_clips, cut_into_segments
from system.models.batch import Series
from system.models.embeddings import Embedded
from system.networks.layers import head
from system.networks.segment import SegmentNetwork

# B clips, S segments of all of them, N samples, D values

SEGMENTS_AT_ONCE = {"cpu": 4, "cuda": 64}  # in evaluation


class NetworkEncoder(AudioEncoder):
    """An encoder around one network for segments, with or without published weights, trained or frozen."""

    def __init__(self, expert: str, network: SegmentNetwork, pretrained: Path | None, trainable: bool) -> None:
        """Store the network, and freeze it unless `trainable` is set.

        expert: Name of the expert whose frames, the waves of clips, are the network's input. pretrained: Path of
        published weights; None for a network without published weights. trainable: Whether the network is trained.
        """
        super().__init__()
        self.expert, self.network = expert, network.requires_grad_(trainable)
        self.pretrained, self.trainable = pretrained, trainable

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode. A frozen network stays in evaluation mode."""
        super().train(mode)
        self.network.train(mode and self.trainable)
        return self

    def load_pretrained(self) -> None:
        """Load the published weights into the network; do nothing for a network without them."""
        if self.pretrained is not None:
            self.network.load_published(self.pretrained)

    def save_assets(self, folder: Path) -> None:
        """Write the files that another machine needs to build the network."""
        self.network.save_assets(folder)


class SegmentedEncoder(NetworkEncoder):
    """16-bit waves -> segments -> network -> one vector per segment -> pooled over a clip's segments -> linear layers.

    The network processes each segment independently. Every segment is padded with silence to the same length, so that
    in evaluation an embedding does not depend on other clips. In training, all segments that are embedded together
    share the same random numbers. These are the segments of a whole batch, or of one chunk of it with
    `grad_cache_chunk`.
    Source: github.com/CPJKU/dcase2025_task6_baseline. Deviations: only segments with samples of the clip are computed
    (the source always computes three segments, and leaves empty segments out of the mean). With 16 bits, front-ends
    stay in float32.
    """

    def __init__(
        self,
        expert: str,
        network: SegmentNetwork,
        out: int,
        *,
        pretrained: Path | None,
        trainable: bool,
        size: int,
        hop: int,
        training_samples: int,
        pooling: Literal["mean", "seconds", "attention"],
        has_head: bool,
        hidden: int | None,
    ) -> None:
        """Build the layers after the network, untrained.

        out: Number of values per embedding. pretrained: Path of published weights. trainable: Whether the network is
        trained too. size: Samples of a segment. hop: Samples from the start of a segment to the next start.
        training_samples: Maximum number of samples of a clip in training. pooling: How the vectors of a clip's segments
        are averaged: with equal weights (mean), by duration (seconds), or with learned weights (attention).
        has_head: Whether linear layers follow. hidden: Size of a layer with ReLU before the last layer; None for no
        such layer.
        """
        super().__init__(expert, network, pretrained, trainable)
        self.size, self.hop, self.training_samples = size, hop, training_samples
        dim = network.dim
        self.pooling = SegmentAttention(dim) if pooling == "attention" else SegmentMean(pooling == "seconds")
        self.head = head(dim, hidden, out) if has_head else _identity_head(dim, out)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Embed the clips of a batch."""
        waves = audio[self.expert]
        if self.training:
            waves = crop_long_clips(waves, self.training_samples)  # batches are already cut; other input is not
        segments = cut_into_segments(waves, self.size, self.hop)
        at_once = len(segments.waves) if self.training else suited_to(waves.values.device, SEGMENTS_AT_ONCE)
        parts = zip(segments.waves.split(at_once), segments.lengths.split(at_once), strict=True)
        vectors = torch.cat([self.network(part.float() / FULL_SCALE, lengths) for part, lengths in parts])
        pooled = self.pooling(vectors, segments.clips, len(waves.lengths), segments.lengths)
        return Embedded(self.head(pooled))

    def parts(self) -> dict[str, nn.Module]:
        """Return a dict from the name of each part of the encoder to its torch module."""
        return {"network": self.network, "head": nn.ModuleList([self.pooling, self.head])}


def _identity_head(dim: int, out: int) -> nn.Module:
    """Return a layer that changes nothing. Raises KitError if vectors (`dim`) and embeddings (`out`) differ in size."""
    if dim != out:
        raise KitError(
            f"model.audio returns vectors of {dim} values, but model.text has {out}; set model.audio.head to linear"
        )
    return nn.Identity()
