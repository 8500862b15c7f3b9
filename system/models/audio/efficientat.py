"""EfficientAT on waveforms, trained or frozen, with an embedding behind it. Never imports torch."""

from typing import Literal

from system.models.audio.segmented import FromPublished, Network, NetworkCost, SpecAugment
from system.networks.efficientat_published import LAST_RATIO, LIMITS, STEM, VARIANTS, Name, Row, rounded
from system.networks.passt_published import BANDS, HOP, RATE


class EfficientAT(FromPublished):
    """A MobileNetV3 of EfficientAT on waveforms at 32 kHz in segments, the mean of its last map, then over the
    segments; linear to the text size.

    Source: Schmid et al. (2023); as a retrieval encoder, SALSA (2024), which has mn40 on segments of 10 s.
    """

    kind: Literal["efficientat"]
    network: Name  # which of the published ones, by ten times the width of its layers
    edge_jitter: bool  # in training, move the lowest and highest frequency of the log-mel
    spec_augment: SpecAugment | None  # stripes of the log-mel that are masked in training

    @property
    def vector_dim(self) -> int:
        return VARIANTS[self.network].dim

    @property
    def limits(self) -> tuple[float, float]:
        return LIMITS

    @property
    def title(self) -> str:
        return f"EfficientAT {self.network}"

    @property
    def sees_whole_batch(self) -> bool:
        """By its batch norms."""
        return self.trainable

    def published_address(self) -> str:
        return VARIANTS[self.network].address

    def build_network(self) -> Network:
        from system.networks.efficientat import MOMENTUM, MOMENTUM_FROM_SCRATCH, MobileNet, MobileNetOnWaves
        from system.networks.kaldi_log_mel import KaldiLogMel, Masks

        network = MobileNet(self.network, MOMENTUM_FROM_SCRATCH if self.weights is None else MOMENTUM)
        masks = None if self.spec_augment is None else Masks(**self.spec_augment.model_dump())
        return MobileNetOnWaves(KaldiLogMel(self.edge_jitter, masks), network, self.vector_dim)

    def network_cost(self) -> NetworkCost:
        """Every convolution keeps its output, and what its batch norm and its activation make of it."""
        variant = VARIANTS[self.network]
        area = BANDS * self.segment_seconds * RATE / HOP / 4  # behind the first convolution
        outputs = [variant.channels(STEM) * area]
        parameters = (9 + 2) * variant.channels(STEM)
        products = 9 * outputs[0]
        for row in variant.rows():
            before, area = area, area / row.stride**2
            depthwise = row.between * area
            outputs += [row.between * before] if row.between != row.inputs else []
            outputs += [depthwise, row.outputs * area]
            gate, of_row = _parameters(row)
            parameters += gate + of_row
            products += gate + row.kernel**2 * depthwise + row.between * row.outputs * area
            products += row.inputs * row.between * before if row.between != row.inputs else 0
        width = variant.rows()[-1].outputs
        outputs.append(LAST_RATIO * width * area)
        parameters += LAST_RATIO * width * (width + 2)
        products += LAST_RATIO * width * width * area
        return NetworkCost(parameters, 3 * sum(outputs), 3 * max(outputs), 2 * products)


def _parameters(row: Row) -> tuple[int, int]:
    """Of the gate, and of the convolutions with their norms."""
    size = rounded(row.between // 4)
    gate = (row.between + 1) * size + (size + 1) * row.between if row.gated else 0
    expansion = row.between * (row.inputs + 2) if row.between != row.inputs else 0
    return gate, expansion + row.between * (row.kernel**2 + 2) + row.outputs * (row.between + 2)
