"""Makes the files of an earlier release that tests/test_stored.py opens; see README.md here.

Run by the earlier release's code, in an empty folder, with relative paths only, so that no file says where it was made.
"""

import csv
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import yaml
from matplotlib.figure import Figure

RATE = 8_000
SIZES = {"development": 8, "validation": 4, "evaluation": 12}
WORDS = ["deep", "low", "raised", "high"]
SOUNDS = 320  # of the sandbox: three pages

RECIPE: dict[str, Any] = {
    "name": "stored",
    "seed": 3,
    "banks": "banks",
    "data": {
        name: {"manifest": "tones/manifest.jsonl", "split": split}
        for name, split in (("train", "development"), ("validation", "validation"), ("evaluation", "evaluation"))
    },
    "model": {
        "audio": {
            "kind": "expert_heads",
            "experts": {
                "logmel": {
                    "kind": "logmel", "sample_rate": RATE, "bands": 8, "window_seconds": 0.04, "hop_seconds": 0.02,
                    "stack": 2,
                }
            },
            "width": 8, "layers": 1, "heads": 2, "ff": 8, "positions": 16, "dropout": 0.1,
        },
        "text": {"kind": "transformer", "dim": 8, "layers": 1, "heads": 2, "ff": 8, "max_words": 8, "dropout": 0.1},
        "score": {"kind": "cosine"},
    },
    "stages": {
        "only": {
            "start_from": {"kind": "scratch"},
            "train": {"data": ["train"], "mix": "size"},
            "unit": "clip",
            "captions_per_clip": 1,
            "batch_size": 4,
            "gradient_cache": None,
            "epochs": 2,
            "steps_per_epoch": 2,
            "losses": [
                {"kind": "ranking", "weight": 1, "margin": 0.2, "relax": "none"},
                {"kind": "nt_xent", "weight": 1, "temperature": 0.1, "same_clip": "left_out"},
            ],
            "optimizer": {"kind": "adamw", "lr": 0.01, "weight_decay": 0.01},
            "schedule": {
                "kind": "plateau", "metric": "loss", "factor": 0.5, "patience": 1, "threshold": 0.0, "least_lr": 0.0001,
            },
            "stop": {"kind": "patience", "metric": "mAP@10", "epochs": 5},
            "clip_gradient": 1.0,
            "precision": "float32",
            "monitor": {"data": ["validation"], "metrics": ["loss", "mAP@10"], "keep": 1},
        }
    },
    "rank": {
        "evaluation": {
            "kind": "checkpoint", "data": "evaluation", "stage": "only", "checkpoint": "loss", "edition": 2022,
            "csv": True,
        }
    },
}  # fmt: skip
STUDY = {
    "name": "margins", "recipe": "recipe.yaml", "seeds": [3], "cells": {"narrow": {}, "wide": {
        "stages.only.losses.0.margin": 0.5}},
}  # fmt: skip
ABOUT = {
    "authors": [
        {
            "lastname": "Doe", "firstname": "Jo", "email": "jo@example.org", "corresponding": True,
            "affiliation": {"abbreviation": "EX", "institute": "Institute", "department": None, "location": "Town"},
        }
    ],
    "systems": [{"name": "One", "abbreviation": "one"}],
    "sources": {"tones": {"url": None}},
}  # fmt: skip

# They end like a kill once the first epoch, and the first page of sounds, are saved.
KILLED_RUN = """
import os, sys
import system.train
save = system.train._Stage._save
def saved(self, weights):
    save(self, weights)
    os._exit(9)
system.train._Stage._save = saved
from system.__main__ import main
main(sys.argv[1:])
"""
KILLED_CRAWL = """
import os, sys
from data_tools.freesound.store import Store
save = Store.save
def saved(self, window, page):
    save(self, window, page)
    if self.count():
        self.close()
        os._exit(9)
Store.save = saved
from data_tools.__main__ import main
main(sys.argv[1:])
"""


def run(*arguments: str, status: int = 0) -> None:
    done = subprocess.run([sys.executable, *arguments])
    assert done.returncode == status, arguments


