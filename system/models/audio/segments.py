"""The audio encoder `segments`: a network embeds segments of clips, trained or frozen, and their vectors are averaged.

Source: github.com/CPJKU/dcase2025_task6_baseline. Deviations: only segments with samples of the clip are computed (the
source always computes three, and leaves empty ones out of the mean). With 16 bits, front-ends stay in float32.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationError, model_validator
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from data_tools.settings import Size, mistakes
from system.audio import Expert
from system.audio.base import Need
from system.audio.network import SECONDS_AT_ONCE, AudioNetwork, groups_of_equal_length
from system.audio.stored import FULL_SCALE, Waveform
from system.compute.device import on_device, suited_to
from system.models.audio.base import AudioEncoder, AudioSettings
from system.models.batch import Series
from system.models.embeddings import Embedded
from system.moments.windows import Grid

# B clips, N samples, S segments of all clips, L frames, D values


class Segments(AudioSettings):
    """A network on segments of waveforms. With output `clip`, the vectors of a clip's segments are pooled; with output
    `frames`, the frames of its segments are joined. A linear layer follows.
    """

    kind: Literal["segments"]
    network: Expert  # an audio network; its segment_seconds and output determine what is computed
    trainable: bool  # false: frozen, and computed again for each batch
    max_seconds: float = Field(gt=0)  # training uses a random part of longer clips, ranking the whole clip
    pooling: Literal["mean", "seconds", "attention"] = "mean"  # of a clip's segments; seconds: weighted by them
    hidden: Size | None = None  # of a layer with ReLU before the last one
    head: Literal["linear", "none"] = "linear"  # none: the network's vectors, which must have the text's size

    file_settings = frozenset({"network.weights"})

    @model_validator(mode="after")
    def _require_trainable_network(self) -> Self:
        if not isinstance(self.network, AudioNetwork):
            raise cast(ValidationError, mistakes([(("network",), "this kind has no layers; name an audio network")]))
        if not self.trainable and self.network.weights is None:
            said = "a network without published weights must be trained; set trainable: true, or name its weights"
            raise cast(ValidationError, mistakes([(("trainable",), said)]))
        return self

    @property
    def audio_network(self) -> AudioNetwork:
        assert isinstance(self.network, AudioNetwork)
        return self.network

    @property
    def experts(self) -> dict[str, Waveform]:
        net = self.network
        return {"waveform": Waveform(kind="waveform", sample_rate=net.rate, resampling=net.resampling)}

    @property
    def training_frames(self) -> int:
        return max(1, round(self.max_seconds * self.network.rate))

    @property
    def embeds_series(self) -> bool:
        return self.audio_network.output == "frames"

    @property
    def frame_grid(self) -> Grid | None:
        net = self.network
        return Grid(1 / net.frames_per_second, net.first_centre) if self.embeds_series else None

    @property
    def depends_on_batch(self) -> bool:
        return self.trainable and self.audio_network.mixes_batch

    @property
    def trained_parts(self) -> dict[str, bool]:
        return {"network": self.trainable, "head": self.head == "linear" or self.pooling == "attention"}

    @property
    def is_published(self) -> bool:
        return self.audio_network.weights is not None and self.head == "none" and self.pooling != "attention"

    @property
    def trained_on_captions(self) -> bool:
        return self.audio_network.weights is not None and self.audio_network.trained_on_captions

    def needs(self) -> list[Need]:
        return [need._replace(setting=f"network.{need.setting}") for need in self.network.needs()]

    def require_files(self) -> None:
        self.network.require_files()

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        if self.max_seconds < (self.audio_network.segment_seconds or 0):
            yield "max_seconds", "max_seconds must be at least segment_seconds, so that a training clip fills a segment"
        if self.head == "none" and self.hidden is not None:
            yield "head", "`head: none` adds no layer, but `hidden` sets its size; remove hidden, or set head: linear"
        if self.head == "none" and self.audio_network.dim_known and self.network.dim != out:
            yield (
                "head",
                f"`head: none` needs vectors as long as text embeddings, but they have {self.network.dim} values and "
                f"text embeddings {out}; set head: linear",
            )

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
    """16-bit waves -> segments -> network -> pooled over a clip's segments -> linear layers.

    In evaluation an embedding does not depend on other clips. In training, all segments share the random numbers of the
    network. Without `segment_seconds`, a clip is one segment, padded in training to the longest clip of its batch.
    """

    def __init__(self, settings: Segments, out: int) -> None:
        super().__init__()
        self.settings, net = settings, settings.audio_network
        self.network = net.layers().requires_grad_(settings.trainable)
        self.size = round(net.segment_seconds * net.rate) if net.segment_seconds else None
        self.shortest = round(net.seconds[0] * net.rate)
        self.attention = nn.Linear(net.dim, 1) if settings.pooling == "attention" else None
        layers: list[nn.Module] = [nn.Linear(net.dim, settings.hidden), nn.ReLU()] if settings.hidden else []
        if settings.head == "linear":
            layers.append(nn.Linear(settings.hidden or net.dim, out))
        self.head = nn.Sequential(*layers)

    def train(self, mode: bool = True) -> Self:
        """Set the mode. A frozen network stays in evaluation mode."""
        super().train(mode)
        self.network.train(mode and self.settings.trainable)
        return self

    def load_pretrained(self) -> None:
        self.settings.audio_network.load_into(self.network)

    def save_assets(self, folder: Path) -> None:
        self.network.save_assets(folder)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Embed the clips of a batch."""
        waves = audio["waveform"]
        if self.training:  # batches are already cut; other input is not
            waves = random_parts(waves, self.settings.training_frames)
        parts = cut(waves, self.size or max(self.shortest, waves.values.shape[1]))
        if self.settings.embeds_series:
            return self._join(parts, len(waves.lengths))
        vectors = torch.cat([self.network(*self._input(parts, rows)).float() for rows in self._groups(parts)])
        order = torch.cat([torch.as_tensor(rows) for rows in self._groups(parts)])
        vectors = vectors[on_device(order.argsort(), vectors.device)]
        return Embedded(self.head(self._pool(vectors, parts, len(waves.lengths))))

    def _groups(self, parts: "Parts") -> list[list[int]]:
        """Return the segments that are computed together: in evaluation those of one length, padded or not."""
        lengths = parts.lengths.tolist()
        if self.training:
            return [list(range(len(lengths)))]
        padded = [self.size or max(self.shortest, length) for length in lengths]
        at_once = suited_to(parts.waves.device, SECONDS_AT_ONCE) * self.settings.network.rate
        return list(groups_of_equal_length(padded, at_once))

    def _input(self, parts: "Parts", rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples and the lengths of some segments, as the network needs them."""
        lengths = parts.lengths[rows]
        size = self.size or max(self.shortest, int(lengths.max()))
        waves = parts.waves if len(rows) == len(parts.lengths) else parts.waves[rows]
        return waves[:, :size].float() / FULL_SCALE, on_device(lengths, parts.waves.device)

    def _pool(self, vectors: torch.Tensor, parts: "Parts", clips: int) -> torch.Tensor:
        """Average the vectors (S, D) of each clip's segments; (B, D)."""
        clip = on_device(parts.clips, vectors.device)
        weights = torch.ones_like(vectors[:, :1])
        if self.settings.pooling == "seconds":
            weights = on_device(parts.lengths[:, None] / parts.lengths.max(), vectors.device)
        if self.attention is not None:
            scores = self.attention(vectors).float()
            highest = scores.new_full((clips, 1), -torch.inf).scatter_reduce(0, clip[:, None], scores.detach(), "amax")
            weights = (scores - highest[clip]).exp()
        total = weights.new_zeros(clips, 1).index_add(0, clip, weights)
        return vectors.new_zeros(clips, vectors.shape[1]).index_add(0, clip, vectors * weights) / total

    def _join(self, parts: "Parts", clips: int) -> Embedded:
        """Join the frames of each clip's segments."""
        found: dict[int, torch.Tensor] = {}
        for rows in self._groups(parts):
            frames, counts = self.network.frames(*self._input(parts, rows))
            found |= {row: one[:count] for row, one, count in zip(rows, frames, counts.tolist(), strict=True)}
        of = parts.clips.tolist()
        series = [torch.cat([found[row] for row in range(len(of)) if of[row] == clip]) for clip in range(clips)]
        lengths = torch.tensor([len(one) for one in series], device=parts.waves.device)
        return Embedded(self.head(pad_sequence(series, batch_first=True)), lengths)

    def parts(self) -> dict[str, nn.Module]:
        return {"network": self.network, "head": nn.ModuleList(filter(None, (self.attention, self.head)))}


def random_parts(waves: Series, most: int) -> Series:
    """Cut a random part of `most` samples out of every longer wave."""
    if waves.values.shape[1] <= most:
        return waves
    spare = (waves.lengths - most).clamp(min=0)
    first = (torch.rand(len(spare), device=waves.values.device, dtype=torch.float64).cpu() * (spare + 1)).long()
    at = on_device(first[:, None] + torch.arange(most), waves.values.device)
    return Series(waves.values.gather(1, at[..., None]), waves.lengths.clamp(max=most))


class Parts(NamedTuple):
    """Segments of clips: waves (S, size); on the CPU, their lengths (S,) and the ascending index (S,) of each clip."""

    waves: torch.Tensor
    lengths: torch.Tensor
    clips: torch.Tensor


def cut(waves: Series, size: int) -> Parts:
    """Cut padded clips into segments of `size` samples; the last one of a clip is padded with silence."""
    counts = (waves.lengths + size - 1) // size
    values = F.pad(waves.values[..., 0], (0, max(0, int(counts.max()) * size - waves.values.shape[1])))
    clips = torch.arange(len(counts)).repeat_interleave(counts)
    number = torch.arange(len(clips)) - (counts.cumsum(0) - counts)[clips]
    lengths = (waves.lengths[clips] - number * size).clamp(max=size)
    segments = values[:, : int(counts.max()) * size].unflatten(1, (-1, size))
    segments = segments[on_device(clips, values.device), on_device(number, values.device)]
    silent = torch.arange(size, device=values.device) >= on_device(lengths[:, None], values.device)
    return Parts(segments.masked_fill(silent, 0), lengths, clips)
