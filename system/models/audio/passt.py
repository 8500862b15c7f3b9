"""PaSST: settings.

PaSST on waveforms, trained or frozen, followed by an embedding layer. Never imports torch.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from system.models.audio.segmented import FromPublished, Network, SpecAugment
from system.networks.passt_published import DIM, HOP, RATE, VARIANTS, Name


class Passt(FromPublished):
    """PaSST on segments of 32 kHz waveforms. The vector of a segment is the mean of its class and distillation tokens.
    The vectors of a clip's segments are pooled, and mapped to the size of text embeddings by a linear layer.
    With segment_pooling `mean`, as in the 2025 baseline, every segment has the same weight. Thus the last 0.02 s of a
    clip of 10.02 s weigh as much as its first 10 s. The embedding then has a cosine of only 0.67 to 0.75 with that of
    the first 10 s.

    Source: the retrieval systems of CP-JKU (2023, 2024) and the DCASE 2025 baseline. All use segments of 10 s. The
    system of 2024 and the baseline use the network s16 (patches start every 16 columns and bands), patchout 15 in time
    and 2 in bands, and no masks. The system of 2023 uses s10 (every 10 columns and bands), patchout 50 in time and 3 in
    bands, and masks of 192 columns and 48 bands.
    """

    kind: Literal["passt"]
    network: Name  # published network, named by its stride (16 or 10), its seconds or its size
    patchout_time: int = Field(ge=0)  # columns of patches that are left out in training
    patchout_bands: int = Field(ge=0)  # rows of patches that are left out in training
    patchout_tokens: int = Field(0, ge=0)  # single patches of the rest that are left out in training
    edge_jitter: bool  # in training, move the lowest and highest frequency of the log-mel
    spec_augment: SpecAugment | None  # stripes of the log-mel that are masked in training

    @property
    def vector_dim(self) -> int:
        """Number of values in the vector that the network returns per segment."""
        return DIM

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return VARIANTS[self.network].limits

    @property
    def title(self) -> str:
        """Name of the network, for messages."""
        return f"PaSST {self.network}"

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        """Yield the name and an error message of each wrong setting, such as more patches left out than exist."""
        yield from super().setting_errors(out)
        variant = VARIANTS[self.network]
        patches = variant.patches(self.segment_seconds * RATE / HOP)
        for key, line, left_out, size in (
            ("patchout_time", "column", self.patchout_time, patches),
            ("patchout_bands", "row", self.patchout_bands, variant.rows),
        ):
            if left_out >= size:
                yield key, f"{key} must be less than {size}, so that one {line} of patches remains"
        rest = (variant.rows - self.patchout_bands) * (patches - self.patchout_time)
        if self.patchout_tokens >= rest > 0:
            yield "patchout_tokens", f"patchout_tokens must be less than {rest}, so that one patch remains"

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return VARIANTS[self.network].address

    def build_network(self) -> Network:
        """Build the network with untrained weights."""
        from system.networks.kaldi_log_mel import KaldiLogMel, Masks
        from system.networks.passt import Passt, PasstOnWaves

        masks = None if self.spec_augment is None else Masks(**self.spec_augment.model_dump())
        patchout = (self.patchout_time, self.patchout_bands, self.patchout_tokens)
        return PasstOnWaves(KaldiLogMel(self.edge_jitter, masks), Passt(self.network, patchout))
