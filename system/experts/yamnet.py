"""YAMNet: MobileNet v1 trained on AudioSet, 1,024-d frames every 0.48 s, from the layers of the public
`yamnet.tflite`."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from system.errors import KitError
from system.experts.base import ExpertSettings, Frames

Network = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

RATE = 16_000
PATCH = 96  # log-mel columns in a patch (0.96 s)
PATCH_HOP = 48
PATCH_SAMPLES = 15_600  # the least that fills one patch: 95 hops of 160 and a window of 400
# Stride of layer 1 and of the thirteen depthwise layers after it.
STRIDES = (2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)


def mel_basis() -> np.ndarray:
    """(257, 64) float32 triangles, linear in HTK mel between 125 and 7,500 Hz, no area norm, DC row zero.

    Source: the AudioSet front-end (VGGish `mel_features.py`). torchaudio's and librosa's HTK triangles are linear in
    Hz."""

    def mel(hertz: np.ndarray) -> np.ndarray:
        return 1127.0 * np.log1p(hertz / 700.0)

    bins = mel(np.linspace(0.0, RATE / 2, 257))[:, None]
    edges = np.linspace(mel(np.array(125.0)), mel(np.array(7500.0)), 66)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    basis = np.maximum(0.0, np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)))
    basis[0] = 0.0
    return basis.astype(np.float32)


def log_mel(wave: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """(N,) float32 at 16 kHz, N >= 400 -> (T, 64) float32, ln(mel magnitude + 0.001), 100 columns a second.

    Periodic Hann 400, hop 160, no centring, magnitude of a 512-point FFT (zeros at the end), incomplete windows
    dropped."""
    windows = np.lib.stride_tricks.sliding_window_view(wave, 400)[::160]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)).astype(np.float32)
    magnitude = np.abs(np.fft.rfft(windows * hann, 512)).astype(np.float32)
    return np.log(magnitude @ basis + 0.001, dtype=np.float32)


def patches(columns: np.ndarray) -> np.ndarray:
    """(T, 64) -> (P, 96, 64): a patch every 48 columns, what is left over at the end dropped; P >= 1 needs T >= 96."""
    return np.lib.stride_tricks.sliding_window_view(columns, PATCH, axis=0)[::PATCH_HOP].transpose(0, 2, 1)


class Yamnet(ExpertSettings):
    """Frame embeddings (P, 1024), the input of YAMNet's classifier; clips under 0.975 s are filled with silence.

    The weight file holds the 31 layers of the tflite in order, dequantised to float32 (`NN_w`, `NN_b`: TF layout,
    batch norm folded). Deviation: the public tflite computes front-end and network in int8; against it the embedding
    of the same log-mel has cosine 0.999, and quiet mel bins differ by up to 6 (ours are the definition's).
    """

    kind: Literal["yamnet"]
    weights: str

    @property
    def rate(self) -> int:
        return RATE

    @property
    def dim(self) -> int:
        return 1024

    @property
    def frames_per_second(self) -> float:
        return 100.0 / PATCH_HOP

    def weight_files(self) -> dict[str, Path]:
        return {"weights": Path(self.weights)}

    def weight_source(self) -> str:
        return "it is made from the layers of Google's public yamnet.tflite (AudioSet YAMNet, Apache-2.0)"

    def load(self) -> Frames:
        network = load_network(Path(self.weights))
        basis = mel_basis()

        def frames(wave: np.ndarray) -> np.ndarray:
            filled = np.pad(wave, (0, max(0, PATCH_SAMPLES - len(wave))))
            parts = patches(log_mel(filled, basis))
            return np.concatenate([network(parts[i : i + 64])[0] for i in range(0, len(parts), 64)])

        return lambda waves: [frames(wave) for wave in waves]


def load_network(path: Path) -> Network:
    """Return a function: patches (P, 96, 64) -> embeddings (P, 1024) and class scores (P, 521), both float32 arrays."""
    import torch
    import torch.nn.functional as F

    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            names = [f"{layer:02d}_{part}" for layer in range(3, 31) for part in "wb"]
            stored = {name: torch.from_numpy(file[name]) for name in names}
        if stored["03_w"].shape != (32, 3, 3, 1) or stored["30_w"].shape != (521, 1024):
            raise ValueError("layers of other shapes")
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise KitError(f"{path} is not the 31 layers of yamnet.tflite ({error}); fetch it again") from error

    def torch_layout(weight: torch.Tensor) -> torch.Tensor:
        """TF keeps a convolution as (out, height, width, in), a depthwise one as (1, height, width, channels)."""
        return weight.permute((3, 0, 1, 2) if len(weight) == 1 else (0, 3, 1, 2)).contiguous()

    layers = {name: torch_layout(value) if value.ndim == 4 else value for name, value in stored.items()}

    def conv(x: torch.Tensor, layer: int, stride: int, depthwise: bool) -> torch.Tensor:
        weight, bias = layers[f"{layer:02d}_w"], layers[f"{layer:02d}_b"]
        size = weight.shape[-1]
        # TF 'same': as little padding as reaches ceil(n / stride) outputs, the odd one at the end.
        pads = []
        for n in (x.shape[-1], x.shape[-2]):
            total = max((-(-n // stride) - 1) * stride + size - n, 0)
            pads += [total // 2, total - total // 2]
        return F.relu(F.conv2d(F.pad(x, pads), weight, bias, stride, groups=x.shape[1] if depthwise else 1))

    @torch.inference_mode()
    def network(parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = torch.from_numpy(np.array(parts, np.float32))[:, None]
        x = conv(x, 3, STRIDES[0], False)
        for i, stride in enumerate(STRIDES[1:]):
            x = conv(x, 4 + 2 * i, stride, True)
            x = conv(x, 5 + 2 * i, 1, False)
        embedding = x.mean((2, 3))
        scores = torch.sigmoid(F.linear(embedding, layers["30_w"], layers["30_b"]))
        return embedding.numpy(), scores.numpy()

    return network
