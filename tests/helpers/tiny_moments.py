"""Recordings of 8 s with short tones, and a recipe that learns the times of the tones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny

from data_tools.manifest import Clip, read_manifest, write_manifest
from data_tools.moments import Moment, read_moments, write_moments

SECONDS = 8.0
SIZES = {"development": 24, "validation": 4, "evaluation": 6}


def make_moments(folder: Path, sizes: dict[str, int] | None = None) -> Path:
    """Write a manifest and moments.jsonl: each recording has two pitches, the first of them once or twice."""
    clips, moments = [], []
    for number, (split, count) in enumerate((sizes or SIZES).items()):
        (folder / split).mkdir(parents=True)
        for n in range(count):
            rng = np.random.default_rng([number, n])
            pitches = rng.choice(4, 2, replace=False).tolist()
            order = [pitches[0], pitches[1], *pitches[: int(rng.integers(2))]]
            wave, heard, at = rng.normal(0, 0.003, round(SECONDS * tiny.RATE)).astype(np.float32), {}, 0.3
            for pitch in order:
                length = float(rng.uniform(0.8, 1.6))
                start = round(at * tiny.RATE)
                sound = tiny.tone(pitch, length, 0)
                wave[start : start + len(sound)] += sound
                heard.setdefault(pitch, []).append((round(at, 2), round(at + length, 2)))
                at += length + float(rng.uniform(0.4, 1.0))
            path = folder / split / f"{split}_{n:03d}.wav"
            soundfile.write(path, wave.clip(-1, 1), tiny.RATE)
            clip_id, texts = f"tones/{split}/{path.name}", []
            for pitch, windows in heard.items():
                texts.append(tiny.captions(pitch, 1, 0)[0])
                moments.append(Moment(id=f"{path.stem}_{len(texts)}", text=texts[-1], clip=clip_id, windows=windows))
            known: dict[str, Any] = {"source": "tones", "split": split, "seconds": SECONDS, "captions": texts}
            clips.append(Clip(id=clip_id, file_name=path.name, path=str(path), **known))
    write_manifest(folder / "manifest.jsonl", clips)
    write_moments(folder / "moments.jsonl", moments, clips)
    return folder / "manifest.jsonl"


def moments_of(manifest: Path) -> list[Moment]:
    """Return the moments of a manifest that make_moments made."""
    return read_moments(manifest.parent / "moments.jsonl", read_manifest(manifest))


@pytest.fixture
def short_fits(monkeypatch):
    """Fits of four numbers take fewer steps; how well they fit is tested elsewhere."""
    monkeypatch.setattr("system.ranking.windows.FIT_STEPS", 15)


def recipe(manifest: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """A complete recipe of 42 quick steps over frames of 0.1 s; changes: of its one stage."""
    made = tiny.recipe(manifest, folder)
    experts = {"logmel": tiny.LOGMEL | {"stack": 5}}
    made["model"]["audio"] = {"kind": "frame_transformer", "experts": experts, "embedding": "frames", "width": 32}
    made["model"]["audio"] |= {"layers": 1, "heads": 2, "ffn_dim": 48, "max_positions": 128, "dropout": 0.0}
    made["model"]["text"]["dropout"] = 0.0
    made["model"]["score"] = {"kind": "moments"}
    for source in made["data"].values():
        source["moments"] = str(manifest.parent / "moments.jsonl")
    watched = {"data": ["validation"], "metrics": ["loss", "R1@0.5", "R1@0.7", "mAP"], "keep": 1}
    stage = tiny.stage(unit="moment", captions_per_clip=None, epochs=3, steps_per_epoch=14, monitor=watched)
    stage["losses"] = [{"kind": "two_state", "weight": 1, "per_frame": False}]
    stage["optimizer"]["lr"] = 0.005
    stage["schedule"]["warmup_steps"] = 12
    made["stages"] = {"only": stage | changes}
    best = {"data": "evaluation", "stage": "only", "checkpoint": "last", "edition": 2026}
    made["rank"] = {
        "overlap": {"kind": "moments", "windows": "overlap", **best},
        "thresholds": {"kind": "moments", "windows": "thresholds", **best},
    }
    return made
