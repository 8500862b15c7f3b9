"""EfficientAT: web addresses, sizes.

The addresses are those of the published weights; the sizes are those of the network. Never imports torch.

Source: Schmid et al., "Efficient Large-Scale Audio Tagging via Transformer-to-CNN Knowledge Distillation" (2023);
github.com/fschmid56/EfficientAT.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Name = Literal["mn04", "mn10", "mn20", "mn40"]

_RELEASES = "https://github.com/fschmid56/EfficientAT/releases/download/v0.0.1"

STEM = 16  # channels of the first convolution, which halves bands and columns
LAST_RATIO = 6  # channels of the last convolution, divided by those before it
STRIDE = 32  # input columns per column of the last map
LIMITS = 0.32, 600.0  # seconds: one column of the last map, and the limit of memory


class Row(NamedTuple):
    """An inverted residual block: its channels (input, between, output), kernel, gate, hard swish, and stride."""

    inputs: int
    kernel: int
    between: int
    outputs: int
    gated: bool
    swish: bool
    stride: int


ROWS = [
    Row(16, 3, 16, 16, False, False, 1),
    Row(16, 3, 64, 24, False, False, 2),
    Row(24, 3, 72, 24, False, False, 1),
    Row(24, 5, 72, 40, True, False, 2),
    Row(40, 5, 120, 40, True, False, 1),
    Row(40, 5, 120, 40, True, False, 1),
    Row(40, 3, 240, 80, False, True, 2),
    Row(80, 3, 200, 80, False, True, 1),
    Row(80, 3, 184, 80, False, True, 1),
    Row(80, 3, 184, 80, False, True, 1),
    Row(80, 3, 480, 112, True, True, 1),
    Row(112, 3, 672, 112, True, True, 1),
    Row(112, 5, 672, 160, True, True, 2),
    Row(160, 5, 960, 160, True, True, 1),
    Row(160, 5, 960, 160, True, True, 1),
]


@dataclass(frozen=True)
class Variant:
    """A published checkpoint. address: Address of the file. width: Factor on all numbers of channels."""

    address: str
    width: float

    def scaled_channels(self, number: int) -> int:
        """Scale a number of channels by the width of this variant of the network."""
        return round_to_multiple_of_8(number * self.width)

    def scaled_rows(self) -> list[Row]:
        """Return the settings of the network's blocks, with channels scaled by the width of this variant."""
        sizes = self.scaled_channels
        return [
            row._replace(inputs=sizes(row.inputs), between=sizes(row.between), outputs=sizes(row.outputs))
            for row in ROWS
        ]

    @property
    def dim(self) -> int:
        """Number of values in the vector that the network returns per segment."""
        return LAST_RATIO * self.scaled_rows()[-1].outputs


VARIANTS: dict[Name, Variant] = {
    "mn04": Variant(f"{_RELEASES}/mn04_as_mAP_432.pt", 0.4),
    "mn10": Variant(f"{_RELEASES}/mn10_as_mAP_471.pt", 1.0),
    "mn20": Variant(f"{_RELEASES}/mn20_as_mAP_478.pt", 2.0),
    "mn40": Variant(f"{_RELEASES}/mn40_as_ext_mAP_487.pt", 4.0),
}


def round_to_multiple_of_8(number: float) -> int:
    """Round to the nearest multiple of 8, at least 8; if that is below 90 % of `number`, to the next multiple."""
    nearest = max(8, int(number + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * number else nearest
