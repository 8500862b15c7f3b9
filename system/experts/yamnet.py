"""YAMNet, frozen.

YAMNet: MobileNet v1 trained on AudioSet, 1,024-d frames every 0.48 s, with the layers of the public `yamnet.tflite`.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from data_tools.errors import KitError
from system.experts.audioset import HOP, PATCH_SAMPLES, RATE, cut_into_patches, log_mel
from system.experts.base import Device, ExpertSettings, Frames

Network = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

PATCH_HOP = 48  # log-mel columns from one patch to the next
HOP_SAMPLES = PATCH_HOP * HOP  # 7,680
OFFSET = 0.001  # added to the mel magnitude before the logarithm
BATCH = 64  # patches
LAYERS = 31  # of the tflite; the first three are its front-end
# The first convolution, then thirteen pairs of a depthwise and a pointwise one.
STRIDES = (2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
CLASSES = 521


class Yamnet(ExpertSettings):
    """Embeddings (P, 1024) of YAMNet, the input of its classifier.
    P = 1 + ceil((N - 15,600) / 7,680) for N samples, and 1 for fewer than 15,600 samples (0.975 s). Silence fills the
    last frame, as in Google's `pad_waveform`.

    The weight file contains the 31 layers of the tflite file in their order,
    dequantised to float32 (`NN_w`, `NN_b`: TensorFlow Lite's layout, batch norm folded).

    Deviation: the public tflite file computes front-end and network in int8; this expert uses floating point. For the
    same log-mel, the embeddings of both have a cosine of 0.999. In quiet mel bins, the log-mel (natural logarithm) of
    the public file is wrong by up to 6; here it follows the definition. The best of the 521 classes was compared on the
    4,009 frames of ESC-10's 400 recordings. It differs in 398 frames with one TFLite runtime, and in 389 with another.
    In half of the 398 frames, the best class of the public file is the second best class here. If the class scores are
    averaged over each recording, the best class differs for 23 recordings with the first runtime, and for 22 with the
    second.
    This is version 2. Version 1 dropped remaining samples at the end if they were shorter than a hop of 0.48 s.
    """

    kind: Literal["yamnet"]
    weights: str  # the file that `lbar convert` makes from the published one

    usual: ClassVar[dict[str, Any]] = {"weights": "yamnet_layers.npz"}
    version: ClassVar[int] = 2
    rate: ClassVar[int] = RATE
    dim: ClassVar[int] = 1024
    frames_per_second: ClassVar[float] = 100.0 / PATCH_HOP
    first_centre: ClassVar[float] = 0.5 * PATCH_SAMPLES / RATE
    parameters: ClassVar[int] = 3_729_481  # of the 28 layers after the front-end, batch norm folded

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting name to the path of the weight file."""
        return {"weights": Path(self.weights)}

    def weight_source(self) -> str:
        """Return a text for error messages: where to get missing weights."""
        return "make the file from Google's public yamnet.tflite (AudioSet YAMNet, Apache-2.0) with lbar convert"

    def load(self, device: Device) -> Frames:
        """Return a function that computes the frames of waves on a device."""
        from system.experts.network import apply_by_rows

        network = load_network(Path(self.weights), device)

        def compute_patches(wave: np.ndarray) -> np.ndarray:
            """Compute YAMNet's input patches of a wave."""
            return cut_into_patches(log_mel(pad_to_frames(wave), OFFSET), PATCH_HOP)

        return lambda waves: apply_by_rows(
            [compute_patches(wave) for wave in waves], BATCH, lambda rows: network(rows)[0]
        )


def pad_to_frames(wave: np.ndarray) -> np.ndarray:
    """Pad a wave with silence at its end, so that it fills a whole number of frames, at least one frame."""
    frames = 1 + max(0, -(-(len(wave) - PATCH_SAMPLES) // HOP_SAMPLES))
    return np.pad(wave, (0, PATCH_SAMPLES + (frames - 1) * HOP_SAMPLES - len(wave)))


def layer_shapes() -> dict[str, tuple[int, ...]]:
    """Return a dict from the name of an array in YAMNet's weight file to its shape."""
    found: dict[str, tuple[int, ...]] = {"03_w": (CHANNELS[0], 3, 3, 1), "03_b": CHANNELS[:1]}
    for layer, (inputs, outputs) in zip(range(4, 30, 2), pairwise(CHANNELS), strict=True):
        found |= {f"{layer:02d}_w": (1, 3, 3, inputs), f"{layer:02d}_b": (inputs,)}
        found |= {f"{layer + 1:02d}_w": (outputs, 1, 1, inputs), f"{layer + 1:02d}_b": (outputs,)}
    return found | {"30_w": (CLASSES, CHANNELS[-1]), "30_b": (CLASSES,)}


def load_network(path: Path, device: Device) -> Network:
    """Build YAMNet from its weight file, as a function from patches to embeddings and class scores.

    Returns: A function from P patches (P, 96, 64) to embeddings (P, 1024) and class scores (P, 521), both float32
    arrays.
    """
    import torch
    import torch.nn.functional as F

    from system.experts.network import exact_arithmetic

    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name].astype(np.float32) for name in layer_shapes()}
        if {name: array.shape for name, array in arrays.items()} != layer_shapes():
            raise ValueError("the arrays in the file do not have the shapes of YAMNet's layers")
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged header or member
        raise KitError(
            f"{path} does not contain the 31 layers of yamnet.tflite ({error}); "
            "make the file again with lbar convert yamnet.tflite"
        ) from error

    def to_torch_layout(weight: torch.Tensor) -> torch.Tensor:
        """Permute the weights of a convolution from TensorFlow Lite's layout to torch's layout.

        TensorFlow Lite's layout is (out, height, width, in) for convolutions, and (1, height, width, channels) for
        depthwise convolutions.
        """
        return weight.permute((3, 0, 1, 2) if len(weight) == 1 else (0, 3, 1, 2)).contiguous()

    stored = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    layers = {name: to_torch_layout(value) if value.ndim == 4 else value for name, value in stored.items()}

    def conv(x: torch.Tensor, layer: int, stride: int, depthwise: bool) -> torch.Tensor:
        """Apply convolution `layer` of YAMNet with TensorFlow's padding 'same', and then a ReLU."""
        weight, bias = layers[f"{layer:02d}_w"], layers[f"{layer:02d}_b"]
        size = weight.shape[-1]
        # TF 'same': the least padding that gives ceil(n / stride) outputs; an odd one goes to the end.
        pads = []
        for n in (x.shape[-1], x.shape[-2]):
            total = max((-(-n // stride) - 1) * stride + size - n, 0)
            pads += [total // 2, total - total // 2]
        return F.relu(F.conv2d(F.pad(x, pads), weight, bias, stride, groups=x.shape[1] if depthwise else 1))

    @exact_arithmetic()
    def network(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute embeddings and class scores of patches."""
        x = torch.from_numpy(np.array(inputs, np.float32))[:, None].to(device)
        x = conv(x, 3, STRIDES[0], False)
        for i, stride in enumerate(STRIDES[1:]):
            x = conv(x, 4 + 2 * i, stride, True)
            x = conv(x, 5 + 2 * i, 1, False)
        embedding = x.mean((2, 3))
        scores = torch.sigmoid(F.linear(embedding, layers["30_w"], layers["30_b"]))
        return embedding.cpu().numpy(), scores.cpu().numpy()

    return network
