"""An audio network: its settings, layers, and frozen use.

Each network is a file in this folder. It is used frozen, where `load` returns what computes the frames of whole clips
for the banks, or in every step by the encoder `segments` (models/audio/segments.py), trained or frozen.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.rnn import pad_sequence

from data_tools.errors import KitError
from system.audio import ExpertSettings, Frames, Need
from system.audio.checkpoint import load_checkpoint
from system.devices import on_device, suited_to
from system.moments.labellings import length_mask

# S segments of N samples, L frames of D values

SECONDS_AT_ONCE = {"cpu": 40, "cuda": 640}  # of segments without gradients


class Layers(nn.Module, ABC):
    """The layers of a network, named as in its file."""

    pads_by_itself: ClassVar[bool] = False  # to the longest segment of a call, which changes others in evaluation

    @abstractmethod
    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the frames of segments.

        Args:
            waves: (S, N) float32 in [-1, 1], padded with silence.
            lengths: (S,) samples without padding.

        Returns:
            The frames (S, L, D), and how many of them begin within the clip, (S,), at least 1.
        """

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Compute the mean frame of each segment, (S, D)."""
        return pooled_over_time(*self.frames(waves, lengths), "mean")

    def save_assets(self, folder: Path) -> None:
        """Write what another machine needs besides the weights."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take the published tensors.

        Those of other parts, such as classifiers, are ignored.

        Raises:
            RuntimeError: A tensor is missing, or has another shape.
        """
        if missing := self.load_state_dict(tensors, strict=False).missing_keys:
            raise RuntimeError(f"it has no tensor {missing[0]} ({len(missing)} are missing)")


class AudioNetwork(ExpertSettings):
    """Settings of an audio network.

    A subclass adds its `kind`, facts and `layers`.
    """

    weights: str | None  # path of the published file; null: random weights, to be trained
    segment_seconds: float | None = Field(
        None, gt=0.02
    )  # length of a segment, with silence at the end; null: up to the longest input
    output: Literal["clip", "frames"] = "frames"  # one vector per segment, or all of its frames

    trained_on_captions: ClassVar[bool] = False  # whether the published weights were
    addresses: ClassVar[dict[str, str]] = {}  # web address by name of the published file
    sha256: ClassVar[dict[str, str]] = {}  # its first digits, where known, by name of the file

    @model_validator(mode="after")
    def _require_possible_segments(self) -> Self:
        shortest, longest = self.seconds
        if not shortest <= self.longest <= longest:
            raise ValueError(f"segment_seconds must be {shortest} to {longest}, not {self.segment_seconds}")
        return self

    @property
    def seconds(self) -> tuple[float, float]:
        """Shortest and longest input."""
        return 0.0, 600.0

    @property
    def longest(self) -> float:
        """Seconds of a segment, or of the longest input."""
        return self.segment_seconds or self.seconds[1]

    @property
    @abstractmethod
    def frame_rate(self) -> float:
        """Frames per second within a segment."""

    @property
    def mixes_batch(self) -> bool:
        """Whether a segment changes others in training, by batch norms."""
        return False

    @abstractmethod
    def layers(self) -> Layers:
        """Build the layers with random weights."""

    def load_into(self, layers: Layers) -> None:
        """Load the published weights."""
        if self.weights is not None:
            tensors = load_checkpoint(Path(self.weights))
            try:
                layers.load(tensors)
            except RuntimeError as error:  # a tensor is missing, or has another shape
                fault = str(error).splitlines()[-1].strip()
                raise KitError(f"{self.weights}: {fault}; get the published file again") from error

    @property
    def frames_per_second(self) -> float:
        return self.frame_rate if self.output == "frames" else 1 / self.longest

    def count_parameters(self) -> int:
        with torch.random.fork_rng(devices=[]):  # the layers draw weights
            return sum(parameter.numel() for parameter in self.layers().parameters())

    def needs(self) -> list[Need]:
        return [] if self.weights is None else [self.need("weights", self.weights)]

    def need(self, setting: str, name: str) -> Need:
        file = Path(name).name
        every = " or ".join(dict.fromkeys(self.addresses.values()))
        return Need(setting, name, self.addresses.get(file, every), self.sha256.get(file, ""))

    def load(self, device: torch.device) -> Frames:
        if self.weights is None:
            raise KitError(f"{self.kind}: frozen frames need a published file; set weights")
        layers = self.layers().eval()
        self.load_into(layers)
        layers = layers.requires_grad_(False).to(device)
        fast(layers)

        @exact_arithmetic()
        def compute(waves: Sequence[np.ndarray]) -> list[np.ndarray]:
            found = outputs_of(layers, self, [torch.from_numpy(wave).to(device) for wave in waves])
            return [torch.cat(parts).float().cpu().numpy() for parts in found]

        return compute


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Compute without gradients, TF32 and random orders of sums."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def outputs_of(layers: Layers, network: AudioNetwork, waves: Sequence[Tensor], width: int = 0) -> list[list[Tensor]]:
    """Compute the outputs of the segments of waves.

    Args:
        waves: (N,) each.
        width: In training, the samples to which the batch is padded: all segments are computed at once, and without
            `segment_seconds` as this long, up to the longest input. 0: those of equal length are computed at once.

    Returns:
        For each wave, and each of its segments, a vector (1, D) or frames (L, D).
    """
    size, shortest = (round(seconds * network.rate) for seconds in (network.longest, network.seconds[0]))
    least = size if network.segment_seconds else min(size, max(shortest, width))
    cut = [wave.split(size) for wave in waves]
    segments = list(itertools.chain(*cut))
    sizes = [len(one) if layers.pads_by_itself else max(least, len(one)) for one in segments]
    at_once = suited_to(segments[0].device, SECONDS_AT_ONCE) * network.rate
    found: dict[int, Tensor] = {}
    for rows in [range(len(sizes))] if width else groups_of_equal_length(sizes, at_once):
        x = pad_sequence([segments[row] for row in rows], batch_first=True)
        x = F.pad(x, (0, max(0, least - x.shape[1])))
        lengths = on_device(torch.tensor([len(segments[row]) for row in rows]), x.device)
        if network.output == "clip":
            found |= zip(rows, layers(x, lengths)[:, None], strict=True)
        else:
            frames, counts = layers.frames(x, lengths)
            found |= {row: one[:count] for row, one, count in zip(rows, frames, counts.tolist(), strict=True)}
    ordered = (found[row] for row in range(len(segments)))
    return [list(itertools.islice(ordered, len(parts))) for parts in cut]


def fast(layers: Layers) -> None:
    """Make convolutions for evaluation 1.3 to 1.6 times as fast.

    Batch norms are folded into them, and channels come last in memory.
    """
    for module in list(layers.modules()):
        for (name, first), (norm, second) in itertools.pairwise(list(module.named_children())):
            if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                setattr(module, name, fuse_conv_bn_eval(first, second))
                setattr(module, norm, nn.Identity())
    layers.to(memory_format=torch.channels_last)


def groups_of_equal_length(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield groups of indexes of equal lengths.

    Args:
        most: Largest sum of a group's lengths; an index alone may have more.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for length, same in itertools.groupby(order, key=lengths.__getitem__):
        while group := list(itertools.islice(same, max(1, most // length))):
            yield group


def in_parts(embed: Callable[[Tensor], Tensor], patches: Tensor, most: int = 64) -> Tensor:
    """Embed patches (S, L, ...), at most `most` at once, for memory."""
    parts = patches.flatten(0, 1).split(most)
    return torch.cat([embed(part) for part in parts]).unflatten(0, patches.shape[:2])


def pooled_over_time(values: Tensor, lengths: Tensor, how: Literal["mean", "max", "max_mean"]) -> Tensor:
    """Pool padded series over time.

    Padding, even NaN, is ignored.

    Args:
        values: (S, L, D).
        lengths: (S,) without padding, at least 1.
        how: By the mean, the maximum, or the sum of both.

    Returns:
        (S, D) float32.
    """
    values, padding = values.float(), ~length_mask(lengths, values.shape[1])[..., None]
    mean = values.masked_fill(padding, 0.0).sum(1) / lengths[:, None]
    highest = values.masked_fill(padding, -torch.inf).amax(1)
    return {"mean": mean, "max": highest, "max_mean": mean + highest}[how]


def frames_within(lengths: Tensor, size: int, frames: int) -> Tensor:
    """Count a segment's frames that begin within the clip.

    Args:
        lengths: (S,) samples of the clip in each segment.
        size: Samples of a segment.
        frames: Frames of a segment.

    Returns:
        (S,), at least 1.
    """
    return ((lengths * frames + size - 1) // size).clamp(1, frames)
