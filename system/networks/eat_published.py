"""EAT: web addresses, sizes.

The addresses are those of the published weights; the sizes are those of the network. Never imports torch.

Source: Chen et al., "EAT: Self-Supervised Pre-Training with Efficient Audio Transformer" (2024);
github.com/cwx-worst-one/EAT at 06c1c34.
"""

from dataclasses import dataclass
from typing import Literal

Name = Literal["base", "base_finetuned", "large", "large_finetuned"]
Columns = Literal[1024, "multiple_of_16"]
Vector = Literal["cls", "mean"]

LICENCE = "MIT"

RATE = 16_000  # Hz
MEAN, SPREAD = -4.268, 2 * 4.569  # of the log-mel
PATCH = 16  # columns and bands of a patch
BAND_PATCHES = 8
HOP = 160  # samples of a column
WINDOW = 400  # samples of a column
PADDED = 1024  # columns of an input of 10 s
POSITIONS = 768  # steps of the table of positions
EPS = 1e-6  # of the layer norms
SHORTEST = WINDOW / RATE  # seconds
LONGEST: dict[Columns, float] = {  # seconds
    1024: ((PADDED - 1) * HOP + WINDOW) / RATE,
    "multiple_of_16": ((POSITIONS * PATCH - 1) * HOP + WINDOW) / RATE,
}
PARAMETERS = 85_254_144  # of base, without the head and the table of positions

_HUB = "https://huggingface.co/worstchan"


@dataclass(frozen=True)
class Variant:
    """A published checkpoint. address: Address of its file. dim: Values of a token."""

    address: str
    dim: int = 768
    heads: int = 12
    blocks: int = 12

    @property
    def ffn_dim(self) -> int:
        """Number of values inside of a feed-forward layer."""
        return 4 * self.dim


VARIANTS: dict[Name, Variant] = {
    "base": Variant(f"{_HUB}/EAT-base_epoch30_pretrain/resolve/main/model.safetensors"),
    "base_finetuned": Variant(f"{_HUB}/EAT-base_epoch30_finetune_AS2M/resolve/main/model.safetensors"),
    "large": Variant(f"{_HUB}/EAT-large_epoch20_pretrain/resolve/main/model.safetensors", 1024, 16, 24),
    "large_finetuned": Variant(f"{_HUB}/EAT-large_epoch20_finetune_AS2M/resolve/main/model.safetensors", 1024, 16, 24),
}


def frame_count(seconds: float) -> int:
    """Return the number of frames (160 ms each) that begin within a segment: 63 for 10 s."""
    return max(1, -(-round(seconds * RATE) // (HOP * PATCH)))
