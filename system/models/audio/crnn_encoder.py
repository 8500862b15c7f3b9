"""CRNN and GRU: networks.

Encoders that end in a bidirectional GRU: the CRNN of the DCASE 2022 baseline, and a GRU on a frozen expert.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from system.compute.device import on_device
from system.experts.logmel import SILENCE
from system.models.audio.encoder import AudioEncoder
from system.models.batch import Series
from system.models.embeddings import Embedded
from system.networks.layers import length_mask, pooled_over_time

# B clips, T frames, E embedding

CHANNELS = 128  # of the convolutions
MIN_FRAMES = 4  # log-mel frames that the convolutions reduce to one

Embedding = Literal["frames", "mean"]


class CrnnEncoder(AudioEncoder):
    """Log-mel frames -> convolutions -> GRU -> frames (B, T, E), each scaled to length 1, or their mean, scaled to
    length 1. Clips under 4 frames are padded with silence.

    Padding `masked`: padding has no effect, in training and in evaluation. Batch norms ignore it, and convolutions get
    zeros after a clip's end, as for a single clip. Padding `counted`: in training, padding counts as frames of the
    clip, so that every clip is as long as the longest. Padding has log-mel values of 0, which is loud.
    Source: github.com/xieh97/contrastive-negative-sampling (frames) and dcase2022-audio-retrieval (mean). Deviations:
    none with `counted`; with `masked`, padding has no effect.
    """

    def __init__(
        self,
        expert: str,
        inputs: int,
        hidden: int,
        dropout: float,
        embedding: Embedding,
        padding: Literal["masked", "counted"],
    ) -> None:
        """Build the layers. inputs: Values per frame after the convolutions. padding: How padding is treated."""
        super().__init__()
        self.expert, self.embedding, self.padding = expert, embedding, padding
        self.cnn = build_convolutions(dropout)
        self.gru = _build_gru(inputs, hidden)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Embed the clips of a batch."""
        values, lengths = pad_short_clips(*audio[self.expert])
        if self.training and self.padding == "counted":
            lengths = torch.full_like(lengths, values.shape[1])
        series = run_gru(self.gru, *self.apply_convolutions(values, lengths))
        return _to_embeddings(stretch_series(series, lengths // MIN_FRAMES, lengths), lengths, self.embedding)

    def apply_convolutions(self, values: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Apply the convolutions; return a quarter as many frames, and each clip's number of frames without padding.

        B clips of T frames, values (B, T, bands), and lengths (B,) >= 4 without padding -> (B, T // 4, 128 x (bands //
        64)) and lengths // 4.
        """
        x = values.float()[:, None]
        for layer in self.cnn:
            if isinstance(layer, nn.BatchNorm2d):
                x = masked_norm(layer, x, lengths)
            else:
                x = layer(x)
                if isinstance(layer, nn.LPPool2d):
                    lengths = lengths // layer.kernel_size[0]  # type: ignore[index]
        return x.transpose(1, 2).flatten(2), lengths

    def parts(self) -> dict[str, nn.Module]:
        """Return a dict from the name of each part of the encoder to its torch module."""
        return {"convolutions": self.cnn, "gru": self.gru}


class GruEncoder(AudioEncoder):
    """Frames of a frozen expert -> linear -> GRU; see crnn.py. Padding has no effect."""

    def __init__(self, expert: str, dim: int, width: int, hidden: int, dropout: float, embedding: Embedding) -> None:
        """Build the linear layer and the GRU.

        expert: Name of the expert. dim: Number of values per frame of the expert. width: Number of values per frame
        after the linear layer, which the GRU reads.
        """
        super().__init__()
        self.expert, self.embedding = expert, embedding
        self.linear = nn.Linear(dim, width)
        self.dropout = nn.Dropout(dropout)
        self.gru = _build_gru(width, hidden)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Embed the clips of a batch."""
        values, lengths = audio[self.expert]
        series = run_gru(self.gru, self.dropout(self.linear(values.float())), lengths)
        return _to_embeddings(series, lengths, self.embedding)

    def parts(self) -> dict[str, nn.Module]:
        """Return a dict from the name of each part of the encoder to its torch module."""
        return {"linear": self.linear, "gru": self.gru}


def build_convolutions(dropout: float) -> nn.Sequential:
    """Build the convolutions of the CRNN, in the same order as in the baseline of DCASE 2022.

    The result computes, for B clips of T frames, (B, 1, T, bands) -> (B, 128 channels, T // 4, bands // 64).
    A pooling is (sum x^4)^(1/4) over a rectangle of time x frequency.
    """

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        """Build a batch norm, a convolution, and a leaky ReLU."""
        layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(layer.weight)
        return [nn.BatchNorm2d(inputs), layer, nn.LeakyReLU(0.1)]

    wide = [block(CHANNELS, CHANNELS) for _ in range(3)]
    return nn.Sequential(
        *block(1, 32),
        nn.LPPool2d(4, (2, 4)),
        *block(32, CHANNELS),
        *wide[0],
        nn.LPPool2d(4, (2, 4)),
        *wide[1],
        *wide[2],
        nn.LPPool2d(4, (1, 4)),
        nn.Dropout(dropout),
    )


def pad_short_clips(values: torch.Tensor, lengths: torch.Tensor) -> Series:
    """Return clips of at least 4 frames: shorter clips are padded with silence."""
    values = F.pad(values, (0, 0, 0, max(0, MIN_FRAMES - values.shape[1])))
    positions = torch.arange(values.shape[1])
    lacking = on_device((positions < MIN_FRAMES) & (positions >= lengths[:, None]), values.device)
    return Series(values.masked_fill(lacking[..., None], SILENCE), lengths.clamp(min=MIN_FRAMES))


def masked_norm(norm: nn.BatchNorm2d, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Apply a batch norm that ignores padding; its output is 0 for padding.

    x: (B, C, T, F) with channels C, time steps T and bands F. lengths: (B,) numbers of time steps without padding.
    """
    mask = length_mask(lengths, x.shape[2])
    if bool(mask.all()):
        whole: torch.Tensor = norm(x)
        return whole
    by_time = x.transpose(1, 2)
    unpadded = tuple(on_device(index, x.device) for index in mask.nonzero(as_tuple=True))
    kept = norm(by_time[unpadded][..., None])  # (places, C, F, 1)
    zeros = torch.zeros_like(by_time, dtype=kept.dtype)
    return zeros.index_put(unpadded, kept[..., 0]).transpose(1, 2)


def run_gru(gru: nn.GRU, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Run a GRU on padded series; its output is 0 for padding.

    B series of T vectors, values (B, T, D), with lengths (B,) -> (B, longest length, 2 x hidden).
    Each direction starts at an end of the series, not in its padding.
    """
    packed = pack_padded_sequence(values, lengths, batch_first=True, enforce_sorted=False)
    series, _ = pad_packed_sequence(gru(packed)[0], batch_first=True)
    return series


def stretch_series(values: torch.Tensor, lengths: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Stretch every padded series to its wanted length, by interpolation.

    B series of T vectors, values (B, T, D), with lengths (B,), and wanted lengths (B,) -> (B, longest wanted length,
    D). Interpolation is linear, as in torch's interpolate with align_corners False.
    """
    positions = torch.arange(int(wanted.max())) + 0.5
    at = (positions * (lengths / wanted)[:, None] - 0.5).clamp(min=0)
    before = at.long().clamp(max=values.shape[1] - 1)  # for padding, the index could be beyond the end
    after = torch.minimum(before + 1, lengths[:, None] - 1)
    rows, weights = torch.arange(len(values), device=values.device)[:, None], (at - before)[..., None]
    before, after, weights = (on_device(one, values.device) for one in (before, after, weights.to(values.dtype)))
    return torch.lerp(values[rows, before], values[rows, after], weights)


def _to_embeddings(series: torch.Tensor, lengths: torch.Tensor, embedding: Embedding) -> Embedded:
    """Return frames scaled to length 1, or, if `embedding` is "mean", their mean scaled to length 1."""
    lengths = on_device(lengths, series.device)
    if embedding == "mean":
        return Embedded(F.normalize(pooled_over_time(series, lengths, "mean"), dim=-1))
    return Embedded(F.normalize(series.float(), dim=-1), lengths)


def _build_gru(inputs: int, hidden: int) -> nn.GRU:
    """Build a bidirectional GRU."""
    return nn.GRU(inputs, hidden, batch_first=True, bidirectional=True)
