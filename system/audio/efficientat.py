"""EfficientAT: a MobileNetV3 on log-mels, small and fast.

Source: Schmid et al., "Efficient Large-Scale Audio Tagging via Transformer-to-CNN Knowledge Distillation" (2023);
github.com/fschmid56/EfficientAT. Results equal the original's by a relative 1e-4 (tests/golden). SALSA (2024) uses
mn40.
"""

from functools import partial
from typing import ClassVar, Literal

from torch import Tensor, nn
from torchvision.models.mobilenetv3 import InvertedResidual, mobilenet_v3_large
from torchvision.ops import SqueezeExcitation

from system.audio.mel import KaldiLogMel, Stripes
from system.audio.network import AudioNetwork, Layers, frames_within

WIDTHS = {"mn04": 0.4, "mn10": 1.0, "mn20": 2.0, "mn40": 4.0}
GATE = "conc_se_layers.0."  # in the names of published tensors
_RELEASES = "https://github.com/fschmid56/EfficientAT/releases/download/v0.0.1"


class EfficientAT(AudioNetwork):
    """Frames, 3.1 per second: the last map's means over frequency.

    The vector of a segment is their mean.
    """

    kind: Literal["efficientat"]
    network: Literal["mn04", "mn10", "mn20", "mn40"]  # published network, named by ten times its width
    edge_jitter: bool = False  # in training, move the lowest and highest frequency of the log-mel
    stripes: Stripes | None = None  # of the log-mel, masked in training

    rate: ClassVar = 32_000
    frame_rate: ClassVar = 100 / 32
    seconds: ClassVar = (0.32, 600.0)
    mixes_batch: ClassVar = True
    addresses: ClassVar = {
        f"{name}.pt": f"{_RELEASES}/{name}.pt"
        for name in ("mn04_as_mAP_432", "mn10_as_mAP_471", "mn20_as_mAP_478", "mn40_as_ext_mAP_487")
    }

    @property
    def dim(self) -> int:
        return round(960 * WIDTHS[self.network])

    def layers(self) -> Layers:
        return EfficientATLayers(self)


class EfficientATLayers(Layers):
    def __init__(self, settings: EfficientAT) -> None:
        super().__init__()
        self.mel = KaldiLogMel(settings.edge_jitter, settings.stripes)
        gates = partial(SqueezeExcitation, scale_activation=nn.Sigmoid)
        norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01 if settings.weights else 0.1)
        block = partial(InvertedResidual, se_layer=gates)
        network = mobilenet_v3_large(width_mult=WIDTHS[settings.network], block=block, norm_layer=norm)
        self.features = network.features
        self.features[0][0] = nn.Conv2d(1, self.features[0][0].out_channels, 3, 2, 1, bias=False)
        nn.init.kaiming_normal_(self.features[0][0].weight, mode="fan_out")

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take the tensors; gates, dense in the file, are convolutions."""
        gates = {key: one[..., None, None] if one.dim() == 2 else one for key, one in tensors.items() if GATE in key}
        super().load(tensors | {key.replace(GATE, ""): one for key, one in gates.items()})

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        return self.frames(waves, lengths)[0].mean(1)

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        frames = self.features(self.mel(waves)).float().mean(2).transpose(1, 2)
        return frames, frames_within(lengths, waves.shape[1], frames.shape[1])
