"""YAMNet: 1,024 values every 0.48 s, by MobileNet v1.

Source: Google's public yamnet.tflite, trained on AudioSet. Deviation: the file computes in 8 bits, this network in
floating point; for the same log-mel, embeddings have a cosine of 0.999. In quiet bands the file's log-mel is wrong by
up to 6.
"""

from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_tools.errors import KitError
from system.audio import Need
from system.audio.mel import audioset_log_mel
from system.audio.network import AudioNetwork, Layers

PATCH, PATCH_HOP = 96, 48  # columns of the log-mel
HOP = PATCH_HOP * 160  # samples from one frame to the next
SHORTEST = 400 + (PATCH - 1) * 160  # samples of a frame
# The first convolution, then thirteen pairs of a depthwise and a pointwise one.
STRIDES = (2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
PATCHES_AT_ONCE = 64


class Yamnet(AudioNetwork):
    """Frames (L, 1024), the input of the classifier.

    Silence fills the last one, as in Google's `pad_waveform`.
    """

    kind: Literal["yamnet"]  # its weights: the file that `lbar convert` makes from the published one

    rate = 16_000
    dim = CHANNELS[-1]
    frame_rate = 100 / PATCH_HOP
    first_centre = SHORTEST / 2 / 16_000

    def needs(self) -> list[Need]:
        cure = "make the file from Google's public yamnet.tflite (AudioSet YAMNet, Apache-2.0) with lbar convert"
        return [need._replace(cure=cure) for need in super().needs()]

    def layers(self) -> Layers:
        return YamnetLayers()

    def load_into(self, layers: Layers) -> None:
        path, tensors = Path(self.weights or ""), {}
        try:
            with path.open("rb") as opened, np.load(opened) as file:
                for number in range(2 * len(CHANNELS) - 1):
                    weight = torch.from_numpy(file[f"{number + 3:02d}_w"])  # (out, height, width, in)
                    order = (3, 0, 1, 2) if len(weight) == 1 else (0, 3, 1, 2)  # (1, height, width, channels)
                    tensors[f"conv{number}.weight"] = weight.permute(order).contiguous()
                    tensors[f"conv{number}.bias"] = torch.from_numpy(file[f"{number + 3:02d}_b"])
            layers.load(tensors)
        except Exception as error:  # numpy and zipfile raise many kinds for damaged files
            raise KitError(f"{path} does not have the layers of yamnet.tflite ({error}); convert it again") from error


class YamnetLayers(Layers):
    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(1, CHANNELS[0], 3, STRIDES[0])]
        for (inputs, outputs), stride in zip(pairwise(CHANNELS), STRIDES[1:], strict=True):
            convolutions += [nn.Conv2d(inputs, inputs, 3, stride, groups=inputs), nn.Conv2d(inputs, outputs, 1)]
        for number, layer in enumerate(convolutions):
            self.add_module(f"conv{number}", layer)

    def embed(self, x: Tensor) -> Tensor:
        """Embed patches, (P, 96, 64) -> (P, 1024)."""
        x = x[:, None]
        for layer in self.children():
            x = F.relu(layer(pad_as_tensorflow(x, layer.kernel_size[0], layer.stride[0])))  # type: ignore[index,arg-type]
        return x.mean((2, 3))

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        waves = F.pad(waves, (0, (SHORTEST - waves.shape[1]) % HOP if waves.shape[1] > SHORTEST else 0))
        waves = F.pad(waves, (0, max(0, SHORTEST - waves.shape[1])))
        patches = audioset_log_mel(waves, 0.001).unfold(1, PATCH, PATCH_HOP).transpose(2, 3)  # (S, L, 96, 64)
        frames = torch.cat([self.embed(part) for part in patches.flatten(0, 1).split(PATCHES_AT_ONCE)])
        frames = frames.unflatten(0, patches.shape[:2])
        return frames, (1 + ((lengths - SHORTEST).clamp(min=0) + HOP - 1) // HOP).clamp(max=frames.shape[1])


def pad_as_tensorflow(x: Tensor, size: int, stride: int) -> Tensor:
    """Pad for ceil(n / stride) outputs.

    If the number of zeros is odd, the end gets one more.
    """
    pads = []
    for n in (x.shape[-1], x.shape[-2]):
        total = max((-(-n // stride) - 1) * stride + size - n, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads)
