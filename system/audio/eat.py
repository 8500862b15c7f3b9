"""EAT: a post-norm transformer over patches of a log-mel.

A patch has 16 columns and 16 bands of a Kaldi log-mel of 10 s.

Source: Chen et al., "EAT: Self-Supervised Pre-Training with Efficient Audio Transformer" (2024);
github.com/cwx-worst-one/EAT at 06c1c34. Results equal the original's by a relative 1e-4 (tests/golden). Deviations: no
noise and no drop path in training; the classifier of a fine-tuned file is left out.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from system.audio.blocks import DIM, Block, table
from system.audio.mel import kaldi_log_mel
from system.audio.network import AudioNetwork, Layers
from system.moments.labellings import length_mask

PATCH, BANDS = 16, 8  # columns and bands of a patch; patches above each other
COLUMNS = 1024  # of every input, as for 10 s in the original; zeros, which are louder than silence, follow the clip


class Eat(AudioNetwork):
    """Frames (L, 768) of 160 ms, means over 8 bands.

    The vector of a segment is its class token.
    """

    kind: Literal["eat"]

    rate: ClassVar = 16_000
    dim: ClassVar = DIM
    seconds: ClassVar = (0.025, 10.255)
    licence: ClassVar = "MIT"
    addresses: ClassVar = {
        f"{name}.safetensors": f"https://huggingface.co/worstchan/{name}/resolve/main/model.safetensors"
        for name in ("EAT-base_epoch30_pretrain", "EAT-base_epoch30_finetune_AS2M")
    }

    @property
    def frame_rate(self) -> float:
        return -(-round(self.longest * 16_000) // (160 * PATCH)) / self.longest

    def layers(self) -> Layers:
        return EatLayers()


class EatLayers(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Buffer(position_table(DIM), persistent=False)
        self.local_encoder = nn.ModuleDict({"proj": nn.Conv2d(1, DIM, PATCH, PATCH)})
        self.extra_tokens = table(1, DIM, init=nn.init.normal_)
        self.pre_norm = nn.LayerNorm(DIM, 1e-6)
        self.blocks = nn.Sequential(*(Block(post=True) for _ in range(12)))

    def load(self, tensors: dict[str, Tensor]) -> None:
        super().load({key.removeprefix("model."): value for key, value in tensors.items()})

    def log_mel(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Compute the input of the transformer, (S, 1024, 128)."""
        columns = kaldi_log_mel(waves, 1.0)
        counts = (lengths - 400).clamp(min=0) // 160 + 1
        columns = columns * length_mask(counts, columns.shape[1])[..., None]
        return (F.pad(columns, (0, 0, 0, COLUMNS - columns.shape[1])) + 4.268) / (2 * 4.569)

    def tokens(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Compute the class token, then patches in order of time.

        Returns:
            (S, 1 + 512, 768).
        """
        x = self.local_encoder["proj"](self.log_mel(waves, lengths)[:, None]).flatten(2).transpose(1, 2)
        x = x + self.positions[: x.shape[1]]
        return self.blocks(self.pre_norm(torch.cat([self.extra_tokens.expand(len(x), -1, -1), x], 1)))

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        frames = self.tokens(waves, lengths)[:, 1:].unflatten(1, (-1, BANDS)).mean(2)
        return frames, ((lengths + 2559) // 2560).clamp(1, frames.shape[1])

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        return self.tokens(waves, lengths)[:, 0]


def position_table(dim: int) -> Tensor:
    """Return the fixed positions of patches.

    Row 8 t + f has sines and cosines of band f, then of time t.
    """
    rates = 10_000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    time, band = torch.cartesian_prod(torch.arange(COLUMNS // PATCH), torch.arange(BANDS)).T[..., None]
    return torch.cat([f(at * rates) for at in (band, time) for f in (torch.sin, torch.cos)], 1).float()
