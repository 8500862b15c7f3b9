"""Start of training, and `check`, with 400,000 audio files: CPU time and memory, cold and with stored facts."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tiny

pytestmark = pytest.mark.benchmark

COUNT, FEW = 400_000, 1_000
MD5 = slice(26, 42)  # of the samples in a FLAC file's header, which libsndfile does not compare
NETWORK = {"kind": "efficientat", "network": "mn04", "weights": None, "segment_seconds": 0.5, "output": "clip"}
ENCODER = {"kind": "segments", "network": NETWORK, "trainable": True, "max_seconds": 1, "hidden": 8}


def make_files(folder: Path, count: int) -> Path:
    """Write `count` FLAC files of different content, their manifest, and a recipe of two steps; return the recipe."""
    template = folder / "template.flac"
    soundfile.write(template, np.random.default_rng(0).normal(0, 0.1, 3200), 32_000)
    content = bytearray(template.read_bytes())
    with (folder / "clips.jsonl").open("w") as manifest:
        for number in range(count):
            split = {0: "evaluation", 1: "validation"}.get(number % (count // 100), "development")
            path = f"{number // 5000:03}/{number:07}.flac"
            (folder / path).parent.mkdir(exist_ok=True)
            content[MD5] = number.to_bytes(16, "big")
            (folder / path).write_bytes(content)
            text = f"sound {number % 5000} and sound {number * 7 % 5000}, take {number // 1000} of {number % 1000}"
            line = {
                "id": f"made/{split}/{number:07}.flac", "file_name": f"{number:07}.flac", "path": path, "seconds": 0.1,
                "captions": [text], "source": "made",
                "split": split, "freesound_id": str(number), "licence": "CC0", "uploader": f"user {number % 1000}",
            }  # fmt: skip
            manifest.write(json.dumps(line) + "\n")
    stage = tiny.stage(epochs=1, steps_per_epoch=2, captions_per_clip=1)
    made = tiny.recipe(folder / "clips.jsonl", folder, only=stage)
    made["model"]["audio"] = ENCODER
    return tiny.write_recipe(folder / "recipe.yaml", made)


def measured(*arguments: object) -> tuple[float, float]:
    """CPU seconds and GiB of a command of the kit."""
    command = [sys.executable, "-m", "system", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{command} failed"
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def plain_seconds(folder: Path) -> float:
    """CPU seconds of parsing every line of the manifest once, and asking for the size of every file."""
    began = time.process_time()
    for line in (folder / "clips.jsonl").read_text().splitlines():
        os.stat(folder / json.loads(line)["path"])  # noqa: PTH116
    return time.process_time() - began


def test_start_time_of_verbs_check_and_train_with_many_audio_files_is_measured(tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    seconds: dict[str, dict[str, float]] = {}
    sizes: dict[str, dict[str, float]] = {}
    for folder, count in ((few, FEW), (many, COUNT)):
        folder.mkdir()
        recipe = make_files(folder, count)
        for state in ("cold", "warm"):
            for verb, more in (("check", []), ("run", ["--until=training", "--out", folder / f"run-{state}"])):
                name = f"{verb}, {state}"
                taken, size = measured(verb, recipe, *more)
                seconds.setdefault(name, {})[folder.name] = taken
                sizes.setdefault(name, {})[folder.name] = size
                print(f"\n{name}, {count:,} files: {taken:.1f} CPU s, {size:.2f} GiB", end="")
    plain = plain_seconds(many)
    print(f"\nlines parsed once, sizes asked for: {plain:.1f} CPU s")
    for name in ("check, warm", "run, warm"):
        assert seconds[name]["many"] - seconds[name]["few"] < 6 * plain, f"{name} goes through the clips too often"
    for name, limit in (("check, warm", 0.2), ("run, warm", 0.7)):
        assert sizes[name]["many"] - sizes[name]["few"] < limit, f"{name} keeps too much of each clip"
