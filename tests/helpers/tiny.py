"""A world small enough to train on in seconds: clips are pure tones, captions name the pitch."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import yaml

from data_tools.manifest import Clip, read_manifest, write_manifest
from system.audio import passt
from system.features.bank import Bank
from system.features.extract import Features

RATE = 16_000
SIZES = {"development": 48, "validation": 16, "evaluation": 24}
LOGMEL = {"kind": "logmel", "sample_rate": RATE, "bands": 32, "window_seconds": 0.04, "hop_seconds": 0.02, "stack": 4}
PITCHES = ["deep", "low", "middling", "raised", "high", "shrill", "piercing", "whistling"]


def tone(pitch: int, seconds: float, seed: int) -> np.ndarray:
    t = np.arange(round(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).normal(0, 0.01, len(t))
    return (0.3 * np.sin(2 * np.pi * 150 * 1.6**pitch * t) + noise).astype(np.float32)


def captions(pitch: int, count: int, n: int) -> list[str]:
    """The clip's number makes every text unique; words of other splits' numbers are unknown to a trained model."""
    patterns = ["A {} tone sounds.", "Somebody plays a {} note", "a {} hum goes on", "One {} beep", "It is a {} sound."]
    return [f"{pattern.format(PITCHES[pitch])} {n}" for pattern in patterns[:count]]


def make_world(folder: Path, sizes: dict[str, int], captions_per_clip: int = 5) -> Path:
    """A manifest of `sizes` clips by split, 0.6 to 1.4 s, pitches in turn; returns its path."""
    clips = []
    for split, count in sizes.items():
        (folder / split).mkdir(parents=True)
        for n in range(count):
            path = folder / split / f"{split} {n:03d}.wav"
            seed = 1000 * list(sizes).index(split) + n
            seconds = 0.6 + 0.1 * (n % 9)
            soundfile.write(path, tone(n % len(PITCHES), seconds, seed), RATE)
            clips.append(
                Clip(
                    id=f"{folder.name}/{split}/{path.name}",
                    file_name=path.name,
                    path=str(path),
                    seconds=seconds,
                    captions=captions(n % len(PITCHES), captions_per_clip, seed),
                    source=folder.name,
                    split=split,  # type: ignore[arg-type]
                )
            )
    write_manifest(folder / "manifest.jsonl", clips)
    return folder / "manifest.jsonl"


def make_compressed_world(folder: Path, sizes: dict[str, int]) -> Path:
    """A tiny world as MP3 and FLAC files at 16 and 44.1 kHz, 1 to 7 s, longer than a crop."""
    manifest, clips = make_world(folder, sizes), []
    for number, clip in enumerate(read_manifest(manifest)):
        wave, rate = soundfile.read(clip.path)
        path = Path(clip.path).with_suffix(".mp3" if number % 2 else ".flac")
        soundfile.write(path, np.tile(wave, 5), 44_100 if number % 3 else rate)
        Path(clip.path).unlink()
        clips.append(replace(clip, path=str(path)))
    write_manifest(manifest, clips)
    return manifest


def stage(**changes: Any) -> dict[str, Any]:
    """A complete stage of two short epochs."""
    return {
        "start_from": {"kind": "scratch"},
        "train": {"data": ["train"], "mix": "size"},
        "unit": "clip",
        "captions_per_clip": 2,
        "batch_size": 8,
        "grad_cache_chunk": None,
        "epochs": 2,
        "steps_per_epoch": 3,
        "losses": [{"kind": "ranking", "weight": 1, "margin": 0.2, "relax": "none"}, {"kind": "matching", "weight": 3}],
        "optimizer": {"kind": "adamw", "lr": 0.001, "weight_decay": 0.01},
        "schedule": {"kind": "cosine", "warmup_steps": 1},
        "max_grad_norm": 1.0,
        "precision": "float32",
        "monitor": {"data": ["validation"], "metrics": ["loss", "m1", "m2", "mAP@10"], "keep": 3},
    } | changes


def recipe(manifest: Path, folder: Path, **stages: dict[str, Any]) -> dict[str, Any]:
    """A complete recipe over a tiny world, with small encoders. Frames go where the world has a folder for them."""
    banks = manifest.parent / "banks"
    sources = {"train": "development", "validation": "validation", "evaluation": "evaluation"}
    stages = stages or {"only": stage()}
    layers = {"layers": 1, "heads": 2, "ffn_dim": 48, "dropout": 0.1}
    ranking = {"kind": "checkpoint", "data": "evaluation", "stage": list(stages)[-1], "checkpoint": "mAP@10"}
    return {
        "name": "tiny",
        "seed": 3,
        "banks": str(banks if banks.is_dir() else folder / "banks"),
        "data": {name: {"manifest": str(manifest), "split": split} for name, split in sources.items()},
        "model": {
            "audio": {
                "kind": "expert_heads",
                "experts": {"logmel": dict(LOGMEL)},
                "width": 32,
                "max_positions": 64,
                **layers,
            },
            "text": {"kind": "transformer", "dim": 32, "max_words": 16, **layers},
            "score": {"kind": "cosine"},
        },
        "stages": stages,
        "rank": {"evaluation": ranking | {"edition": 2022, "csv": True}},
    }


def segments(**changes: Any) -> dict[str, Any]:
    """Settings of PaSST from scratch on segments of 0.5 s, followed by a linear layer."""
    network = {"kind": "passt", "network": "s16", "weights": None, "segment_seconds": 0.5, "output": "clip"}
    return {"kind": "segments", "network": network, "trainable": True, "max_seconds": 10} | changes


def panns(**changes: Any) -> dict[str, Any]:
    """Settings of Cnn14 from scratch on whole clips, followed by small layers."""
    network = {"kind": "panns", "network": "cnn14", "weights": None, "output": "clip", "dropout": 0.2}
    return {"kind": "segments", "network": network, "trainable": True, "max_seconds": 10, "hidden": 8} | changes


def narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cnn14 of few channels, and PaSST of one block."""
    monkeypatch.setitem(passt.VARIANTS, "s16", passt.VARIANTS["s16"]._replace(blocks=1))
    monkeypatch.setattr("system.audio.panns.CNN14", (1, 4, 8, 8, 16, 16, 64))
    monkeypatch.setattr("system.audio.panns.Panns.dim", 64)


