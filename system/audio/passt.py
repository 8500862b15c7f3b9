"""PaSST: a vision transformer that leaves out patches in training.

Source: Koutini et al., "Efficient Training of Audio Transformers with Patchout" (2022); github.com/kkoutini/PaSST.
Results equal the original's by a relative 2e-5 (tests/golden). Systems of 2023 to 2025 train it: s16 with patchout 15
and 2 (2024, the 2025 baseline), s10 with patchout 50 and 3 and stripes of 192 columns and 48 bands (2023).
"""

from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from system.audio import Need
from system.audio.blocks import Block, table
from system.audio.mel import KaldiLogMel, Stripes
from system.audio.network import AudioNetwork, Layers, frames_within
from system.devices import on_device

PATCH = 16  # columns and bands of a patch


class Variant(NamedTuple):
    """A published checkpoint."""

    stride: int  # columns, and bands, from patch to patch
    positions: int  # in time
    blocks: int
    file: str


VARIANTS = {
    "s16": Variant(16, 62, 12, "v0.0.2-audioset/passt-s-f128-p16-s16-ap.468.pt"),
    "s16_swa": Variant(16, 62, 12, "v0.0.2-audioset/passt-s-f128-p16-s16-ap.473-swa.pt"),
    "s10": Variant(10, 99, 12, "v.0.0.9/passt-s-kd-ap.486.pt"),
    "s10_swa": Variant(10, 99, 12, "v0.0.1-audioset/passt-s-f128-p16-s10-ap.476-swa.pt"),
    "l10": Variant(10, 99, 7, "v.0.0.10/passt-l-kd-ap.47.pt"),
    "20s": Variant(10, 200, 12, "v0.0.5/passt-s-f128-20sec-p16-s10-ap.474-swa.pt"),
    "30s": Variant(10, 300, 12, "v0.0.5/passt-s-f128-30sec-p16-s10-ap.473-swa.pt"),
}


class Passt(AudioNetwork):
    """Vectors: means of the class and distillation tokens.

    Frames are means of the patches of one time.
    """

    kind: Literal["passt"]
    network: Literal["s16", "s16_swa", "s10", "s10_swa", "l10", "20s", "30s"]  # published network
    patchout_time: int = Field(0, ge=0)  # columns of patches left out in training
    patchout_bands: int = Field(0, ge=0)  # rows of patches left out in training
    edge_jitter: bool = False  # in training, move the lowest and highest frequency of the log-mel
    stripes: Stripes | None = None  # of the log-mel, masked in training

    rate: ClassVar = 32_000
    dim: ClassVar = 768

    @model_validator(mode="after")
    def _require_remaining_patches(self) -> Self:
        if self.patchout_time >= self._columns or self.patchout_bands >= self.rows:
            raise ValueError(f"patchout leaves nothing of {self._columns} columns and {self.rows} rows")
        return self

    @property
    def rows(self) -> int:
        return (128 - PATCH) // VARIANTS[self.network].stride + 1

    @property
    def _columns(self) -> int:
        return int((self.longest * 100 - PATCH) // VARIANTS[self.network].stride + 1)

    @property
    def seconds(self) -> tuple[float, float]:
        variant = VARIANTS[self.network]
        return PATCH / 100, ((variant.positions - 1) * variant.stride + PATCH + variant.stride - 1) / 100

    @property
    def frame_rate(self) -> float:
        return self._columns / self.longest

    def need(self, setting: str, name: str) -> Need:
        return Need(setting, name, f"https://github.com/kkoutini/PaSST/releases/download/{VARIANTS[self.network].file}")

    def layers(self) -> Layers:
        return PasstLayers(self)


class PasstLayers(Layers):
    def __init__(self, settings: Passt) -> None:
        super().__init__()
        self.settings, variant = settings, VARIANTS[settings.network]
        self.mel = KaldiLogMel(settings.edge_jitter, settings.stripes)
        self.cls_token, self.dist_token, self.new_pos_embed = table(1, 768), table(1, 768), table(2, 768)
        self.freq_new_pos_embed = table(768, settings.rows, 1)
        self.time_new_pos_embed = table(768, 1, variant.positions)
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(1, 768, PATCH, variant.stride)})
        self.blocks = nn.Sequential(*(Block() for _ in range(variant.blocks)))
        self.norm = nn.LayerNorm(768, 1e-6)

    def tokens(self, waves: Tensor) -> Tensor:
        """Compute the tokens of segments.

        Returns:
            (S, 2 + L, 768): class, distillation, then the remaining patches band after band.
        """
        x = self.patch_embed["proj"](self.mel(waves))
        x = x + self.time_new_pos_embed[..., : x.shape[3]] + self.freq_new_pos_embed
        for axis, left_out in ((3, self.settings.patchout_time), (2, self.settings.patchout_bands)):
            if self.training and left_out:
                kept = torch.randperm(x.shape[axis])[left_out:].sort().values
                x = x.index_select(axis, on_device(kept, x.device))
        special = torch.cat([self.cls_token, self.dist_token], 1) + self.new_pos_embed
        x = torch.cat([special.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
        return self.norm(self.blocks(x))

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        return self.tokens(waves)[:, :2].mean(1)

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.settings.rows - (self.settings.patchout_bands if self.training else 0)
        frames = self.tokens(waves)[:, 2:].unflatten(1, (rows, -1)).mean(1)
        return frames, frames_within(lengths, waves.shape[1], frames.shape[1])
