"""Finished runs as their files, which nothing has trained: one that ranks clips, one that finds moments."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from ranked import NAMES, small_matrix

from submission.editions import get_edition
from submission.formats.score_matrix import write_scores
from submission.runs.entry import ranked_result
from submission.runs.record import FrameScores, write_frame_scores

LOSS = {"kind": "ranking", "weight": 1.0, "margin": 0.2}
STAGE = {
    "losses": [LOSS],
    "optimizer": {"kind": "adamw", "lr": 0.001, "weight_decay": None},
    "monitor": {"data": ["validation"], "test_split": None},
}


def entry(**changes: Any) -> dict[str, Any]:
    return {"kind": "checkpoint", "data": "evaluation", "stage": "only", "checkpoint": "mAP@10", **changes}


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def change(path: Path, **changes: Any) -> None:
    write_json(path, json.loads(path.read_text()) | changes)


def about(count: int = 1, **changes: Any) -> dict[str, Any]:
    affiliation = {"abbreviation": "U_/X", "institute": "University X", "department": None, "location": "Town, Land"}
    author = {"lastname": "de la Cruz", "firstname": "Ana", "email": "ana@example.org", "affiliation": affiliation}
    names = [{"name": f"System {n}", "abbreviation": f"sys{n}"} for n in range(1, count + 1)]
    sources = {name: {"url": None} for name in ("world", "minilm", "castella")}
    return {"authors": [author | {"corresponding": True}, author], "systems": names, "sources": sources} | changes


def result(folder: Path, **changes: Any) -> dict[str, Any]:
    sets = {"world": {"clips": 4, "captions": 7, "hours": 0.517, "licences": {"CC0": 3, "not known": 1}}}
    expert = {"rate": 16_000, "dim": 4, "frames_per_second": 12.5, "published": []}
    return {
        "format": 1, "recipe": "tiny", "seed": 3, "commits": ["abc"], "hardware": "2 cores",
        "parameters": {"trained": {"audio": 90, "text": 10}, "frozen": {"panns": 500, "text": 70}, "total": 670},
        "experts": {"panns": expert | {"kind": "panns", "published": ["https://panns.org"]},
                    "logmel": expert | {"kind": "logmel"}},
        "weight_licences": {"panns": "MIT"},
        "data": {"train": {"sets": sets, "trains": ["only"], "published": None}},
        "seconds": 1.0, "training_seconds": 3600.0, "broken": {"x.wav": "cut"},
        "rank": {}, "blind": {}, "moments": {}, **changes,
    }  # fmt: skip


def recipe(rank: dict[str, Any], manifest: Path) -> dict[str, Any]:
    data = {"train": "development", "validation": "validation", "evaluation": "evaluation"}
    return {
        "name": "tiny", "seed": 3, "stages": {"only": STAGE}, "rank": rank,
        "data": {name: {"manifest": str(manifest), "split": split} for name, split in data.items()},
        "model": {"audio": {"kind": "expert_heads", "spec_augment": {}},
                  "text": {"kind": "published", "model": "models/minilm"}},
    }  # fmt: skip


def write_common(folder: Path, settings: dict[str, Any], **entries: Any) -> Path:
    write_json(folder / "resolved.json", recipe(settings, folder / "manifest.jsonl"))
    write_json(folder / "result.json", result(folder, **entries))
    line = {"stage": "only", "epoch": 1, "seconds": 1.0, "collapsed": ["all captions alike"]}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "figures").mkdir()
    (folder / "figures/loss.svg").write_text("<svg/>")
    return folder


def write_run(folder: Path, seed: int = 0) -> Path:
    """A run that ranks clips: entries best, last, mean, validation and blind, with sounds of unlike length."""
    for name in ("scores", "audio"):
        (folder / name).mkdir(parents=True)
    lines = ["clip,path,seconds"]
    for number, name in enumerate(NAMES):
        path = folder / "audio" / f"{number}.wav"
        seconds = 0.3 + 0.1 * (number * 5 % 12)
        soundfile.write(path, 0.3 * np.sin(np.arange(int(8000 * seconds)) * 0.1 * (number + 1)), 8000)
        lines.append(f"clip{number},{path},{seconds:.3f}")
        assert "," not in str(path), name
    made = {"from": folder.name, "checkpoint": "best", "edition": "2022"}
    ranks, ranked = {}, {}
    for number, name in enumerate(("best", "last", "mean", "validation")):
        facts = made | {"checkpoint": "last" if name == "last" else "best"}
        if name == "mean":
            facts = {"of": {"best": made, "last": made | {"checkpoint": "last"}}, "edition": "2022"}
        matrix = replace(small_matrix(seed + number), facts=facts)
        write_scores(folder / f"scores/{name}.npy", matrix)
        (folder / f"scores/{name}.clips.csv").write_text("\n".join(lines) + "\n")
        data = "validation" if name == "validation" else "evaluation"
        facts = {"data": data, "checkpoint": "only epoch 1", "ceiling": None, "also_trained_on": 2}
        ranked[name] = ranked_result(matrix, get_edition(2022), small_matrix(9), **facts).document()
        ranks[name] = entry(data=data, checkpoint="last" if name == "last" else "mAP@10")
    ranks["mean"] = {"kind": "mean", "of": ["best", "last"], "edition": 2022}
    ranks["blind"] = {
        "kind": "blind",
        "audio": "x",
        "queries": "y",
        "stage": "only",
        "checkpoint": "mAP@10",
        "edition": 2022,
    }
    texts = [f"blind {n}" for n in range(24)]
    blind = small_matrix(seed + 7, query_texts=texts, relevant=[None] * 24, facts=made)
    write_scores(folder / "scores/blind.npy", blind)
    facts = {"queries": 24, "clips": 12, "checkpoint": "", "edition": "2022"}
    return write_common(folder, ranks, rank=ranked, blind={"blind": facts})


QUERIES = {"a_1": [[0, 10]], "a_2": [[3, 4], [20, 30]], "b_1": [[5, 7]], "c_1": []}  # true windows
FOUND = {"a_1": [[0, 9, 0.9], [30, 40, 0.5]], "a_2": [[50, 60, 0.8], [20, 30, 0.7]], "b_1": [[5, 7, 0.2]],
         "c_1": [[1, 2, 0.1]]}  # fmt: skip


def json_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def named(qid: str) -> dict[str, Any]:
    return {"qid": qid, "query": f"Query {qid}", "vid": qid[0]}


def write_true(path: Path, blind: bool = False) -> Path:
    windows = {qid: {} if blind else {"relevant_windows": each} for qid, each in QUERIES.items()}
    return json_lines(path, [named(qid) | {"duration": 60} | each for qid, each in windows.items()])


def write_found(path: Path, width: int = 3) -> Path:
    found = {qid: [window[:width] for window in each] for qid, each in FOUND.items()}
    return json_lines(path, [named(qid) | {"pred_relevant_windows": each} for qid, each in found.items()])


def write_moments_run(folder: Path) -> Path:
    """A run that finds moments: the entry found, and the entry blind for a list without windows."""
    (folder / "scores").mkdir(parents=True)
    metrics = ("R1@0.5", "R1@0.7", "mAP", "mAP@0.5", "mAP@0.75")
    moments = {}
    for name in ("found", "blind"):
        write_found(folder / f"scores/{name}.windows.jsonl")
        write_true(folder / f"scores/{name}.truth.jsonl", blind=name == "blind")
        frames = FrameScores(np.array([0.0, 1.0, 60.0]), np.array([0.25, 0.75]))
        write_frame_scores(folder / f"scores/{name}.frames.npz", dict.fromkeys(QUERIES, frames))
        figures = None if name == "blind" else dict.fromkeys(metrics, 0.25)
        moments[name] = {
            "metric": "R1@0.7", "figures": figures, "bootstrap": None, "random": figures, "ceiling": figures,
            "new_texts": None, "figures_of_new_texts": None, "data": "evaluation", "queries": 4, "clips": 3,
            "checkpoint": "only epoch 1", "fitted": None, "edition": "2026", "also_trained_on": 0,
        }  # fmt: skip
    rank = {"found": entry(kind="moments"), "blind": entry(kind="moments", data="list", edition=2026)}
    data = result(folder)["data"]
    data["train"]["sets"]["castella"] = data["train"]["sets"]["world"]
    return write_common(folder, rank, moments=moments, data=data)
