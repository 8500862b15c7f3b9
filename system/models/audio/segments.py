"""The audio encoder `segments`: a network embeds segments of clips, trained or frozen, and their vectors are averaged.

Source: github.com/CPJKU/dcase2025_task6_baseline. Deviations: only segments with samples of the clip are computed (the
source always computes three, and leaves empty ones out of the mean). With 16 bits, front-ends stay in float32.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self, cast

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from data_tools.errors import KitError
from data_tools.settings import Size, mistakes
from system.audio import read_settings
from system.audio.base import Need
from system.audio.network import SECONDS_AT_ONCE, AudioNetwork, groups_of_equal_length, outputs_of
from system.audio.stored import FULL_SCALE, Waveform
from system.compute.device import on_device, suited_to
from system.models.audio.base import AudioEncoder, AudioSettings
from system.models.base import head
from system.models.batch import Series
from system.models.embeddings import Embedded
from system.moments.windows import Grid

# B clips, N samples, S segments of all clips, L frames, D values


class Segments(AudioSettings):
    """A network on segments of waveforms. With output `clip`, the vectors of a clip's segments are pooled; with output
    `frames`, the frames of its segments are joined. A linear layer follows.
    """

    kind: Literal["segments"]
    # an audio network; its segment_seconds and output determine what is computed
    network: Annotated[SerializeAsAny[AudioNetwork], BeforeValidator(read_settings)]
    trainable: bool  # false: frozen, and computed again for each batch
    max_seconds: float = Field(gt=0)  # training uses a random part of longer clips, ranking the whole clip
    pooling: Literal["mean", "seconds", "attention"] = "mean"  # of a clip's segments; seconds: weighted by them
    hidden: Size | None = None  # of a layer with ReLU before the last one
    head: Literal["linear", "none"] = "linear"  # none: the network's vectors, which must have the text's size

    file_settings = frozenset({"network.weights"})

    @model_validator(mode="after")
    def _require_training_without_weights(self) -> Self:
        if not self.trainable and self.network.weights is None:
            said = "a network without published weights must be trained; set trainable: true, or name its weights"
            raise cast(ValidationError, mistakes([(("trainable",), said)]))
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
        return {"network": self.trainable, "head": self.head == "linear" or self.pooling == "attention"}

    @property
    def is_published(self) -> bool:
        return self.network.weights is not None and self.head == "none" and self.pooling != "attention"

    @property
    def trained_on_captions(self) -> bool:
        return self.network.weights is not None and self.network.trained_on_captions

    def needs(self) -> list[Need]:
        return [need._replace(setting=f"network.{need.setting}") for need in self.network.needs()]

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        if self.max_seconds < (self.network.segment_seconds or 0):
            yield "max_seconds", "max_seconds must be at least segment_seconds, so that a training clip fills a segment"

    def build(self, out: int) -> "SegmentEncoder":
        if self.head == "none" and self.network.dim != out:
            said = f"vectors of {self.network.dim} values, but text embeddings have {out}"
            raise KitError(f"audio.network gives {said}; set audio.head to linear")
        return SegmentEncoder(self, out)

    def file_checksums(self) -> dict[str, str]:
        return self.network.checksums() if any(need.model for need in self.needs()) else {}

    @property
    def description(self) -> str:
        state = "trained" if self.trainable else "frozen"
        source = " and ".join(need.name for need in self.needs()) or "scratch"
        return f"{self.network.kind}, {state}, from {source}"


class SegmentEncoder(AudioEncoder):
    """16-bit waves -> segments -> network -> pooled over a clip's segments -> linear layers.

    In evaluation an embedding does not depend on other clips. In training, all segments share the random numbers of the
    network. Without `segment_seconds`, a clip is one segment, padded in training to the longest clip of its batch.
    """

    def __init__(self, settings: Segments, out: int) -> None:
        super().__init__()
        self.settings, net = settings, settings.network
        self.network = net.layers().requires_grad_(settings.trainable)
        self.size = round(net.segment_seconds * net.rate) if net.segment_seconds else None
        self.shortest = round(net.seconds[0] * net.rate)
        self.attention = nn.Linear(net.dim, 1) if settings.pooling == "attention" else None
        layer = head(net.dim, settings.hidden, out) if settings.head == "linear" else nn.Sequential()
        self.head = layer if isinstance(layer, nn.Sequential) else nn.Sequential(layer)

    def train(self, mode: bool = True) -> Self:
        """Set the mode. A frozen network stays in evaluation mode."""
        super().train(mode)
        self.network.train(mode and self.settings.trainable)
        return self

    def load_pretrained(self) -> None:
        self.settings.network.load_into(self.network)

    def save_assets(self, folder: Path) -> None:
        self.network.save_assets(folder)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        waves, lengths = audio["waveform"]
        whole = max(self.shortest, waves.shape[1])
        size, least = self.size or whole, self.size or (whole if self.training else self.shortest)
        pairs = list(zip(waves[..., 0].float() / FULL_SCALE, lengths.tolist(), strict=True))
        cut = [[wave[first : min(first + size, end)] for first in range(0, end, size)] for wave, end in pairs]
        segments, counts = [one for parts in cut for one in parts], [len(parts) for parts in cut]
        sizes = [len(one) if self.network.pads_by_itself else max(least, len(one)) for one in segments]
        at_once = suited_to(waves.device, SECONDS_AT_ONCE) * self.settings.network.rate
        groups = [list(range(len(sizes)))] if self.training else groups_of_equal_length(sizes, at_once)
        found = outputs_of(self.network, self.settings.network.output, segments, groups, least)
        if not self.settings.embeds_series:
            vectors = torch.cat(found).float()
            return Embedded(self.head(self._pool(vectors, torch.tensor([len(one) for one in segments]), counts)))
        parts = iter(found)
        series = [torch.cat([next(parts) for _ in range(count)]) for count in counts]
        return Embedded(
            self.head(pad_sequence(series, batch_first=True)),
            torch.tensor([len(one) for one in series], device=waves.device),
        )

    def _pool(self, vectors: Tensor, lengths: Tensor, counts: list[int]) -> Tensor:
        """Average the vectors (S, D) of each clip's segments, weighted by the softmax of scores; (B, D)."""
        scores = torch.zeros_like(vectors[:, :1])
        if self.settings.pooling == "seconds":
            scores = on_device(lengths[:, None].float().log(), vectors.device)
        if self.attention is not None:
            scores = self.attention(vectors).float()
        padded, padded_scores = (
            pad_sequence(one.split(counts), batch_first=True, padding_value=value)
            for one, value in ((vectors, 0.0), (scores, -torch.inf))
        )
        return (padded_scores.softmax(1) * padded).sum(1)

    def parts(self) -> dict[str, nn.Module]:
        return {"network": self.network, "head": nn.ModuleList(filter(None, (self.attention, self.head)))}
