"""A small PaSST learns real recordings from files to ranks, and a killed run goes on as if nothing had happened."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from outcomes import COUNTED, digest, kill_after, lines
from test_audio_training import recordings

from data_tools.manifest import write_manifest

# Blocks of 48 values in place of 768, two of them.
SMALL = """
from dataclasses import replace
from system.models.audio import passt as settings
from system.networks import passt, passt_published
for module in (passt_published, passt, settings):
    module.DIM, module.FFN_DIM, module.HEADS = 48, 96, 4
passt.PasstOnWaves.dim = 48
passt_published.VARIANTS["s16"] = replace(passt_published.VARIANTS["s16"], blocks=2)
"""


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
        epochs=12,
        steps_per_epoch=10,
        optimizer={"kind": "adamw", "lr": 2e-3, "weight_decay": 0},
        schedule={"kind": "epochs", "shape": "cosine", "start_lr": 0, "floor_lr": 1e-7}
        | {"warmup_epochs": 1, "until_epoch": 11},
    )
    content = tiny.recipe(tmp_path / "m.jsonl", tmp_path, only=stage)
    audio: dict[str, Any] = {"kind": "passt", "network": "s16", "weights": None, "trainable": True}
    audio |= {"segment_seconds": 2, "hop_seconds": 2, "max_seconds": 4, "patchout_time": 2, "patchout_bands": 1}
    audio |= {"edge_jitter": True, "spec_augment": None, "segment_pooling": "mean", "hidden": None}
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
def test_passt_overfits_recordings_and_resumes_bit_identically(root: Path, recipe: Path, tmp_path: Path) -> None:
    whole = finished(root, recipe, tmp_path / "whole")
    assert whole["mAP@10"] == 1.0
    assert whole["untrained"] < 0.6
    for steps in (3, 57):  # in the first epoch, and between two checkpoints
        kill_after(started(root, recipe, tmp_path / "killed"), tmp_path / "killed", steps)
    again = finished(root, recipe, tmp_path / "killed")
    assert again["mAP@10"] == 1.0
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
