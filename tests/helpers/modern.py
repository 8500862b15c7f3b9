"""BEATs, EAT and M2D filled by the rules of keys_modern_encoders.json, their signals, and a Kaldi log-mel in NumPy."""

import functools
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_tools.audio import read_audio

FOLDER = Path(__file__).resolve().parent.parent / "golden"
RATE = 16_000
SCALES: dict[str, tuple[float, float]] = {  # of standard normal numbers, and a constant; without he
    "bias": (0.1, 0.0),
    "token": (0.5, 0.0),
    "ln_weight": (0.1, 1.0),
    "wn_g": (0.5, 5.0),
    "gate": (0.5, 1.0),
    "rel_bias": (1.0, 0.0),
    "bn_mean": (0.1, 0.0),
}


@functools.cache
def described(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / "keys_modern_encoders.json").read_text())[name]


def fill(key: str, one: dict[str, Any]) -> np.ndarray:
    """The tensor of a key by its rule, float32."""
    how, shape = one["rule"], one["shape"]
    if how == "given":
        return np.array(one["head"], np.float32)
    if how == "rel_bias":
        key = "encoder.layers.0.self_attn.relative_attention_bias.weight"
    random = np.random.Generator(np.random.PCG64(zlib.crc32(key.encode("utf-8"))))
    if how == "bn_var":
        return (0.5 + random.random(shape)).astype(np.float32)
    he = math.sqrt(2 / math.prod(shape[1:]))
    scale, shift = {"weight": (he, 0.0), "attn_out": (0.2 * he, 0.0)}.get(how) or SCALES[how]
    values = random.standard_normal(shape)
    values *= scale
    values += shift
    return values.astype(np.float32)


@functools.cache
def tensors(name: str) -> dict[str, torch.Tensor]:
    """Tensors by their published keys, without those that the original computes. Not to be changed."""
    keys = described(name)["keys"]
    return {key: torch.from_numpy(fill(key, one)) for key, one in keys.items() if one["rule"] != "frozen"}


def kaldi_log_mel(samples: np.ndarray, exponent: float, scale: float) -> np.ndarray:
    """(N,) -> (T, 128) float64 by NumPy alone: Kaldi's filter bank under a Hann window to a power."""
    count = 1 + (len(samples) - 400) // 160
    columns = np.stack([samples[160 * k : 160 * k + 400] for k in range(count)]).astype(np.float64) * scale
    columns -= columns.mean(1, keepdims=True)
    columns = np.concatenate([columns[:, :1] * 0.03, columns[:, 1:] - 0.97 * columns[:, :-1]], 1)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** exponent
    power = np.abs(np.fft.rfft(columns * window, 512)) ** 2
    mel = 1127 * np.log(1 + np.arange(257) * 31.25 / 700)
    edges = np.linspace(1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + 8000 / 700), 130)
    step = edges[1] - edges[0]
    basis = np.maximum(0, 1 - np.abs(mel[:, None] - edges[None, 1:-1]) / step)
    basis[-1] = 0
    return np.log(np.maximum(power @ basis, 2.0**-23))


def recordings(shared: Path) -> list[np.ndarray]:
    """Six recordings of ESC-10 at 16 kHz, of different classes."""
    paths = sorted((shared / "data/esc10/audio").glob("*.flac"))
    return [read_audio(path, RATE) for path in paths[:: max(1, len(paths) // 6)][:6]]
