"""The reference of a recipe's keys, the shipped recipes, and a copy to begin with."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from outcomes import refused

from system.__main__ import main
from system.recipe.load import load_recipe
from system.recipe.reference import Key, _yaml, at_path, sections


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main(["recipes", *argv]) == 0
    return capsys.readouterr().out


def keys_of(path: str) -> dict[str, Key]:
    return {key.name: key for section in at_path(sections(), path) for key in section.keys}


def test_printed_recipe_keys_have_their_values_and_ranges_and_defaults() -> None:
    optimizer = keys_of("stages.NAME.optimizer")["lr"]
    assert (optimizer.values, optimizer.default) == ("number, above 0, to 1", None)
    stage = keys_of("stages")
    assert stage["unit"].values == "clip, pair, moment"
    assert stage["captions_per_clip"].values == "whole number, from 1, to 1,000,000 or all or null"
    assert stage["captions_per_clip"].default == "null"
    assert stage["losses"].values.startswith("list of settings of a kind: matching, ranking, ")
    assert keys_of("stages.losses.same_clip")["same_clip"].default == "masked"
    assert keys_of("seed")["seed"].values == "whole number, from 0, below 2,147,483,648"
    assert keys_of("rank")["csv"].values == "true or false"
    assert [_yaml(value) for value in (None, True, 1, 0, 1.0, "all", [1])] == [
        "null",
        "true",
        "1",
        "0",
        "1.0",
        "all",
        "[1]",
    ]


def keys_in(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Dotted keys of a document, names and positions left out as the reference has them."""
    named = {("data",), ("stages",), ("teachers",), ("rank",), ("model", "audio", "experts")}
    named |= {("stages", "optimizer", part) for part in ("lr_by_part", "frozen_start")}
    found = set()
    if isinstance(value, list):
        return set().union(*(keys_in(item, path) for item in value))
    if isinstance(value, dict):
        for name, inner in value.items():
            below = path if tuple(part for part in path if part) in named else (*path, name)
            found |= {below} | keys_in(inner, below) if below != path else keys_in(inner, (*path, ""))
    return found


def test_reference_has_every_key_of_shipped_recipes(root: Path) -> None:
    known = {section.path for section in sections()}
    known |= {f"{section.path}.{key.name}".lstrip(".") for section in sections() for key in section.keys}
    plain = {tuple(part for part in path.split(".") if part not in ("NAME", "N")) for path in known}
    checked = 0
    for path in sorted((root / "recipes").rglob("*.yaml")):
        if path.name.endswith(".study.yaml"):
            continue
        for key in keys_in(yaml.safe_load(path.read_text())):
            key = tuple(part for part in key if part)
            checked += 1
            assert key[-1] == "kind" or key in plain, (path, key)
    assert checked > 500


def test_unknown_key_path_is_refused_with_similar_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert "such" in refused(capsys, "recipes", "keys", "stages.optimiser")
    assert "print" in refused(capsys, "recipes", "keys", "xyzzy.1.2")


@pytest.mark.parametrize(
    ("of_a_recipe", "plain"),
    [
        ("stages.train.optimizer", "stages.optimizer"),  # `train` is also a key of every stage
        ("stages.finetune.optimizer.lr", "stages.optimizer.lr"),
        ("stages.train.losses.0.weight", "stages.losses.weight"),
        ("stages.finetune.train", "stages.train"),
        ("data.evaluation.split", "data.split"),
        ("model.audio.experts.panns.weights", "model.audio.experts.weights"),
    ],
)
def test_explanation_of_a_key_ignores_names_chosen_by_the_recipe_in_the_key_path(
    capsys: pytest.CaptureFixture[str], of_a_recipe: str, plain: str
) -> None:
    assert printed(capsys, "keys", of_a_recipe) == printed(capsys, "keys", plain)


def test_recipe_reference_lists_the_same_keys_as_text_and_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    text, page = printed(capsys, "keys"), printed(capsys, "keys", "--markdown")
    for section in sections():
        for key in section.keys:
            assert key.name in text
            assert f"| {key.name} | {key.values} |" in page


def test_every_key_and_kind_has_a_description() -> None:
    for section in sections():
        assert all(len(key.meaning) > 1 for key in section.keys), section
    assert keys_of("stages.optimizer")["lr"].meaning == "learning rate", "the comment after the key"
    assert keys_of("stages.losses.same_clip")["same_clip"].meaning.startswith(
        "other items of the batch with the same audio"
    )
    assert keys_of("model.audio.experts.weights")["weights"].meaning, "of a base class"


def test_keys_md_matches_the_printed_reference(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (root / "recipes/KEYS.md").read_text() == printed(capsys, "keys", "--markdown")


def test_recipes_list_has_every_shipped_recipe(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "list").splitlines()
    names = [line.split()[0] for line in lines]
    assert "clotho" in names
    assert "take_it_easy/honest" in names
    assert all((root / "recipes" / f"{name}.yaml").is_file() for name in names)
    assert all(len(line.split()) > 3 for line in lines)


def test_command_recipes_new_copies_a_shipped_recipe_and_refuses_to_overwrite_a_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = printed(capsys, "new", "mine")
    assert said.endswith("; next: lbar download mine.yaml, then lbar check mine.yaml\n")
    assert said in (root / "README.md").read_text()
    said = printed(capsys, "new", "tones", "--from", "quickstart")
    assert said.endswith("; next: lbar check tones.yaml\n"), "there is nothing to download"
    mine, clotho = load_recipe("mine.yaml").recipe, load_recipe(root / "recipes/clotho.yaml").recipe
    assert mine == clotho.model_copy(update={"name": "mine"})
    text = Path("mine.yaml").read_text()
    assert "lbar run mine.yaml" in text
    assert "recipes/clotho.yaml" not in text
    assert "already exists" in refused(capsys, "recipes", "new", "mine")
    assert Path("mine.yaml").read_text() == text
    said = "no such shipped recipe; choose one of aistat2025/beats, aistat2025/eat, aistat2025/passt, baseline2022"
    assert said in refused(capsys, "recipes", "new", "b", "--from", "x")
    assert "lower-case letters" in refused(capsys, "recipes", "new", "../b")
    printed(capsys, "new", "easy", "--from", "take_it_easy/honest")
    assert load_recipe("easy.yaml").recipe.name == "easy"
