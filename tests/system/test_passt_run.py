"""A small PaSST learns real recordings from files to ranks."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny
import torch
import yaml
from outcomes import COUNTED, digest, kill_after, lines, refused

from data_tools.errors import KitError
from data_tools.manifest import Clip, write_manifest
from system.compute.device import memory_errors

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
def recipe(shared, tmp_path):
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
    return json.loads((out / "result.json").read_text())["rank"]["evaluation"]


@pytest.mark.slow
def test_passt_overfits_recordings(root, recipe, tmp_path):
    whole = finished(root, recipe, tmp_path / "whole")
    assert whole["mAP@10"] == 1.0
    assert whole["untrained"] < 0.6


CLIPS = 24
WORDS = ["a", "dog", "barks", "while", "rain", "falls", "on", "water", "and", "birds", "sing", "near", "cars"]
MP3 = "wavcaps/WavCaps_mp3/Audio"
CONSTANT = {"bitrate_mode": "CONSTANT"}
SETS = {  # folder of the audio, file name, format, sample rate, channels
    "clotho/development": ("development {}.wav", {"subtype": "PCM_16"}, 44_100, 1),
    "clotho/validation": ("validation {}.wav", {"subtype": "PCM_16"}, 44_100, 1),
    "clotho/evaluation": ("evaluation {}.wav", {"subtype": "PCM_16"}, 44_100, 1),
    "audiocaps/train": ("id{}_30.wav", {"subtype": "PCM_16"}, 32_000, 1),
    f"{MP3}/FreeSound": ("{}.flac", {}, 32_000, 1),
    f"{MP3}/BBC_Sound_Effects": ("bbc{}.mp3", {"compression_level": 0.9} | CONSTANT, 32_000, 1),
    f"{MP3}/SoundBible": ("sb{}.mp3", {"compression_level": 0.8} | CONSTANT, 44_100, 2),
    f"{MP3}/AudioSet_SL": ("Y{}.flac", {}, 32_000, 1),
}


def write_audio(data: Path) -> None:
    """Write 4 to 9 s of noise and tones for each clip."""
    draw = np.random.default_rng(0)
    for folder, (name, form, rate, channels) in SETS.items():
        (data / folder).mkdir(parents=True)
        for number in range(CLIPS):
            count = int(rate * draw.uniform(4, 9))
            wave = 0.1 * np.sin(2 * np.pi * (200 + 20 * number) * np.arange(count) / rate)
            wave = wave + 0.02 * draw.standard_normal(count)
            soundfile.write(data / folder / name.format(number), np.stack([wave] * channels, 1), rate, **form)


def write_captions(data: Path) -> None:
    """Write the captions in the tables and JSON files of the published sets."""
    draw = np.random.default_rng(1)

    def caption() -> str:
        """Draw a caption."""
        return " ".join(draw.choice(WORDS, 8))

    for split in ("development", "validation", "evaluation"):
        with (data / f"clotho/clotho_captions_{split}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["file_name", *(f"caption_{k}" for k in range(1, 6))])
            table.writerows([f"{split} {n}.wav", *(caption() for _ in range(5))] for n in range(CLIPS))
    for split in ("train", "val", "test"):
        with (data / f"audiocaps/{split}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["audiocap_id", "youtube_id", "start_time", "caption"])
            table.writerows([n, f"id{n}" if split == "train" else f"{split}{n}", 30, caption()] for n in range(CLIPS))
    parts = {
        "FreeSound/fsd": "{}",
        "BBC_Sound_Effects/bbc": "bbc{}",
        "SoundBible/sb": "sb{}",
        "AudioSet_SL/as": "Y{}.wav",
    }
    for part, name in parts.items():
        items = [{"id": name.format(n), "caption": caption(), "duration": 6.0} for n in range(CLIPS)]
        if part == "FreeSound/fsd":
            items = [item | {"href": f"/people/me/sounds/{n}/"} for n, item in enumerate(items)]
        path = data / f"wavcaps/json_files/{part}_final.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"num_captions_per_audio": 1, "data": items}))
    (data / "wavcaps/dcase2025_task6_excluded_freesound_ids.csv").write_text("sound_id\n3\n7\n")


def small(root: Path, folder: Path) -> Path:
    """Return the recipe with small networks and four steps of four items, and everything else as shipped."""
    content: dict[str, Any] = yaml.safe_load((root / "recipes/dcase2025_baseline/all.yaml").read_text())
    content["model"]["audio"]["max_seconds"] = 4
    content["model"]["audio"]["network"] |= {"weights": None, "segment_seconds": 2}
    content["model"]["audio"]["network"] |= {"patchout_time": 2, "patchout_bands": 1}
    content["model"]["text"] = tiny.recipe(folder, folder)["model"]["text"] | {"dim": 1024}
    stage = content["stages"]["train"]
    stage |= {"batch_size": 4, "epochs": 2, "steps_per_epoch": 4, "precision": "float32"}
    stage["schedule"] |= {"warmup_epochs": 0.5, "until_epoch": 1.5}
    for source in content["data"].values():
        if "make" in source:  # said once per manifest
            source["make"] = source["make"].replace("data/", f"{folder}/data/")
        source["manifest"] = f"{folder}/{source['manifest']}"
        source.pop("expected")
    content["banks"] = f"{folder}/banks"
    return tiny.write_recipe(folder / "all.yaml", content)


@pytest.mark.slow
def test_2025_baseline_recipe_on_all_data_resumes_after_kills_and_stores_no_waveforms(root, tmp_path):
    write_audio(tmp_path / "data")
    write_captions(tmp_path / "data")
    recipe = small(root, tmp_path)
    whole = finished(root, recipe, tmp_path / "whole")
    assert whole["clips"] == CLIPS
    assert whole["queries"] == 5 * CLIPS
    for steps in (2, 6):
        kill_after(started(root, recipe, tmp_path / "killed"), tmp_path / "killed", steps)
    finished(root, recipe, tmp_path / "killed")
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert not list((tmp_path / "banks").glob("waveform-*"))
    manifest = (tmp_path / "data/wavcaps_freesound.jsonl").read_text().splitlines()
    assert len(manifest) == CLIPS - 2, "without the forbidden ones"


def test_memory_errors_of_torch_and_numpy_become_kit_errors():
    def torch_finds_none() -> None:
        torch.empty(2**55)

    def numpy_finds_none() -> None:
        raise MemoryError

    for full in (torch_finds_none, numpy_finds_none):
        with pytest.raises(KitError, match="machine"), memory_errors("the model", "make it smaller"):
            full()
    with pytest.raises(RuntimeError, match="another"), memory_errors("the model", "make it smaller"):
        raise RuntimeError("another")


def test_model_larger_than_memory_ends_run_with_error_message(world, tmp_path, capsys, monkeypatch):
    def full(*_: Any) -> None:
        torch.empty(2**55)

    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    monkeypatch.setattr("system.models.text.Transformer.build", full)
    assert "machine" in refused(capsys, "run", path, "--out", tmp_path / "run")