def write_recipe(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
    return path


def relevance(points: dict[int, float] | None = None, **changes: Any) -> dict[str, Any]:
    """Settings of CIDEr; points: r at each percentile. The default relaxes even a tiny world's captions."""
    points = points or {60: 1.0, 80: 0.7, 95: 0.4}
    return {
        "kind": "cider",
        "corpus": ["train"],
        "tokenizer": "regex",
        "relax": [{"percentile": percentile, "factor": factor} for percentile, factor in points.items()],
    } | changes


PAPERS_POINTS = {80: 1.0, 90: 0.7, 99: 0.4}
RELAXED = [{"kind": "ranking", "weight": 1, "margin": 0.2, "relax": "cider"}, {"kind": "matching", "weight": 3}]


def two_stages(**changes: Any) -> dict[str, dict[str, Any]]:
    start = {"kind": "stage", "stage": "pretrain", "checkpoint": "loss"}
    return {
        "pretrain": stage(epochs=3, captions_per_clip=1, **changes),
        "finetune": stage(epochs=3, start_from=start, **changes),
    }


def frames(features: Features, expert: str, clip_id: str) -> np.ndarray:
    """Return the frames (T, D) of a clip."""
    bank, key = features.banks[expert], features.keys[clip_id]
    found: np.ndarray = bank.part(key, 0, bank.rows_of(key))
    return found


def store_all(bank: Bank, series: Iterable[tuple[str, np.ndarray]]) -> list[str]:
    """Store series in a bank; returns the keys that it did not have."""
    before = set(bank.places)
    for key, values in series:
        bank.store(key, values)
    return [key for key in list(bank.places) if key not in before]
