"""A small PaSST learns real recordings from files to ranks."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny
import torch
import yaml
from outcomes import COUNTED, digest, kill_after, lines, refused

from data_tools.manifest import Clip, write_manifest
from data_tools.tables import write_table
from system.devices import memory_errors

SMALL = """
from system.audio import passt
passt.VARIANTS["s16"] = passt.VARIANTS["s16"]._replace(blocks=1)
"""


def started(root: Path, recipe: Path, out: Path) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SMALL + COUNTED, "run", str(recipe), "--out", str(out)]
    with (recipe.parent / "log").open("w") as log:
        return subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log)


def finished(root: Path, recipe: Path, out: Path) -> dict[str, Any]:
    assert started(root, recipe, out).wait() == 0, (recipe.parent / "log").read_text()[-2000:]
    return json.loads((out / "result.json").read_text())["rank"]["evaluation"]


@pytest.mark.slow
def test_passt_overfits_recordings(root, shared, tmp_path):
    """16 of ESC-10, of all classes, with a caption each, trained on, watched and ranked."""
    with (shared / "data/esc10/esc10.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::25]
    clips = [
        Clip(
            id=f"{split}/{row['file_name']}",
            file_name=row["file_name"],
            path=str(shared / "data/esc10/audio" / row["file_name"]),
            captions=[f"{row['category'].replace('_', ' ')} by {row['author']} {n}"],
            split=split,  # type: ignore[arg-type]
        )
        for split in ("development", "validation", "evaluation")
        for n, row in enumerate(rows)
    ]
    write_manifest(tmp_path / "m.jsonl", clips)
    stage = tiny.stage(unit="pair", captions_per_clip=None, batch_size=16, epochs=6, steps_per_epoch=10)
    stage["losses"] = [{"kind": "nt_xent", "weight": 1, "temperature": 0.07, "same_clip": "positives"}]
    stage["optimizer"] = {"kind": "adamw", "lr": 2e-4, "weight_decay": 0}
    stage["schedule"] = {"kind": "epochs", "shape": "cosine", "start_lr": 0, "floor_lr": 1e-7}
    stage["schedule"] |= {"warmup_epochs": 1, "until_epoch": 5}
    content = tiny.recipe(tmp_path / "m.jsonl", tmp_path, only=stage)
    content["model"]["audio"] = tiny.segments(max_seconds=4)
    patchout = {"patchout_time": 2, "patchout_bands": 1, "edge_jitter": True}
    content["model"]["audio"]["network"] |= {"segment_seconds": 2, **patchout}
    content["model"]["text"] |= {"dropout": 0.0}
    found = finished(root, tiny.write_recipe(tmp_path / "r.yaml", content), tmp_path / "whole")
    assert found["mAP@10"] == 1.0
    assert found["untrained"] < 0.6


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

    def captions(count: int = 1) -> list[str]:
        return [" ".join(draw.choice(WORDS, 8)) for _ in range(count)]

    for split in ("development", "validation", "evaluation"):
        rows = [(f"{split} {n}.wav", *captions(5)) for n in range(CLIPS)]
        header = ("file_name", *(f"caption_{k}" for k in range(1, 6)))
        write_table(data / f"clotho/clotho_captions_{split}.csv", header, rows)
    for split in ("train", "val", "test"):
        name = "id" if split == "train" else split
        rows = [(n, f"{name}{n}", 30, *captions()) for n in range(CLIPS)]
        write_table(data / f"audiocaps/{split}.csv", ("audiocap_id", "youtube_id", "start_time", "caption"), rows)
    names = {
        "FreeSound/fsd": "{}",
        "BBC_Sound_Effects/bbc": "bbc{}",
        "SoundBible/sb": "sb{}",
        "AudioSet_SL/as": "Y{}.wav",
    }
    for part, name in names.items():
        items = [{"id": name.format(n), "caption": captions()[0], "duration": 6.0} for n in range(CLIPS)]
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


def test_model_or_arrays_larger_than_memory_end_a_run_with_an_error_message(world, tmp_path, capsys, monkeypatch):
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    for full in (lambda *_: torch.empty(2**55), lambda *_: np.empty(2**55)):
        monkeypatch.setattr("system.models.text.small.Transformer.build", full)
        assert "machine" in refused(capsys, "run", path, "--out", tmp_path / "run")
    with pytest.raises(RuntimeError, match="another"), memory_errors("the model", "make it smaller"):
        raise RuntimeError("another")
