"""`lbar recipes`, `lbar recipes new` and `lbar keys`."""

from pathlib import Path

import pytest
from outcomes import refused

from system.__main__ import main
from system.recipe.data import input_paths
from system.recipe.load import load_recipe


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main([*argv]) == 0
    return capsys.readouterr().out


def test_every_shipped_recipe_is_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "recipes").splitlines()
    names = {line.split()[0] for line in lines}
    shipped = {path for path in (root / "recipes").rglob("*.yaml") if not path.name.endswith(".study.yaml")}
    assert {root / "recipes" / f"{name}.yaml" for name in names} == shipped
    assert all(len(line.split()) > 3 for line in lines)


def test_make_commands_of_all_shipped_recipes_are_those_of_lbar_data(root: Path) -> None:
    commands = set()
    for path in (root / "recipes").rglob("*.yaml"):
        if not path.name.endswith(".study.yaml"):
            sources = load_recipe(path).recipe.data.values()
            commands |= {(source.make, Path(source.manifest)) for source in sources if source.make}
    assert len(commands) > 10
    for command in commands:
        input_paths(*command)  # an error for what lbar data refuses


def test_recipe_is_copied_under_a_new_name_and_no_file_is_overwritten(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = printed(capsys, "recipes", "new", "mine")
    assert "lbar check mine.yaml" in said
    mine, clotho = load_recipe("mine.yaml").recipe, load_recipe(root / "recipes/clotho.yaml").recipe
    assert mine == clotho.model_copy(update={"name": "mine"})
    text = Path("mine.yaml").read_text()
    assert "lbar run mine.yaml" in text
    assert "recipes/clotho.yaml" not in text
    assert "exists" in refused(capsys, "recipes", "new", "mine")
    assert Path("mine.yaml").read_text() == text
    printed(capsys, "recipes", "new", "easy", "--from", "honest")
    assert load_recipe("easy.yaml").recipe.name == "easy", "the last part of a name is enough"
    assert "baseline2022" in refused(capsys, "recipes", "new", "b", "--from", "x")
    assert "small" in refused(capsys, "recipes", "new", "b", "--from", "small"), "several have this name"
    assert "letters" in refused(capsys, "recipes", "new", "../b")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", "stages: "),
        ("stages.optimizer", "lr: "),
        ("stages.finetune.optimizer.lr", "lr: "),
        ("stages.losses.0.same_clip", "same_clip: "),
        ("model.audio.experts.NAME.weights", "weights: "),
        ("rank.evaluation.edition", "edition: "),
    ],
)
def test_settings_are_printed_with_their_comments(path: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "keys", path)
    assert [one for one in text.splitlines() if one.strip().startswith(line)]
    assert "def " not in text


def test_unknown_key_is_refused_with_a_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "stages" in refused(capsys, "keys", "stagse.optimizer")
    assert "optimizer" in refused(capsys, "keys", "stages.finetune.optimiser")
    assert "optimizer" in refused(capsys, "keys", "stages.optimiser")
    assert "rank" in refused(capsys, "keys", "xyzzy.1.2")
