"""A small PaSST learns real recordings from files to ranks."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from outcomes import COUNTED

from data_tools.manifest import Clip, write_manifest

SMALL = """
from system.audio import passt
passt.VARIANTS["s16"] = passt.VARIANTS["s16"]._replace(blocks=1)
"""


def recordings(shared: Path) -> list[Clip]:
    """16 real ones, of all ten classes, each with a caption of its own."""
    with (shared / "data/esc10/esc10.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::25]
    folder = shared / "data/esc10/audio"
    return [
        Clip(
            id=row["file_name"],
            file_name=row["file_name"],
            path=str(folder / row["file_name"]),
            captions=[f"{row['category'].replace('_', ' ')} by {row['author']} {n}"],
        )
        for n, row in enumerate(rows)
    ]


@pytest.fixture
def recipe(shared: Path, tmp_path: Path) -> Path:
    """16 recordings of ESC-10 with a caption each, trained on, watched and ranked."""
    clips = recordings(shared)
    copies = [
        replace(clip, split=split, id=f"{split}/{clip.id}")
        for split in ("development", "validation", "evaluation")
        for clip in clips
    ]
    write_manifest(tmp_path / "m.jsonl", copies)
    stage = tiny.stage(
        losses=[{"kind": "nt_xent", "weight": 1, "temperature": 0.07, "same_clip": "positives"}],
        unit="pair",
        captions_per_clip=None,
        batch_size=16,
        epochs=6,
        steps_per_epoch=10,
        optimizer={"kind": "adamw", "lr": 2e-4, "weight_decay": 0},
        schedule={"kind": "epochs", "shape": "cosine", "start_lr": 0, "floor_lr": 1e-7}
        | {"warmup_epochs": 1, "until_epoch": 5},
    )
    content = tiny.recipe(tmp_path / "m.jsonl", tmp_path, only=stage)
    network = {"kind": "passt", "network": "s16", "weights": None, "segment_seconds": 2, "output": "clip"}
    network |= {"patchout_time": 2, "patchout_bands": 1, "edge_jitter": True}
    audio = {"kind": "segments", "network": network, "trainable": True, "max_seconds": 4}
    content["model"]["audio"] = audio
    content["model"]["text"] |= {"dropout": 0.0}
    return tiny.write_recipe(tmp_path / "r.yaml", content)


def started(root: Path, recipe: Path, out: Path) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SMALL + COUNTED, "run", str(recipe), "--out", str(out)]
    with (recipe.parent / "log").open("w") as log:
        return subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log)


def finished(root: Path, recipe: Path, out: Path) -> dict[str, Any]:
    assert started(root, recipe, out).wait() == 0, (recipe.parent / "log").read_text()[-2000:]
    found: dict[str, Any] = json.loads((out / "result.json").read_text())["rank"]["evaluation"]
    return found


@pytest.mark.slow
def test_passt_overfits_recordings(root: Path, recipe: Path, tmp_path: Path) -> None:
    """Its runs that are killed are those of test_stand_ins."""
    whole = finished(root, recipe, tmp_path / "whole")
    assert whole["mAP@10"] == 1.0
    assert whole["untrained"] < 0.6
