"""Checkpoints in published layouts, filled with fixed noise: `python -m tests.helpers.filled vggsound data/filled`."""

import functools
import math
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

Shapes = dict[str, tuple[int, ...]]

# Their statistics are those of decibels, and of natural logarithms.
INPUT_NORMS = ("bn0", "batch_normalization_1", "audio_enc.cnn.features.0", "audio_enc.cnn.0")
FROZEN = ("spectrogram_extractor.", "logmel_extractor.", "speclayer.")


def norm(key: str, channels: int) -> Shapes:
    parts = ("weight", "bias", "running_mean", "running_var")
    return {f"{key}.{part}": (channels,) for part in parts} | {f"{key}.num_batches_tracked": ()}


def dense(key: str, *shape: int, bias: bool = True) -> Shapes:
    return {f"{key}.weight": shape} | ({f"{key}.bias": (shape[0],)} if bias else {})


def panns_shapes() -> Shapes:
    shapes = norm("bn0", 64) | dense("fc1", 2048, 2048) | dense("fc_audioset", 527, 2048)
    inputs = 1
    for block, outputs in enumerate((64, 128, 256, 512, 1024, 2048), start=1):
        for part in (1, 2):
            shapes |= dense(f"conv_block{block}.conv{part}", outputs, inputs, 3, 3, bias=False)
            shapes |= norm(f"conv_block{block}.bn{part}", outputs)
            inputs = outputs
    kernels = {f"spectrogram_extractor.stft.conv_{part}.weight": (257, 1, 512) for part in ("real", "imag")}
    return shapes | kernels | {"logmel_extractor.melW": (257, 64)}


