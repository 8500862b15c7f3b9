"""The audio encoder `segments`: a network on parts of clips.

Source: github.com/CPJKU/dcase2025_task6_baseline. Deviations: only segments with samples of the clip are computed (the
source always computes three, and leaves empty ones out of the mean). With 16 bits, front-ends stay in float32.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from data_tools.settings import Size
from system.audio import Need
from system.audio.network import AudioNetwork, outputs_of
from system.audio.stored import FULL_SCALE, Waveform
from system.devices import on_device
from system.models import head
from system.models.audio import AudioEncoder, AudioSettings
from system.models.batch import Embedded, Series
from system.moments.windows import Grid

# B clips, N samples, S segments of all clips, L frames, D values


class Segments(AudioSettings):
    """A network on segments of waveforms, trained or frozen.

    With output `clip`, the vectors of a clip's segments are pooled; with output `frames`, the frames of its segments
    are joined. A linear layer follows.
    """

    kind: Literal["segments"]
    # an audio network; its segment_seconds and output determine what is computed
    network: AudioNetwork
    trainable: bool  # false: frozen, and computed again for each batch
    max_seconds: float = Field(gt=0)  # training uses a random part of longer clips, ranking the whole clip
    pooling: Literal["mean", "seconds"] = "mean"  # of a clip's segments; seconds: weighted by them
    hidden: Size | None = None  # of a layer with ReLU before the last one
    head: Literal["linear", "none"] = "linear"  # none: the network's vectors, which must have the text's size

    @model_validator(mode="after")
    def _require_training_without_weights(self) -> Self:
        if not self.trainable and self.network.weights is None:
            said = "a network without published weights must be trained; set trainable: true, or name its weights"
            raise ValueError(said)
        return self

    @property
    def experts(self) -> dict[str, Waveform]:
        net = self.network
        return {"waveform": Waveform(kind="waveform", sample_rate=net.rate, resampling=net.resampling)}

    @property
    def training_frames(self) -> int:
        return max(1, round(self.max_seconds * self.network.rate))

    @property
    def embeds_series(self) -> bool:
        return self.network.output == "frames"

    @property
    def frame_grid(self) -> Grid | None:
        net = self.network
        return Grid(1 / net.frames_per_second, net.first_centre) if self.embeds_series else None

    @property
    def depends_on_batch(self) -> bool:
        return self.trainable and self.network.mixes_batch

    @property
    def trained_parts(self) -> dict[str, bool]:
        return {"network": self.trainable, "head": self.head == "linear"}

    @property
    def is_published(self) -> bool:
        return self.network.weights is not None and super().is_published

    @property
    def licence(self) -> str:
        return self.network.licence

    @property
    def trained_on_captions(self) -> bool:
        return self.network.weights is not None and self.network.trained_on_captions

    def needs(self) -> list[Need]:
        return [need._replace(setting=f"network.{need.setting}") for need in self.network.needs()]

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        if self.max_seconds < (self.network.segment_seconds or 0):
            yield "max_seconds", "max_seconds must be at least segment_seconds, so that a training clip fills a segment"

    def build(self, out: int) -> "SegmentEncoder":
        return SegmentEncoder(self, out)

    def file_checksums(self) -> dict[str, str]:
        return self.network.checksums() if any(need.model for need in self.needs()) else {}

    @property
    def description(self) -> str:
        state = "trained" if self.trainable else "frozen"
        source = " and ".join(need.name for need in self.needs()) or "scratch"
        return f"{self.network.kind}, {state}, from {source}"


class SegmentEncoder(AudioEncoder):
    """A network on segments of 16-bit waves, pooling, linear layers.

    In evaluation an embedding does not depend on other clips. In training, all segments share the random numbers of the
    network. Without `segment_seconds`, a segment is as long as the clip, at most the network's longest input; in
    training, clips are padded to the longest one of the batch.
    """

    def __init__(self, settings: Segments, out: int) -> None:
        super().__init__()
        self.settings, net = settings, settings.network
        self.network = net.layers().requires_grad_(settings.trainable)
        self.size = round(net.longest * net.rate)
        layer = head(net.dim, settings, out, "audio.network")
        self.head = layer if isinstance(layer, nn.Sequential) else nn.Sequential(layer)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; a frozen network stays in evaluation mode."""
        super().train(mode)
        self.network.train(mode and self.settings.trainable)
        return self

    def load_pretrained(self) -> None:
        self.settings.network.load_into(self.network)

    def save_assets(self, folder: Path) -> None:
        self.network.save_assets(folder)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        waves, lengths = audio["waveform"]
        samples = waves[..., 0].float() / FULL_SCALE
        clips = [wave[:end] for wave, end in zip(samples, lengths.tolist(), strict=True)]
        found = outputs_of(self.network, self.settings.network, clips, waves.shape[1] if self.training else 0)
        if not self.settings.embeds_series:
            return Embedded(self.head(torch.stack([self._pool(*one) for one in zip(clips, found, strict=True)])))
        series = [torch.cat(parts) for parts in found]
        counts = torch.tensor([len(one) for one in series], device=waves.device)
        return Embedded(self.head(pad_sequence(series, batch_first=True)), counts)

    def _pool(self, clip: Tensor, vectors: list[Tensor]) -> Tensor:
        """Average the vectors of a clip's segments, (D,)."""
        found = torch.cat(vectors).float()
        if self.settings.pooling == "mean":
            return found.mean(0)
        seconds = on_device(torch.tensor([[float(len(one))] for one in clip.split(self.size)]), clip.device)
        return (found * seconds).sum(0) / seconds.sum()
