"""BEATs, EAT and M2D filled by the rules of keys_modern_encoders.json, their signals, and a Kaldi log-mel in NumPy."""

import functools
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
def golden() -> dict[str, np.ndarray]:
    return dict(np.load(FOLDER / "modern_encoders.npz"))


@functools.cache
def described(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((FOLDER / "keys_modern_encoders.json").read_text())[name]
    return result


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


def wave(clip: str) -> torch.Tensor:
    """(1, N) at 16 kHz: A, B, A3 (3 s of A), C (32 s of both), S (silence)."""
    if clip == "S":
        return torch.zeros(1, 160_000)
    a, b = (golden()[f"{letter}_wave_int16"].astype(np.float32) / 32_768 for letter in "AB")
    samples = {"A": a, "A3": a[:48_000], "B": b, "C": np.concatenate([a, b, a[::-1], a[:104_000]])}[clip]
    return torch.from_numpy(np.ascontiguousarray(samples))[None]