def resnet38_shapes() -> Shapes:
    shapes = norm("bn0", 64) | dense("fc1", 2048, 2048) | dense("fc_audioset", 527, 2048)

    def pair(key: str, inputs: int, outputs: int) -> Shapes:
        first = dense(f"{key}.conv1", outputs, inputs, 3, 3, bias=False) | norm(f"{key}.bn1", outputs)
        return first | dense(f"{key}.conv2", outputs, outputs, 3, 3, bias=False) | norm(f"{key}.bn2", outputs)

    shapes |= pair("conv_block1", 1, 64) | pair("conv_block_after1", 512, 2048)
    inputs = 64
    for layer, (outputs, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(blocks):
            key = f"resnet.layer{layer}.{block}"
            shapes |= pair(key, inputs, outputs)
            if inputs != outputs:
                shapes |= dense(f"{key}.downsample.1", outputs, inputs, 1, 1, bias=False)
                shapes |= norm(f"{key}.downsample.2", outputs)
            inputs = outputs
    kernels = {f"spectrogram_extractor.stft.conv_{part}.weight": (513, 1, 1024) for part in ("real", "imag")}
    return shapes | kernels | {"logmel_extractor.melW": (513, 64)}


def openl3_shapes() -> Shapes:
    shapes = norm("batch_normalization_1", 1) | dense("audio_embedding_layer", 512, 512, 3, 3)
    inputs = 1
    for i, outputs in enumerate((64, 64, 128, 128, 256, 256, 512), start=1):
        shapes |= dense(f"conv2d_{i}", outputs, inputs, 3, 3) | norm(f"batch_normalization_{i + 1}", outputs)
        inputs = outputs
    kernels = {f"speclayer.dft_{part}_kernels": (1025, 1, 2048) for part in ("real", "imag")}
    return shapes | kernels | {"speclayer.mel_basis": (256, 1025)}


def vggsound_shapes() -> Shapes:
    shapes = dense("conv1", 64, 1, 7, 7, bias=False) | norm("bn1", 64) | dense("fc", 309, 512)
    inputs = 64
    for layer, outputs in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            key = f"layer{layer}.{block}"
            shapes |= dense(f"{key}.conv1", outputs, inputs, 3, 3, bias=False) | norm(f"{key}.bn1", outputs)
            shapes |= dense(f"{key}.conv2", outputs, outputs, 3, 3, bias=False) | norm(f"{key}.bn2", outputs)
            if inputs != outputs:
                shapes |= dense(f"{key}.downsample.0", outputs, inputs, 1, 1, bias=False)
                shapes |= norm(f"{key}.downsample.1", outputs)
            inputs = outputs
    return {f"audnet.{key}": shape for key, shape in shapes.items()}


def vggish_shapes() -> Shapes:
    shapes: Shapes = {}
    inputs = 1
    for position, outputs in ((0, 64), (3, 128), (6, 256), (8, 256), (11, 512), (13, 512)):
        shapes |= dense(f"features.{position}", outputs, inputs, 3, 3)
        inputs = outputs
    shapes |= dense("embeddings.0", 4096, 12288) | dense("embeddings.2", 4096, 4096) | dense("embeddings.4", 128, 4096)
    return shapes | {"pproc.pca_eigen_vectors": (128, 128), "pproc.pca_means": (128, 1)}


def crnn_shapes() -> Shapes:
    """The audio encoder of the DCASE 2022 baseline; no checkpoint of it is published."""
    shapes: Shapes = {}
    for position, inputs, outputs in ((0, 1, 32), (4, 32, 128), (7, 128, 128), (11, 128, 128), (14, 128, 128)):
        shapes |= norm(f"audio_enc.cnn.features.{position}", inputs)
        shapes |= dense(f"audio_enc.cnn.features.{position + 1}", outputs, inputs, 3, 3, bias=False)
    for end in ("", "_reverse"):
        shapes |= {f"audio_enc.gru.weight_ih_l0{end}": (450, 128), f"audio_enc.gru.weight_hh_l0{end}": (450, 150)}
        shapes |= {f"audio_enc.gru.bias_{part}_l0{end}": (450,) for part in ("ih", "hh")}
    return shapes


def layer_norm(key: str, width: int) -> Shapes:
    return {f"{key}.weight": (width,), f"{key}.bias": (width,)}


def passt_shapes(stride: int = 16, places: int = 62, blocks: int = 12) -> Shapes:
    rows = (128 - 16) // stride + 1
    shapes: Shapes = {f"{kind}_token": (1, 1, 768) for kind in ("cls", "dist")}
    shapes |= {"new_pos_embed": (1, 2, 768), "freq_new_pos_embed": (1, 768, rows, 1)}
    shapes |= {"time_new_pos_embed": (1, 768, 1, places)} | dense("patch_embed.proj", 768, 1, 16, 16)
    for block in range(blocks):
        for part in (1, 2):
            shapes |= layer_norm(f"blocks.{block}.norm{part}", 768)
        shapes |= dense(f"blocks.{block}.attn.qkv", 2304, 768) | dense(f"blocks.{block}.attn.proj", 768, 768)
        shapes |= dense(f"blocks.{block}.mlp.fc1", 3072, 768) | dense(f"blocks.{block}.mlp.fc2", 768, 3072)
    heads = layer_norm("head.0", 768) | dense("head.1", 527, 768) | dense("head_dist", 527, 768)
    return shapes | layer_norm("norm", 768) | heads


def rule(key: str, shapes: Shapes) -> str:
    """Return the name of the rule that fills a tensor."""
    prefix, _, part = key.rpartition(".")
    if key.startswith(FROZEN):
        return "frozen"
    if part == "num_batches_tracked":
        return "left"
    if part.startswith("running_"):
        kind = {"running_mean": ("affine_n", "bn_mean"), "running_var": ("affine_u", "bn_var")}[part]
        return kind[0 if prefix in INPUT_NORMS else 1]
    if re.search(r"layer[1-4]\.\d+\.bn2\.weight$", key):
        return "res_bn2"
    if f"{prefix}.running_mean" in shapes:
        return f"bn_{part}"
    if part == "pca_eigen_vectors":
        return "pca"
    if part.startswith("weight_"):  # of a GRU
        return f"gru_{part.split('_')[1]}"
    if part.endswith(("_token", "pos_embed", "mask_embed")):
        return "token"
    if len(shapes[key]) == 1:
        return "ln_weight" if part == "weight" else "bias"
    return "weight"


def fill(key: str, shapes: Shapes) -> np.ndarray:
    """The tensor of a key, float32 (int64 where the rule is `left`), from a generator seeded by the key."""
    shape, how = shapes[key], rule(key, shapes)
    if how == "left":
        return np.zeros(shape, np.int64)
    random = np.random.Generator(np.random.PCG64(zlib.crc32(key.encode("utf-8"))))
    values = random.random(shape) if how in ("affine_u", "bn_var") else random.standard_normal(shape)
    he = math.sqrt(2 / math.prod(shape[1:]))
    decibels = not key.startswith("audio_enc")
    scale, shift = {
        "affine_n": (5.0, -30.0) if decibels else (1.0, -10.0),
        "affine_u": (300.0, 150.0) if decibels else (20.0, 10.0),
        "bn_mean": (0.1, 0.0),
        "bn_var": (1.0, 0.5),
        "bn_weight": (0.1, 1.0),
        "bn_bias": (0.1, 0.0),
        "res_bn2": (0.03, 0.3),
        "bias": (0.1, 0.0),
        "pca": (0.25 * he, 0.0),
        "token": (0.5, 0.0),
        "ln_weight": (0.1, 1.0),
        "gru_ih": (0.05 * he, 0.0),
        "gru_hh": (0.5 * he, 0.0),
        "weight": (he, 0.0),
    }[how]
    values *= scale
    values += shift
    return values.astype(np.float32)


def dft_kernels(size: int, is_window_rounded: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine kernels (size // 2 + 1, 1, size) float32 under a periodic Hann window, as PANNs have them, or
    under one rounded to float32, as OpenL3 has them."""
    phase = 2 * np.pi * np.outer(np.arange(size // 2 + 1), np.arange(size)) / size
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    hann = hann.astype(np.float32) if is_window_rounded else hann
    return tuple((part[:, None] * hann).astype(np.float32) for part in (np.cos(phase), -np.sin(phase)))  # type: ignore[return-value]


def triangles(edges: np.ndarray, rate: int, size: int) -> np.ndarray:
    """(bands, size // 2 + 1) float64 mel triangles, linear in Hz. edges: (bands + 2,) Hz."""
    bins = np.linspace(0, rate / 2, size // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.maximum(0, np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)))


def htk_edges(bands: int, low: float, high: float) -> np.ndarray:
    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    return 700 * (10 ** (np.linspace(mel(low), mel(high), bands + 2) / 2595) - 1)


def slaney_edges(bands: int, low: float, high: float) -> np.ndarray:
    """The Slaney mel scale: linear to 1,000 Hz (15 mel), logarithmic above. Both limits lie as the bands need them."""

    def mel(hertz: float) -> float:
        return hertz * 3 / 200 if hertz < 1000 else 15 + math.log(hertz / 1000) * 27 / math.log(6.4)

    mels = np.linspace(mel(low), mel(high), bands + 2)
    return np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * math.log(6.4) / 27))


def area_norm(basis: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Every triangle scaled to an area of 1 Hz."""
    return basis * (2 / (edges[2:] - edges[:-2]))[:, None]


def openl3_mel(is_area_normed: bool = False) -> np.ndarray:
    """(256, 1025) float32, HTK scale 0 to 24,000 Hz: rows of sum 1 (as newer mel libraries read its setting), or of
    area 1."""
    edges = htk_edges(256, 0, 24_000)
    basis = triangles(edges, 48_000, 2048)
    if is_area_normed:
        return area_norm(basis, edges).astype(np.float32)
    return (basis / np.maximum(basis.sum(1, keepdims=True), 1e-30)).astype(np.float32)


def panns_mel(rate: int = 16_000, size: int = 512, highest: float = 8000) -> np.ndarray:
    """(size // 2 + 1, 64) float32, Slaney scale and area norm, from 50 Hz."""
    edges = slaney_edges(64, 50, highest)
    return area_norm(triangles(edges, rate, size), edges).T.astype(np.float32)


def tensors(shapes: Shapes) -> Iterator[tuple[str, np.ndarray]]:
    """The filled ones; those of the front-end are computed by whoever calls."""
    return ((key, fill(key, shapes)) for key in shapes if rule(key, shapes) != "frozen")


SHAPES = {
    "panns_cnn14_16k": panns_shapes,
    "panns_resnet38": resnet38_shapes,
    "openl3": openl3_shapes,
    "vggsound": vggsound_shapes,
    "vggish": vggish_shapes,
    "passt": passt_shapes,
}

PANNS = {
    "panns_cnn14_16k": ("Cnn14_16k_mAP=0.438.pth", 512, panns_mel),
    "panns_resnet38": ("ResNet38_mAP=0.434.pth", 1024, lambda: panns_mel(32_000, 1024, 14_000)),
}


def write(kind: str, folder: Path) -> dict[str, str]:
    """Write the checkpoint files of an expert; returns their paths by the setting that names each."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    filled = {key: torch.from_numpy(values) for key, values in tensors(SHAPES[kind]())}
    if kind in PANNS:
        name, size, mel = PANNS[kind]
        real, imaginary = dft_kernels(size)
        filled["spectrogram_extractor.stft.conv_real.weight"] = torch.from_numpy(real)
        filled["spectrogram_extractor.stft.conv_imag.weight"] = torch.from_numpy(imaginary)
        filled["logmel_extractor.melW"] = torch.from_numpy(mel())
        sampler = {"indexes": np.arange(8), "pointer": np.int64(3)}  # the published file keeps numpy arrays as well
        return saved(folder, weights=(name, {"iteration": 0, "model": filled, "sampler": sampler}))
    if kind == "openl3":
        real, imaginary = dft_kernels(2048, is_window_rounded=True)
        filled["speclayer.dft_real_kernels"] = torch.from_numpy(real)
        filled["speclayer.dft_imag_kernels"] = torch.from_numpy(imaginary)
        filled["speclayer.mel_basis"] = torch.from_numpy(openl3_mel())
        return saved(folder, weights=("torchopenl3_mel256_env_512.pth.tar", filled))
    if kind == "passt":
        return saved(folder, weights=("passt-s-f128-p16-s16-ap.468.pt", filled))
    if kind == "vggsound":
        return saved(folder, weights=("H.pth.tar", {"epoch": 0, "model_state_dict": filled}))
    pca = {
        "pca_eigen_vectors": filled.pop("pproc.pca_eigen_vectors").double().numpy(),
        "pca_means": filled.pop("pproc.pca_means").double().numpy()[:, 0],
    }
    return saved(folder, weights=("vggish-10086976.pth", filled), pca_weights=("vggish_pca_params-970ea276.pth", pca))


@functools.cache
def files(kind: str) -> dict[str, str]:
    """The same, written once a process into a folder that goes when the process ends: together they are 1 GB."""
    return write(kind, Path(_folder().name))


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="filled-")


def saved(folder: Path, **files: tuple[str, object]) -> dict[str, str]:
    import torch

    for name, content in files.values():
        # The layout of before 2020, as the published files have it.
        torch.save(content, folder / name, _use_new_zipfile_serialization=False)
    return {setting: str(folder / name) for setting, (name, _) in files.items()}


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(f"usage: python -m tests.helpers.filled {{{','.join(SHAPES)}}} FOLDER")
    print("\n".join(write(sys.argv[1], Path(sys.argv[2])).values()))
