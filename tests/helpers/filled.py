"""Published networks filled with fixed noise: `python -m tests.helpers.filled vggsound data/filled` writes a file.

golden/keys*.json has the name, shape and rule of every tensor, as the original code has them.
"""

import functools
import json
import math
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).resolve().parent.parent / "golden"

# Scales of standard normal numbers (of uniform ones for variances), and what is added.
SCALES: dict[str, tuple[float, float]] = {
    "affine_n": (5.0, -30.0),  # an input's mean and variance, in decibels
    "affine_u": (300.0, 150.0),
    "bn_mean": (0.1, 0.0),
    "bn_var": (1.0, 0.5),
    "bn_weight": (0.1, 1.0),
    "bn_bias": (0.1, 0.0),
    "res_bn2": (0.03, 0.3),
    "bias": (0.1, 0.0),
    "token": (0.5, 0.0),
    "ln_weight": (0.1, 1.0),
    "snake": (0.1, 1.0),
    "wn_g": (0.5, 5.0),
    "gate": (0.5, 1.0),
    "rel_bias": (1.0, 0.0),
}
HE = {"weight": 1.0, "pca": 0.25, "gru_ih": 0.05, "gru_hh": 0.5, "attn_out": 0.2}  # of He's deviation
CRNN = {"affine_n": (1.0, -10.0), "affine_u": (20.0, 10.0)}  # its input is natural logarithms


@functools.cache
def described(name: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """The file of a network's goldens, and what is said of its tensors by their published keys."""
    for path in GOLDEN.glob("keys*.json"):
        entries = json.loads(path.read_text())
        if name in entries:
            entry, file = entries[name], path.stem.removeprefix("keys").removeprefix("_") or name
            same = entries[entry["same_as"]]["keys"] if "same_as" in entry else {}
            return file, {key: one for key, one in same.items() if key not in entry["absent"]} | entry["keys"]
    raise KeyError(name)


def fill(key: str, one: dict[str, Any]) -> torch.Tensor:
    """The tensor of a key by its rule, from a generator seeded by the key."""
    how, shape = one["rule"], one["shape"]
    if how == "given":
        return torch.tensor(one["head"])
    if how == "left":
        return torch.zeros(shape, dtype=torch.int64)
    if how == "rel_bias":
        key = "encoder.layers.0.self_attn.relative_attention_bias.weight"
    random = np.random.Generator(np.random.PCG64(zlib.crc32(key.encode())))
    values = random.random(shape) if how in ("affine_u", "bn_var") else random.standard_normal(shape)
    if how in HE:
        scale, shift = HE[how] * math.sqrt(2 / math.prod(shape[1:])), 0.0
    else:
        scale, shift = (CRNN if key.startswith("audio_enc") else {}).get(how, SCALES[how])
    values *= scale
    values += shift
    return torch.from_numpy(values.astype(np.float32))


def tensors(name: str) -> dict[str, torch.Tensor]:
    """A network's tensors, without those that its original computes."""
    return {key: fill(key, one) for key, one in described(name)[1].items() if one["rule"] != "frozen"}


def triangles(bands: int, rate: int, size: int) -> np.ndarray:
    """(bands, size // 2 + 1) float64 triangles of HTK's mel scale from 0 to half of the rate, linear in Hz."""
    mels = np.linspace(0, 2595 * math.log10(1 + rate / 2 / 700), bands + 2)
    edges, bins = 700 * (10 ** (mels / 2595) - 1), np.linspace(0, rate / 2, size // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.maximum(0, np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)))


def openl3() -> dict[str, torch.Tensor]:
    """With mel filters in rows of sum 1, as newer mel libraries read its setting."""
    basis = triangles(256, 48_000, 2048)
    basis = (basis / np.maximum(basis.sum(1, keepdims=True), 1e-30)).astype(np.float32)
    return tensors("openl3_mel256_env_512") | {"speclayer.mel_basis": torch.from_numpy(basis)}


def vggish() -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Its tensors, and those of its PCA, which are in a file of their own."""
    found = tensors("vggish")
    vectors, means = (found.pop(f"pproc.pca_{part}").double().numpy() for part in ("eigen_vectors", "means"))
    return found, {"pca_eigen_vectors": vectors, "pca_means": means[:, 0]}


def panns(name: str) -> dict[str, Any]:
    sampler = {"indexes": np.arange(8), "pointer": np.int64(3)}  # the published file keeps numpy arrays as well
    return {"iteration": 0, "model": tensors(name), "sampler": sampler}


FILES: dict[str, tuple[tuple[str, ...], Any]] = {  # names of an expert's published files, and their content
    "panns_cnn14_16k": (("Cnn14_16k_mAP=0.438.pth",), lambda: [panns("panns_cnn14_16k")]),
    "panns_resnet38": (("ResNet38_mAP=0.434.pth",), lambda: [panns("panns_resnet38")]),
    "openl3": (("torchopenl3_mel256_env_512.pth.tar",), lambda: [openl3()]),
    "vggsound": (("H.pth.tar",), lambda: [{"epoch": 0, "model_state_dict": tensors("vggsound_resnet18_H")}]),
    "vggish": (("vggish-10086976.pth", "vggish_pca_params-970ea276.pth"), vggish),
    "passt": (("passt-s-f128-p16-s16-ap.468.pt",), lambda: [tensors("s16")]),
}


def write(kind: str, folder: Path) -> list[Path]:
    """Write the published files of an expert in the layout of before 2020, as they have it."""
    names, contents = FILES[kind]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(names, contents(), strict=True):
        torch.save(content, folder / name, _use_new_zipfile_serialization=False)
    return [folder / name for name in names]


@functools.cache
def files(kind: str) -> list[Path]:
    """The same, written once a process into a folder that goes when the process ends: together they are 1 GB."""
    return write(kind, Path(_folder().name))


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="filled-")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in FILES:
        sys.exit(f"usage: python -m tests.helpers.filled {{{','.join(FILES)}}} FOLDER")
    print(*write(sys.argv[1], Path(sys.argv[2])), sep="\n")
