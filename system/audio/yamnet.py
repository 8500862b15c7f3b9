"""YAMNet: 1,024 values every 0.48 s, by MobileNet v1.

Source: Google's public yamnet.tflite, trained on AudioSet. Deviation: the file computes in 8 bits, this network in
floating point; for the same log-mel, embeddings have a cosine of 0.999. In quiet bands the file's log-mel is wrong by
up to 6.
"""

from itertools import pairwise
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from system.audio import Need
from system.audio.mel import audioset_log_mel
from system.audio.network import AudioNetwork, Layers, in_parts

PATCH, PATCH_HOP = 96, 48  # columns of the log-mel
HOP = PATCH_HOP * 160  # samples from one frame to the next
SHORTEST = 400 + (PATCH - 1) * 160  # samples of a frame
# The first convolution, then thirteen pairs of a depthwise and a pointwise one.
STRIDES = (2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)


class Yamnet(AudioNetwork):
    """Frames (L, 1024), the input of the classifier.

    Silence fills the last one, as in Google's `pad_waveform`.
    """

    kind: Literal["yamnet"]  # its weights: the file that `lbar convert` makes from the published one

    rate: ClassVar = 16_000
    dim: ClassVar = CHANNELS[-1]
    frame_rate: ClassVar = 100 / PATCH_HOP
    first_centre: ClassVar = SHORTEST / 2 / 16_000

    def needs(self) -> list[Need]:
        cure = "make the file from Google's public yamnet.tflite (AudioSet YAMNet, Apache-2.0) with lbar convert"
        return [need._replace(cure=cure) for need in super().needs()]

    def layers(self) -> Layers:
        return YamnetLayers()


class YamnetLayers(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(1, CHANNELS[0], 3, STRIDES[0])
        for number, (inputs, outputs) in enumerate(pairwise(CHANNELS), 1):
            stride = STRIDES[number]
            depthwise = nn.Conv2d(inputs, inputs, 3, stride, 2 - stride, groups=inputs)
            self.add_module(f"conv{2 * number - 1}", depthwise)
            self.add_module(f"conv{2 * number}", nn.Conv2d(inputs, outputs, 1))

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take the tensors, whose channels come last in the file."""
        names = {
            f"{number + 3:02d}_{part[0]}": f"conv{number}.{part}"
            for number in range(2 * len(CHANNELS) - 1)
            for part in ("weight", "bias")
        }
        for key, value in tensors.items():
            if value.dim() == 4:  # (out, height, width, in), or (1, height, width, channels)
                tensors[key] = value.movedim(3, 0 if len(value) == 1 else 1)
        super().load({names[key]: value for key, value in tensors.items() if key in names})

    def embed(self, x: Tensor) -> Tensor:
        """Embed patches, (P, 96, 64) -> (P, 1024)."""
        x = x[:, None]
        for layer in self.children():
            if layer.stride == (2, 2):  # as in TensorFlow, which pads an even size at its end
                x = F.pad(x, (0, 1, 0, 1))
            x = layer(x).relu()
        return x.mean((2, 3))

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        short = SHORTEST - waves.shape[1]
        waves = F.pad(waves, (0, short if short > 0 else short % HOP))
        patches = audioset_log_mel(waves, 0.001).unfold(1, PATCH, PATCH_HOP).transpose(2, 3)  # (S, L, 96, 64)
        frames = in_parts(self.embed, patches)
        return frames, (1 + ((lengths - SHORTEST).clamp(min=0) + HOP - 1) // HOP).clamp(max=frames.shape[1])
