"""Encoders that end in a bidirectional GRU.

They are the CRNN of the DCASE 2022 baseline, and a GRU on a frozen expert.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from data_tools.settings import Name, Size
from system.audio.logmel import SILENCE, LogMelSlaney
from system.audio.network import pooled_over_time
from system.devices import on_device
from system.models import Dropout
from system.models.audio import AudioEncoder, AudioSettings, OneExpert
from system.models.batch import Embedded, Series, join_embeddings

# B clips, T frames, E embedding

CHANNELS = 128  # of the convolutions
MIN_BANDS, MIN_FRAMES = 64, 4  # that the convolutions reduce to one


class GruSettings(AudioSettings):
    """Base of encoders that end in a bidirectional GRU."""

    hidden: Size  # of the GRU, in each direction
    dropout: Dropout  # before the GRU
    embedding: Literal["frames", "mean"]  # one vector per frame, or their mean, scaled to length 1

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        if 2 * self.hidden != out:
            said = f"the GRU returns 2 x {self.hidden} values, but text embeddings have {out}"
            yield "hidden", f"{said}; set hidden to {out // 2}"

    def embedded(self, series: Tensor, lengths: Tensor) -> Embedded:
        """Scale frames to length 1, or their mean."""
        lengths = on_device(lengths, series.device)
        if self.embedding == "mean":
            return Embedded(F.normalize(pooled_over_time(series, lengths, "mean"), dim=-1))
        return Embedded(F.normalize(series.float(), dim=-1), lengths)


class Crnn(GruSettings):
    """The CRNN of the DCASE 2022 baseline.

    Convolutions reduce the number of log-mel frames to a quarter. A bidirectional GRU follows, and linear interpolation
    to the original number of frames. Each frame has 2 x `hidden` values, scaled to length 1. In training, padding
    counts as frames with log-mel values of 0, as in the public code; in evaluation, a clip is alone.

    Source: github.com/xieh97/contrastive-negative-sampling (frames) and dcase2022-audio-retrieval (mean).
    """

    kind: Literal["crnn"]
    experts: Annotated[dict[Name, LogMelSlaney], Field(min_length=1, max_length=1)]  # one expert, by any name

    depends_on_batch: ClassVar = True

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        yield from super().setting_errors(out)
        if any(expert.bands < MIN_BANDS for expert in self.experts.values()):
            yield "experts", f"crnn needs at least {MIN_BANDS} mel bands; raise bands"

    part_names: ClassVar = ("convolutions", "gru")

    def build(self, out: int) -> AudioEncoder:
        return CrnnEncoder(self)


class Gru(GruSettings):
    """A linear layer and a bidirectional GRU on frames.

    The frames are those of one frozen expert. The linear layer gives `width` values, the GRU 2 x `hidden` values per
    frame, scaled to length 1. Padding has no effect.
    """

    kind: Literal["gru"]
    experts: OneExpert  # one expert, by any name
    width: Size  # values per frame before the GRU

    part_names: ClassVar = ("linear", "gru")

    def build(self, out: int) -> AudioEncoder:
        return GruEncoder(self)


class CrnnEncoder(AudioEncoder):
    """The CRNN: log-mel frames -> convolutions -> GRU -> interpolation.

    Frames (B, T, bands) give frames (B, T, E), or their mean (B, E). Clips under 4 frames are padded with silence.
    """

    def __init__(self, settings: Crnn) -> None:
        super().__init__()
        self.settings = settings
        ((self.expert, logmel),) = settings.experts.items()
        self.cnn = build_convolutions(settings.dropout)
        self.gru = _build_gru(CHANNELS * (logmel.bands // MIN_BANDS), settings.hidden)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        values, lengths = audio[self.expert]
        if self.training:
            frames = self._frames(values)
            return self.settings.embedded(frames, torch.full_like(lengths, frames.shape[1]))
        found, order = [], []
        for length in lengths.unique():  # clips of one length together, so that padding has no effect
            rows = (lengths == length).nonzero()[:, 0]
            order.append(rows)
            frames = self._frames(values[on_device(rows, values.device), : int(length)])
            found.append(self.settings.embedded(frames, lengths[rows].clamp(min=MIN_FRAMES)))
        return join_embeddings(found, order)

    def _frames(self, values: Tensor) -> Tensor:
        """Embed the frames of clips of equal length."""
        values = F.pad(values.float(), (0, 0, 0, max(0, MIN_FRAMES - values.shape[1])), value=SILENCE)
        hidden, _ = self.gru(self.cnn(values[:, None]).transpose(1, 2).flatten(2))
        return F.interpolate(hidden.transpose(1, 2), values.shape[1], mode="linear").transpose(1, 2)

    def parts(self) -> dict[str, nn.Module]:
        return {"convolutions": self.cnn, "gru": self.gru}


class GruEncoder(AudioEncoder):
    """A linear layer and a GRU.

    Frames (B, T, D) give frames (B, T, E), or their mean (B, E).
    """

    def __init__(self, settings: Gru) -> None:
        super().__init__()
        self.settings = settings
        ((self.expert, expert),) = settings.experts.items()
        self.linear = nn.Linear(expert.dim, settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.gru = _build_gru(settings.width, settings.hidden)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        values, lengths = audio[self.expert]
        frames = self.dropout(self.linear(values.float()))
        packed = pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False)
        series, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.settings.embedded(series, lengths)


def build_convolutions(dropout: float) -> nn.Sequential:
    """Build the convolutions of the CRNN.

    They turn (B, 1, T, bands) into (B, 128, T // 4, bands // 64). A pooling is (sum x^4)^(1/4).
    """

    def block(inputs: int, outputs: int) -> list[nn.Module]:
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


def _build_gru(inputs: int, hidden: int) -> nn.GRU:
    return nn.GRU(inputs, hidden, batch_first=True, bidirectional=True)
