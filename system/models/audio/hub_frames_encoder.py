"""Unchanged frames of hub models: encoder."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from system.experts.waveform import FULL_SCALE
from system.models.audio.segmented_encoder import NetworkEncoder
from system.models.audio.segments import cut_into_segments
from system.models.batch import Series
from system.models.embeddings import Embedded
from system.networks.segment import SegmentNetwork

# B clips, S segments of all of them, L frames, D values


class HubFramesEncoder(NetworkEncoder):
    """16-bit waves -> segments -> the network's frames that begin within the clip, segment after segment.

    Every segment is computed alone, so that an embedding does not depend on other clips.
    """

    def __init__(self, expert: str, network: SegmentNetwork, pretrained: Path | None, size: int) -> None:
        """Store the network. pretrained: Path of its published weights. size: Number of samples of a segment."""
        super().__init__(expert, network, pretrained, trainable=False)
        self.size = size

    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Return the frames (B, L, D) of the clips of a batch as their embeddings."""
        waves = audio[self.expert]
        segments = cut_into_segments(waves, self.size, self.size)
        found: list[list[torch.Tensor]] = [[] for _ in waves.lengths]
        for wave, length, clip in zip(segments.waves, segments.lengths, segments.clips.tolist(), strict=True):
            frames, counts = self.network.frames(wave[None, : int(length)].float() / FULL_SCALE, length[None])
            found[clip].append(frames[0, : int(counts[0])])
        series = [torch.cat(parts) for parts in found]
        lengths = torch.tensor([len(one) for one in series], device=waves.values.device)
        return Embedded(pad_sequence(series, batch_first=True), lengths)

    def parts(self) -> dict[str, nn.Module]:
        """Return a dict from the name of each part of the encoder to its torch module."""
        return {"network": self.network}
