"""The experts in their published layout, from the tensors of a checkpoint, in its precision.

Batch norm after every convolution, DFT by convolution (PANNs, OpenL3), pooling after the ReLU, OpenL3 in batches of 8
frames. `in_float64` returns the published results without rounding."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from system.experts import audioset, vggsound
from system.networks.weights import Weights

Published = Callable[[Weights, np.ndarray], np.ndarray]


def in_float64(weights: Weights) -> Weights:
    """The published float32 numbers, DFT kernels and mel bases among them, to compute with in float64."""
    doubled = {key: value.double() if value.is_floating_point() else value for key, value in weights.tensors.items()}
    return Weights(weights.path, doubled)


def conv(w: Weights, key: str, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
    weight = w.tensors[f"{key}.weight"]
    return F.conv2d(x, weight, w.tensors.get(f"{key}.bias"), stride, weight.shape[-1] // 2)


def norm(w: Weights, key: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    mean, variance, weight, bias = (
        w.tensors[f"{key}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return F.batch_norm(x, mean, variance, weight, bias, eps=eps)


def power(w: Weights, keys: str, x: torch.Tensor, hop: int) -> torch.Tensor:
    """(P, 1, N) -> (P, bins, T): two convolutions with the checkpoint's cosine and sine kernels."""
    kernels = [w.tensors[keys.format(part)] for part in ("real", "imag")]
    if kernels[0].dtype == torch.float64:  # torch's convolution of these takes five times as long
        columns = x[:, 0].double().unfold(1, kernels[0].shape[2], hop)
        real, imaginary = (own[:, 0] @ columns.transpose(1, 2) for own in kernels)
    else:
        real, imaginary = (F.conv1d(x, own, stride=hop) for own in kernels)
    return real**2 + imaginary**2


def openl3_seconds(wave: np.ndarray) -> torch.Tensor:
    """(N,) -> (P, 48000): half a second of silence in front, and at the end what makes it whole."""
    padded = np.pad(wave, (24_000, 0))
    count = 1 + max(0, -(-(len(padded) - 48_000) // 24_000))
    padded = np.pad(padded, (0, (count - 1) * 24_000 + 48_000 - len(padded)))
    return torch.from_numpy(np.stack([padded[24_000 * i :][:48_000] for i in range(count)]))


def openl3_log_mel(w: Weights, parts: torch.Tensor) -> torch.Tensor:
    """(P, 48000) -> (P, 256, 199)."""
    spectrum = power(w, "speclayer.dft_{}_kernels", F.pad(parts, (982, 982))[:, None], 242)
    level = 10 * (w.tensors["speclayer.mel_basis"] @ spectrum).sqrt().clamp_min(1e-10).log10()
    return (level - level.amax((1, 2), keepdim=True)).clamp_min(-80)


def openl3(w: Weights, wave: np.ndarray) -> np.ndarray:
    return torch.cat([openl3_network(w, openl3_log_mel(w, part)) for part in openl3_seconds(wave).split(8)]).numpy()


def openl3_network(w: Weights, columns: torch.Tensor) -> torch.Tensor:
    """(P, 256, 199) -> (P, 512)."""
    x = norm(w, "batch_normalization_1", columns[:, None], 1e-3)
    for i in range(1, 8):
        x = F.relu(norm(w, f"batch_normalization_{i + 1}", conv(w, f"conv2d_{i}", x), 1e-3))
        x = F.max_pool2d(x, 2) if i in (2, 4, 6) else x
    return F.max_pool2d(conv(w, "audio_embedding_layer", x), (32, 24)).flatten(1)


def panns_log_mel(w: Weights, wave: np.ndarray, hop: int = 160) -> torch.Tensor:
    """(N,) -> (1, T, 64); the FFT is that of the kernels."""
    half = w.tensors["spectrogram_extractor.stft.conv_real.weight"].shape[2] // 2
    padded = F.pad(torch.from_numpy(wave)[None, None], (half, half), mode="reflect")
    spectrum = power(w, "spectrogram_extractor.stft.conv_{}.weight", padded, hop)
    return 10 * (spectrum.transpose(1, 2) @ w.tensors["logmel_extractor.melW"]).clamp_min(1e-10).log10()


def panns(w: Weights, wave: np.ndarray) -> np.ndarray:
    x = panns_log_mel(w, wave)[:, None]
    x = norm(w, "bn0", x.transpose(1, 3), 1e-5).transpose(1, 3)
    for block in range(1, 7):
        for part in (1, 2):
            key = f"conv_block{block}"
            x = F.relu_(norm(w, f"{key}.bn{part}", conv(w, f"{key}.conv{part}", x), 1e-5))
        x = F.avg_pool2d(x, 2) if block < 6 else x
    return x.mean(3)[0].T.numpy()


def vggish(w: Weights, wave: np.ndarray) -> np.ndarray:
    columns = audioset.log_mel(wave, 0.01)
    x = torch.from_numpy(columns[: len(columns) // 96 * 96].reshape(-1, 1, 96, 64))
    for position in (0, 3, 6, 8, 11, 13):
        x = F.relu(conv(w, f"features.{position}", x))
        x = F.max_pool2d(x, 2) if position in (0, 3, 8, 13) else x
    x = x.permute(0, 2, 3, 1).flatten(1)
    for position in (0, 2, 4):
        x = F.relu(F.linear(x, w.tensors[f"embeddings.{position}.weight"], w.tensors[f"embeddings.{position}.bias"]))
    return x.numpy()


def resnet(w: Weights, wave: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(vggsound.spectrogram(wave))[None, None]
    x = F.max_pool2d(F.relu(norm(w, "audnet.bn1", conv(w, "audnet.conv1", x, 2), 1e-5)), 3, 2, 1)
    for layer in range(1, 5):
        for block in (0, 1):
            key, stride = f"audnet.layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            y = F.relu(norm(w, f"{key}.bn1", conv(w, f"{key}.conv1", x, stride), 1e-5))
            y = norm(w, f"{key}.bn2", conv(w, f"{key}.conv2", y), 1e-5)
            if stride == 2:
                x = norm(w, f"{key}.downsample.1", conv(w, f"{key}.downsample.0", x, 2), 1e-5)
            x = F.relu(y + x)
    return x.mean(2)[0].T.numpy()
