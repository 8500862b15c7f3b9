"""Settings by old names: read for one release as the new ones, and said with what to write."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml

from system.__main__ import main
from system.recipe.load import RecipeError, load_recipe


def old_and_new(tmp_path: Path) -> tuple[Path, Path]:
    """One recipe by the names of the release before, and by those of today."""
    stage = tiny.stage(
        schedule={"kind": "plateau", "metric": "loss", "factor": 0.1, "patience": 5, "threshold": 0.1, "min_lr": 0.001},
        stop={"kind": "early_stopping", "metric": "loss", "epochs": 2},
        losses=[{"kind": "nt_xent", "weight": 1, "temperature": 0.07, "same_clip": "masked"}],
    )
    new = tiny.recipe(tmp_path / "manifest.jsonl", tmp_path, only=stage)
    old = json.loads(json.dumps(new))
    for part in (old["model"]["audio"], old["model"]["text"]):
        part["ff"] = part.pop("ffn_dim")
    old["model"]["audio"]["positions"] = old["model"]["audio"].pop("max_positions")
    for stage in old["stages"].values():
        stage["clip_gradient"] = stage.pop("max_grad_norm")
        stage["gradient_cache"] = stage.pop("grad_cache_chunk")
    stage = old["stages"]["only"]
    stage["schedule"]["least_lr"] = stage["schedule"].pop("min_lr")
    stage["stop"]["kind"] = "patience"
    stage["losses"][0]["same_clip"] = "left_out"
    paths = tmp_path / "old.yaml", tmp_path / "new.yaml"
    for path, value in zip(paths, (old, new), strict=True):
        path.write_text(yaml.safe_dump(value, sort_keys=False))
    return paths


def test_old_names_give_the_same_recipe_and_a_line_each(tmp_path: Path) -> None:
    old, new = (load_recipe(path) for path in old_and_new(tmp_path))
    assert old.resolved() == new.resolved()
    assert new.renamed == ()
    lines = (tmp_path / "old.yaml").read_text().splitlines()
    for line in old.renamed:
        path, number, where, *_ = line.split(":")
        assert path == str(tmp_path / "old.yaml")
        key = where.split(" is called")[0].split(".")[-1].strip()
        assert lines[int(number) - 1].strip("- ").startswith(f"{key}:"), "the line is that of the old name"
    said = "\n".join(old.renamed)
    for words in (
        "model.audio.ff is called ffn_dim now; write ffn_dim: 48",
        "model.audio.positions is called max_positions now; write max_positions: 64",
        "stages.only.clip_gradient is called max_grad_norm now; write max_grad_norm: 1.0",
        "stages.only.gradient_cache is called grad_cache_chunk now; write grad_cache_chunk: null",
        "stages.only.schedule.least_lr is called min_lr now; write min_lr: 0.001",
        "stages.only.stop.kind: patience is called early_stopping now; write kind: early_stopping",
        "stages.only.losses.0.same_clip: left_out is called masked now; write same_clip: masked",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("stages.only.clip_gradient=2", "--set stages.only.clip_gradient is called max_grad_norm now; write "
         "stages.only.max_grad_norm"),
        ("stages.only.stop={kind: steady, metric: loss, epochs: 3, deviation: 1, at_least: 2}",
         "--set: stages.only.stop.kind: steady is called std_plateau now"),
    ],
)  # fmt: skip
def test_settings_by_old_names(tmp_path: Path, change: str, said: str) -> None:
    _, path = old_and_new(tmp_path)
    loaded = load_recipe(path, [change])
    (line,) = loaded.renamed
    assert said in line
    stage = loaded.recipe.stages["only"]
    assert stage.max_grad_norm == (2 if "clip" in change else 1)
    assert stage.stop is not None
    assert stage.stop.kind == ("early_stopping" if "clip" in change else "std_plateau")


@pytest.mark.parametrize("mistake", ["ff: -3", "positions: many", "least_lr: -1", "gradient_cache: 0"])
def test_a_mistake_in_the_value_of_an_old_name_is_told_with_its_line(tmp_path: Path, mistake: str) -> None:
    path, _ = old_and_new(tmp_path)
    lines = path.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if line.split(":")[0].strip() == mistake.split(":")[0])
    indent = len(lines[number]) - len(lines[number].lstrip())
    lines[number] = " " * indent + mistake
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    (problem,) = error.value.problems
    assert problem.startswith(f"{path}:{number + 1}: ")


def test_both_names_at_once_are_a_mistake_of_the_old_ones_line(tmp_path: Path) -> None:
    _, path = old_and_new(tmp_path)
    text = path.read_text().replace("    max_grad_norm: 1.0\n", "    max_grad_norm: 1.0\n    clip_gradient: 2\n", 1)
    path.write_text(text)
    number = text.splitlines().index("    clip_gradient: 2") + 1
    with pytest.raises(RecipeError, match="clip_gradient: the old name of max_grad_norm, which is given too") as error:
        load_recipe(path)
    assert error.value.problems[0].startswith(f"{path}:{number}: ")


def test_an_old_name_in_another_place_is_an_unknown_key(tmp_path: Path) -> None:
    _, path = old_and_new(tmp_path)
    path.write_text(path.read_text().replace("seed: ", "ff: 3\nseed: ", 1))
    with pytest.raises(RecipeError, match="ff: unknown key"):
        load_recipe(path)


def test_check_prints_what_to_write_and_other_verbs_warn_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    old, new = old_and_new(tmp_path)
    with caplog.at_level(logging.WARNING):
        main(["check", str(old)])
    shown = capsys.readouterr().out
    assert "write max_positions: 64" in shown
    assert [int(line.split(":")[1]) for line in shown.splitlines() if " is called " in line] == sorted(
        int(line.split(":")[1]) for line in load_recipe(old).renamed
    )
    assert not caplog.records, "check says it all itself"
    assert main(["features", str(old)]) == 1  # there is no manifest
    (warning,) = [record for record in caplog.records if "old names" in record.getMessage()]
    assert f"{old}: settings by old names ({shown.count(' is called ')}), which release 0.3.0" in warning.getMessage()
    capsys.readouterr()
    caplog.clear()
    main(["check", str(new)])
    assert "is called" not in capsys.readouterr().out
    assert not caplog.records


def test_odd_shapes_on_the_way_are_left_to_the_schema(tmp_path: Path) -> None:
    _, path = old_and_new(tmp_path)
    value: dict[str, Any] = yaml.safe_load(path.read_text())
    for odd in ([], 3, "x", None, {"a": []}):
        path.write_text(yaml.safe_dump(value | {"stages": odd, "model": odd}))
        with pytest.raises(RecipeError):
            load_recipe(path)
