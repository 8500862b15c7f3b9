"""Extraction against the layout the experts were published in, for filled weights and 30 s of sound.

The published layout: batch norm behind every convolution, contiguous memory, DFT by convolution (PANNs, OpenL3),
pooling behind the ReLU, OpenL3 in batches of 8 frames and the other clips whole. `python -m pytest -m benchmark -s`."""

import time
from collections.abc import Callable
from pathlib import Path

import filled
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from system.experts import OpenL3, PannsCnn14, Vggish, VggSound, audioset, vggsound
from system.experts.weights import Weights, read_weights

pytestmark = pytest.mark.benchmark

SECONDS = 30
Published = Callable[[Weights, np.ndarray], np.ndarray]


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
    real, imaginary = (F.conv1d(x, w.tensors[keys.format(part)], stride=hop) for part in ("real", "imag"))
    return real**2 + imaginary**2


def openl3(w: Weights, wave: np.ndarray) -> np.ndarray:
    padded = np.pad(wave, (24_000, 0))
    count = 1 + -(-(len(padded) - 48_000) // 24_000)
    padded = np.pad(padded, (0, (count - 1) * 24_000 + 48_000 - len(padded)))
    parts = torch.from_numpy(np.stack([padded[24_000 * i :][:48_000] for i in range(count)]))
    found = []
    for batch in parts.split(8):
        spectrum = power(w, "speclayer.dft_{}_kernels", F.pad(batch, (982, 982))[:, None], 242)
        level = 10 * (w.tensors["speclayer.mel_basis"] @ spectrum).sqrt().clamp_min(1e-10).log10()
        x = (level - level.amax((1, 2), keepdim=True)).clamp_min(-80)[:, None]
        x = norm(w, "batch_normalization_1", x, 1e-3)
        for i in range(1, 8):
            x = F.relu(norm(w, f"batch_normalization_{i + 1}", conv(w, f"conv2d_{i}", x), 1e-3))
            x = F.max_pool2d(x, 2) if i in (2, 4, 6) else x
        found.append(F.max_pool2d(conv(w, "audio_embedding_layer", x), (32, 24)).flatten(1))
    return torch.cat(found).numpy()


def panns(w: Weights, wave: np.ndarray) -> np.ndarray:
    padded = F.pad(torch.from_numpy(wave)[None, None], (256, 256), mode="reflect")
    spectrum = power(w, "spectrogram_extractor.stft.conv_{}.weight", padded, 160)
    mel = spectrum.transpose(1, 2) @ w.tensors["logmel_extractor.melW"]
    x = (10 * mel.clamp_min(1e-10).log10())[:, None]
    x = norm(w, "bn0", x.transpose(1, 3), 1e-5).transpose(1, 3)
    for block in range(1, 7):
        for part in (1, 2):
            key = f"conv_block{block}"
            x = F.relu_(norm(w, f"{key}.bn{part}", conv(w, f"{key}.conv{part}", x), 1e-5))
        x = F.avg_pool2d(x, 2) if block < 6 else x
    return x.mean(3)[0].T.numpy()


def vggish(w: Weights, wave: np.ndarray) -> np.ndarray:
    columns = audioset.log_mel(wave.astype(np.float64), 0.01)
    x = torch.from_numpy(columns[: len(columns) // 96 * 96].reshape(-1, 1, 96, 64).astype(np.float32))
    for place in (0, 3, 6, 8, 11, 13):
        x = F.relu(conv(w, f"features.{place}", x))
        x = F.max_pool2d(x, 2) if place in (0, 3, 8, 13) else x
    x = x.permute(0, 2, 3, 1).flatten(1)
    for place in (0, 2, 4):
        x = F.relu(F.linear(x, w.tensors[f"embeddings.{place}.weight"], w.tensors[f"embeddings.{place}.bias"]))
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


@pytest.mark.parametrize(
    ("expert", "published", "inside", "tolerance"),
    [
        (lambda weights: OpenL3(kind="openl3", weights=weights), openl3, None, 5e-5),
        (lambda weights: PannsCnn14(kind="panns_cnn14_16k", weights=weights), panns, "model", 2e-5),
        (lambda weights: VggSound(kind="vggsound", weights=weights), resnet, "model_state_dict", 2e-5),
        (lambda weights: Vggish(kind="vggish", weights=weights, output="raw"), vggish, None, 2e-5),
    ],
    ids=["openl3", "panns_cnn14_16k", "vggsound", "vggish"],
)
def test_extraction_against_the_published_layout(
    expert: Callable[[str], OpenL3],
    published: Published,
    inside: str | None,
    tolerance: float,
    request: pytest.FixtureRequest,
) -> None:
    kind = request.node.callspec.id
    settings = expert(filled.files(kind)["weights"])
    frames_of = settings.load(torch.device("cpu"))
    weights = read_weights(Path(settings.weights), inside)
    noise = np.random.default_rng(0).normal(0, 0.1, SECONDS * settings.rate).astype(np.float32)
    ours, theirs = [], []
    with torch.inference_mode():
        for _ in range(2 if kind == "openl3" else 6):  # in turn, so that other work on the machine meets both
            began = time.perf_counter()
            found = frames_of([noise])[0]
            between = time.perf_counter()
            expected = published(weights, noise)
            ours.append(between - began)
            theirs.append(time.perf_counter() - between)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() / np.abs(expected).max() < tolerance
    best, other = min(ours) / SECONDS, min(theirs) / SECONDS
    print(f"\n{kind}: {best:.4f} s a second of sound, as published {other:.4f} s, ratio {other / best:.2f}")
