"""PaSST on waveforms, trained or frozen, with an embedding behind it."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from data_tools.strict import Size
from system.experts import Expert, Waveform
from system.experts.base import Resampled
from system.models.audio.base import AudioSettings, Encoder
from system.models.audio.panns import SpecAugment
from system.models.costs import TRAINING, Cost, layer_parameters, mlp_parameters
from system.networks.passt_published import DIM, FFN_DIM, HOP, PATCH, RATE, VARIANTS, Name


class Passt(AudioSettings, Resampled):
    """PaSST on waveforms at 32 kHz in segments, the mean of its two tokens of the whole, then over the segments;
    linear to the text size.

    Source: the retrieval systems of CP-JKU (2023, 2024) and the DCASE 2025 baseline: s16, segments of 10 s, patchout
    15 and 2, no masks (2023: s10, 50 and 3, masks of 192 columns and 48 bands).
    """

    kind: Literal["passt"]
    network: Name  # which of the published ones: strides of 16 or 10, seconds or blocks
    weights: str | None  # the published checkpoint; null: from scratch
    trainable: bool  # false: frozen
    segment_seconds: float = Field(gt=0.02)  # heard at once; a shorter rest is filled with silence
    hop_seconds: float = Field(gt=0.01)  # from the beginning of a segment to that of the next
    max_seconds: float = Field(gt=0)  # a longer clip: a random part in training, the whole one elsewhere
    patchout_time: int = Field(ge=0)  # columns of patches that are left out in training
    patchout_bands: int = Field(ge=0)  # rows of patches that are left out in training
    patchout_tokens: int = Field(0, ge=0)  # single patches of the rest that are left out in training
    edge_jitter: bool  # in training, move the lowest and highest frequency of the log-mel
    spec_augment: SpecAugment | None  # stripes of the log-mel that are masked in training
    segment_pooling: Literal["mean", "attention"]  # of a clip's segments
    hidden: Size | None  # of a layer with ReLU before the last one; null: only the last one

    file_settings: ClassVar[frozenset[str]] = frozenset({"weights"})

    @field_validator("trainable")
    @classmethod
    def _says_something(cls, trainable: bool, info: ValidationInfo) -> bool:
        if not trainable and info.data.get("weights", "") is None:
            raise ValueError("a network without published weights that is not trained says nothing")
        return trainable

    @property
    def experts(self) -> dict[str, Expert]:
        """What its input is kept as: 16-bit waveforms."""
        return {"waveform": Waveform(kind="waveform", sample_rate=RATE, resampling=self.resampling)}

    def misfits(self, out: int) -> Iterator[tuple[str, str]]:
        variant = VARIANTS[self.network]
        if not PATCH / 100 <= self.segment_seconds <= variant.max_seconds:
            longest = f"{PATCH / 100} to {variant.max_seconds} s"
            yield "segment_seconds", f"{self.network} hears {longest} at once, not {self.segment_seconds}"
        if self.hop_seconds > self.segment_seconds:
            yield "hop_seconds", "longer than segment_seconds, it leaves parts unheard"
        patches = variant.patches(self.segment_seconds * RATE / HOP)
        for key, left_out, size in (
            ("patchout_time", self.patchout_time, patches),
            ("patchout_bands", self.patchout_bands, variant.rows),
        ):
            if left_out >= size:
                yield key, f"there are {size}, of which one at least must stay"
        rest = (variant.rows - self.patchout_bands) * (patches - self.patchout_time)
        if self.patchout_tokens >= rest > 0:
            yield "patchout_tokens", f"there are {rest}, of which one at least must stay"

    def weight_files(self) -> dict[str, Path]:
        return {} if self.weights is None else {"weights": Path(self.weights)}

    def published_address(self) -> str:
        return VARIANTS[self.network].address

    def build(self, out: int) -> Encoder:
        from system.models.audio.passt_encoder import PasstEncoder

        return PasstEncoder(self, out)

    def cost(self, out: int, seconds: float, longest: float) -> Cost:
        """Of every block, attention is computed in one piece and keeps no products of pairs of places. A frozen
        network is computed in evaluation."""
        variant = VARIANTS[self.network]
        segments = 1 + max(0.0, min(longest, self.max_seconds) - self.segment_seconds) // self.hop_seconds
        rows, times = variant.rows, variant.patches(self.segment_seconds * RATE / HOP)
        if self.trainable:
            rows, times = rows - self.patchout_bands, times - self.patchout_time
        tokens = 2 + rows * times - (self.patchout_tokens if self.trainable else 0)
        blocks = variant.blocks * layer_parameters(DIM, FFN_DIM)
        tables = (4 + variant.rows + variant.positions) * DIM
        parameters = blocks + tables + (PATCH**2 + 1) * DIM + 2 * DIM
        head = (DIM + 1) * out if self.hidden is None else mlp_parameters(DIM, self.hidden, out)
        head += DIM + 1 if self.segment_pooling == "attention" else 0
        kept = variant.blocks * tokens * (8 * DIM + 2 * FFN_DIM)
        patches = variant.rows * variant.patches(self.segment_seconds * RATE / HOP) * PATCH**2 * DIM
        products = variant.blocks * 2 * tokens**2 * DIM
        flops = TRAINING * (tokens * blocks + products + patches)
        if self.trainable:
            return Cost({"network": parameters, "head": head}, segments * kept, segments * flops + TRAINING * head)
        at_once = kept / variant.blocks
        return Cost({"network": 0, "head": head}, segments * at_once, segments * flops / 3, frozen=parameters)

    def plan_lines(self) -> Iterator[str]:
        missing = "".join(f" MISSING; published at {self.published_address()}" for _ in self.missing_files())
        source = "from scratch" if self.weights is None else f"from {self.weights}{missing}"
        yield f"audio network PaSST {self.network}: {'trained' if self.trainable else 'frozen'}, {source}"
