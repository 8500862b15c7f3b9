"""The recipe of the 2025 baseline on all data, with a few made files per set in the published formats."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny
import yaml
from outcomes import digest, kill_after, lines
from test_passt_run import finished, started

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
def test_2025_baseline_recipe_on_all_data_resumes_after_kills_and_stores_no_waveforms(
    root: Path, tmp_path: Path
) -> None:
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
