"""Damaged files of a run: refused with an error message whose suggested command works, and never used."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from outcomes import refused, rewrite, without_checksums

from data_tools.errors import KitError
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.recipe.load import load_recipe
from system.runs import checkpoints
from system.runs.find import open_run


@pytest.fixture
def run(unbroken: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(unbroken, tmp_path / "run")


def edit(path: Path, change: Any) -> None:
    """Change a JSON file in place; whatever checksum it has does not fit any more."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def rank(run: Path, world: Path, out: Path) -> list[str]:
    return ["rank", str(run), "--audio", str(world), "--split", "evaluation", "--out", str(out)]


def test_folder_with_user_files_is_refused_as_run_folder(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("recipe.yaml", ".mine.part", ".recipe.yaml.part"):
        folder = tmp_path / f"a {name}"
        folder.mkdir()
        (folder / name).write_text("# mine")
        assert "neither" in refused(capsys, "train", recipe, "--out", folder)
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text() == "# mine"


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (lambda result: result.update(parameters={}), "parameters.trained"),
        (lambda result: result["parameters"].update(trained=[1]), "parameters.trained"),
        (lambda result: result["rank"].update(evaluation={}), "rank.evaluation.metric"),
        (lambda result: result["rank"]["evaluation"].update(interval=[0.1, 0.2, 0.3]), "rank.evaluation.interval"),
        (lambda result: result["rank"]["evaluation"].update(metric=None), "rank.evaluation.metric"),
        (
            lambda result: result["rank"]["evaluation"].pop("mAP@10"),
            "rank.evaluation: the value of the primary metric mAP@10 is missing",
        ),
        (lambda result: result.update(sha256={"/etc/passwd": "0"}), "sha256"),
        (lambda result: result.update(sha256={"../other": "0"}), "sha256"),
    ],
)
def test_malformed_result_json_is_refused(
    run: Path, recipe: Path, change: Any, at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(without_checksums(run) / "result.json", change)
    output = refused(capsys, "run", recipe, "--out", run)
    assert "result.json is damaged" in output
    assert at in output


def test_finished_run_with_damaged_files_is_refused(
    run: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(recipe), "--out", str(run)]) == 0
    noted = json.loads((run / "result.json").read_text())["sha256"]
    assert {"scores/evaluation.npy", "submission/evaluation.csv", "metrics.jsonl", "resolved.json"} <= noted.keys()
    for name in sorted(noted.keys() - {"resolved.json"}):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        assert f"{name} is damaged" in refused(capsys, "run", recipe, "--out", run)
        (run / name).write_bytes(whole)


@pytest.mark.parametrize("best", ["[[0.3, 1e999]]", "[[0.3, 1.5]]", "[[0.3, 0]]", "[[0.3]]", '[["a", 1]]'])
def test_malformed_list_of_best_checkpoints_in_done_json_is_refused(
    run: Path, world: Path, tmp_path: Path, best: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = without_checksums(run) / "finetune/done.json"
    content = json.loads(done.read_text()) | {"best": {"loss": "HERE", "mAP@10": "HERE"}}
    done.write_text(json.dumps(content).replace('"HERE"', best))
    assert "done.json" in refused(capsys, *rank(run, world, tmp_path / "s.npy"))


def change_a_digit(settings: Path) -> None:
    whole = settings.read_text()
    changed = re.sub('"seed": [0-9]+', '"seed": 40', whole, count=1)
    assert changed != whole
    settings.write_text(changed)


def follow(output: str) -> list[str]:
    """Delete the file that an error message names; return the command that it suggests."""
    separator = ", then make the missing files again with: lbar "
    delete, command = output[output.index("delete ") :].split(separator)
    for path in delete.removeprefix("delete ").split(" and "):
        Path(path).unlink()
    return shlex.split(command)


@pytest.mark.parametrize("use", ["rank", "export", "run"])
def test_command_suggested_for_damaged_settings_restores_the_run(
    run: Path, recipe: Path, world: Path, tmp_path: Path, use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = read_scores(run / "scores/evaluation.npy").values.tobytes()
    change_a_digit(run / "resolved.json")
    verb = {
        "rank": rank(run, world, tmp_path / "s.npy"),
        "export": ["export", str(run), "--out", str(tmp_path / "model")],
        "run": ["run", str(recipe), "--out", str(run)],
    }
    output = refused(capsys, *verb[use])
    assert "resolved.json is damaged" in output
    assert main(follow(output)) == 0
    assert read_scores(run / "scores/evaluation.npy").values.tobytes() == expected


def test_damaged_resolved_json_is_reported_in_one_error_message(
    run: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "resolved.json").write_text("{" + (run / "resolved.json").read_text())
    output = refused(capsys, *rank(run, world, tmp_path / "s.npy"))
    assert output.count("error: ") == 1
    assert "resolved.json is damaged" in output


def test_message_for_damaged_settings_suggests_a_command_with_the_set_options(
    run: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(run / "provenance.json", changes=["seed=8", "a b=c d"])
    (run / "resolved.json").write_text("{}")
    output = refused(capsys, *rank(run, world, tmp_path / "s.npy"))
    command = ["run", str(run / "recipe.yaml"), "--set", "seed=8", "--set", "a b=c d", "--out", str(run)]
    assert follow(output) == command


def test_damaged_run_is_reported_instead_of_started_again(
    unbroken: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "runs/of last week")
    change_a_digit(run / "resolved.json")
    output = refused(capsys, "run", recipe, "--runs", tmp_path / "runs")
    assert "of last week/resolved.json is damaged" in output
    assert len(list((tmp_path / "runs").iterdir())) == 1
    with pytest.raises(KitError, match="checksum"):
        open_run(load_recipe(recipe), tmp_path, run)


def test_exported_model_with_checksums_of_files_outside_its_folder_is_refused(
    unbroken: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a foreign model could have any file read, and ask the user to delete it."""
    model = tmp_path / "model"
    assert main(["export", str(unbroken), "--out", str(model)]) == 0
    secret = tmp_path / "secret"
    secret.write_text("mine")
    for name in (str(secret), "../secret"):
        without_checksums(model)
        edit(model / "model.json", lambda facts, name=name: facts.update(sha256={name: "0"}))
        output = refused(capsys, *rank(model, world, tmp_path / "s.npy"))
        assert "is outside the run's folder" in output
        assert "secret is damaged" not in output


@pytest.mark.parametrize("key", ["model", "optimizer", "scaler", "precision", "best", "step", "sums"])
def test_training_state_with_missing_key_is_refused(run: Path, key: str) -> None:
    path = run / "finetune/last.pt"
    state = torch.load(path, weights_only=True)
    del state[key]
    torch.save(state, path)
    with pytest.raises(KitError, match=f"is damaged .missing parts: {key}"):
        checkpoints.load_state(run / "finetune")


def test_checkpoint_weights_with_nan_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    model.weight.data[0, 0] = torch.nan
    checkpoints.save_weights(model.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(KitError, match="infinite"):
        checkpoints.load_weights(torch.nn.Linear(3, 2), tmp_path / "w.safetensors")