def make_tones() -> None:
    """Clips of a quarter of a second and more, a pitch each, with captions that name it."""
    lines = []
    for split, count in SIZES.items():
        Path("tones", split).mkdir(parents=True)
        for n in range(count):
            noise = np.random.default_rng(len(lines)).normal(0, 0.002, RATE // 4 + 200 * n)
            tone = 0.3 * np.sin(2 * np.pi * 200 * 1.7 ** (n % 4) * np.arange(len(noise)) / RATE) + noise
            path = Path("tones", split, f"{split}_{n}.flac")
            soundfile.write(path, tone.astype(np.float32), RATE)
            captions = [f"a {WORDS[n % 4]} tone {split} {n}", f"somebody plays a {WORDS[n % 4]} note {split} {n}"]
            lines.append(
                {
                    "id": f"tones/{split}/{path.name}",
                    "file_name": path.name,
                    "path": f"{split}/{path.name}",
                    "seconds": len(noise) / RATE,
                    "captions": captions,
                    "source": "tones",
                    "split": split,
                    "freesound_id": None,
                    "licence": None,
                    "uploader": None,
                }
            )
    Path("tones/manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_crawl() -> None:
    """A store of one page of sounds, and a folder of three that were fetched."""
    scores = Path("crawl/scores.csv")
    scores.parent.mkdir()
    serve = ["-m", "data_tools", "sandbox", "--port", "0", "--sounds", str(SOUNDS), "--no-throttle"]
    sandbox = subprocess.Popen([sys.executable, *serve], stdout=subprocess.PIPE, text=True)
    assert sandbox.stdout
    sandbox.stdout.readline()
    os.environ.update(word.split("=", 1) for word in sandbox.stdout.readline().split()[1:])
    run("-c", KILLED_CRAWL, "crawl", "crawl/store.sqlite", "--workers", "1", status=9)
    run("-m", "data_tools", "export", "crawl/store.sqlite", "--out", "crawl/sounds.csv")
    with Path("crawl/sounds.csv").open(newline="", encoding="utf-8") as file:
        sounds = sorted(csv.DictReader(file), key=lambda row: float(row["duration"]))
    with scores.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["freesound_id", "score_natural", "score_balanced", "language", "text"])
        writer.writerows([row["id"], 0.9 if n < 8 else 0.1, 0.5, "en", f"sound {n}"] for n, row in enumerate(sounds))
    Path("crawl/sounds.csv").unlink()
    fetch = "fetch crawl/store.sqlite --scores crawl/scores.csv --exclude none --limit 3 --rate 8000 --seconds 0.1 120"
    run("-m", "data_tools", *fetch.split(), "--out", "crawl/audio")
    sandbox.send_signal(signal.SIGINT)
    sandbox.wait()


def pack(name: str, *paths: str) -> None:
    """Into NAME.tar.xz, without whose and when."""

    def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for path in paths:
            archive.add(path, filter=anonymous)


def without_machine() -> None:
    """What a run notes of the machine and the folder of the code is no test's business."""
    for path in Path().rglob("provenance.json"):
        noted = json.loads(path.read_text())
        noted["command"][0] = "system/__main__.py"
        path.write_text(json.dumps(noted | {"machine": "a machine"}, indent=1) + "\n")
    for path in Path().rglob("*.clips.csv"):
        path.write_text(path.read_text().replace(f"{Path.cwd()}/", ""))
    with closing(sqlite3.connect("banks/contents.sqlite")) as database, database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            database.execute(f"DELETE FROM {table}")  # by path; they are hashed again
    with closing(sqlite3.connect("banks/contents.sqlite")) as database:
        database.execute("VACUUM")
    for path in (*Path().rglob("log.txt"), *Path().rglob("lock")):
        path.unlink()
    for path in Path().rglob("figures"):
        shutil.rmtree(path)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    make_tones()
    for name, content in (("recipe.yaml", RECIPE), ("margins.study.yaml", STUDY), ("about.yaml", ABOUT)):
        Path(name).write_text(yaml.safe_dump(content, sort_keys=False))
    Figure().savefig("report.pdf")
    run("-m", "system", "run", "recipe.yaml", "--out", "finished")
    run("-c", KILLED_RUN, "run", "recipe.yaml", "--out", "unfinished", status=9)
    run("-m", "system", "export", "finished", "--out", "model")
    run("-m", "system", "study", "margins.study.yaml", "--runs", "runs")
    package = ["--about", "about.yaml", "--report", "report.pdf", "--out", "package.zip"]
    run("-m", "submission", "pack", "finished", *package)
    make_crawl()
    without_machine()
    pack("world", "tones", "banks", "recipe.yaml")
    pack("finished", "finished")
    pack("unfinished", "unfinished")
    pack("model", "model")
    pack("study", "margins.study.yaml", "runs")
    pack("package", "about.yaml", "report.pdf", "package.zip")
    pack("crawl", "crawl")


if __name__ == "__main__":
    main()
