"""PaSST: web addresses, sizes.

The addresses are those of the published weights; the sizes are those of the network. Never imports torch.

Source: Koutini et al., "Efficient Training of Audio Transformers with Patchout" (2022); github.com/kkoutini/PaSST.
"""

from dataclasses import dataclass
from typing import Literal

Name = Literal["s16", "s16_swa", "s10", "s10_swa", "l10", "20s", "30s"]

RATE = 32_000  # Hz
HOP = 320  # samples from one column to the next: 100 columns per second
BANDS = 128
PATCH = 16  # columns and bands of a patch
DIM = 768
HEADS = 12
FFN_DIM = 3072

_RELEASES = "https://github.com/kkoutini/PaSST/releases/download"


@dataclass(frozen=True)
class Variant:
    """A published checkpoint. address: Address of the file. stride: Columns and bands from one patch to the next.
    positions: Number of its position embeddings in time. blocks: Number of attention blocks.
    """

    address: str
    stride: int
    positions: int
    blocks: int = 12

    @property
    def rows(self) -> int:
        """Number of patches along the frequency axis of a spectrogram."""
        return (BANDS - PATCH) // self.stride + 1

    def patches(self, columns: float) -> int:
        """Return the number of patches in time for a number of spectrogram columns."""
        return int((columns - PATCH) // self.stride + 1)

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest input that the network accepts, in seconds.

        The shortest input has one patch. The longest has as many patches as the network has positions.
        """
        return PATCH * HOP / RATE, ((self.positions - 1) * self.stride + PATCH + self.stride - 1) * HOP / RATE


VARIANTS: dict[Name, Variant] = {
    "s16": Variant(f"{_RELEASES}/v0.0.2-audioset/passt-s-f128-p16-s16-ap.468.pt", 16, 62),
    "s16_swa": Variant(f"{_RELEASES}/v0.0.2-audioset/passt-s-f128-p16-s16-ap.473-swa.pt", 16, 62),
    "s10": Variant(f"{_RELEASES}/v.0.0.9/passt-s-kd-ap.486.pt", 10, 99),
    "s10_swa": Variant(f"{_RELEASES}/v0.0.1-audioset/passt-s-f128-p16-s10-ap.476-swa.pt", 10, 99),
    "l10": Variant(f"{_RELEASES}/v.0.0.10/passt-l-kd-ap.47.pt", 10, 99, 7),
    "20s": Variant(f"{_RELEASES}/v0.0.5/passt-s-f128-20sec-p16-s10-ap.474-swa.pt", 10, 200),
    "30s": Variant(f"{_RELEASES}/v0.0.5/passt-s-f128-30sec-p16-s10-ap.473-swa.pt", 10, 300),
}
