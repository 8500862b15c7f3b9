"""Output of the reporting verbs with --json: one document that follows the published schema."""

import json
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from data_tools.scenes.ceiling import LABEL_COLUMNS
from desk import make_desk
from jsonschema import Draft202012Validator
from schemas import REPORTS, published, schema

from data_tools.tables import write_table
from system.recipe.load import read_document

CASES = [
    ("data_tools ceiling scenes", 0),
    ("system check recipe.yaml", 0),
    ("system check typo.yaml", 1),
    ("system check no_manifest.yaml", 1),
    ("system check two.study.yaml", 0),
    ("system experts", 0),
    ("system experts recipe.yaml", 0),
    ("system recipes list", 0),
    ("system relevance captions.csv --figure x.svg", 0),
    ("system runs .", 0),
    ('system search run audio "a deep tone" "a shrill hum"', 0),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, world: Path, unbroken: Path) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    make_desk(folder, world, unbroken)
    (folder / "scenes").mkdir()
    labels = [["a.wav", "evaluation", "one", "dog"], ["b.wav", "evaluation", "one", "cat"]]
    write_table(folder / "scenes/labels.csv", LABEL_COLUMNS, labels)
    lines = (folder / "manifest.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    gone = json.dumps(first | {"id": "gone", "path": "/nowhere.wav"})
    (folder / "broken_manifest.jsonl").write_text("\n".join([*lines, lines[0], gone]) + "\n")
    tested = json.dumps(first | {"id": "again", "split": "evaluation"})
    (folder / "leaking.jsonl").write_text("\n".join([lines[0], tested]) + "\n")
    return folder


def document(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    capsys.readouterr()
    floor, *arguments = command
    status = import_module(f"{floor}.__main__").main(arguments)
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("command", "expected"), CASES, ids=[command for command, _ in CASES])
def test_json_reports_follow_their_published_schema(
    command: str, expected: int, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    words = shlex.split(command)
    status, found = document([*words, "--json"], capsys)
    assert status == expected
    described = json.loads(published(*words[:2]).read_text())
    Draft202012Validator.check_schema(described)
    Draft202012Validator(described).validate(found)
    if "ok" in found:
        assert found["ok"] == (status == 0)


def test_json_reports_have_the_values_that_the_verbs_print(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    _, bad = document(["system", "check", "typo.yaml", "--json"], capsys)
    assert "typo.yaml:" in bad["mistakes"][0]
    assert "batchsize" in bad["mistakes"][0]


def test_every_json_report_has_a_published_schema(root: Path) -> None:
    """Written again by: PYTHONPATH=. python tests/helpers/schemas.py"""
    with_json = set()
    for floor in ("data_tools", "system"):
        for verb, entry in import_module(f"{floor}.__main__").VERBS.items():
            module = import_module(f"{floor}.{entry.module}")
            if "add_json(" in Path(str(module.__file__)).read_text():
                with_json.add((floor, verb))
    assert with_json == REPORTS.keys()
    for floor, verb in REPORTS:
        assert json.loads(published(floor, verb).read_text()) == schema(floor, verb)
    files = {path for floor in ("data_tools", "system") for path in (root / floor / "schemas").iterdir()}
    assert files == {published(*key) for key in REPORTS}


def test_shipped_recipes_follow_the_recipe_schema(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, of_recipes = document(["system", "recipes", "keys", "--json"], capsys)
    validator = Draft202012Validator(of_recipes)
    for path in sorted((root / "recipes").rglob("*.yaml")):
        if not path.name.endswith(".study.yaml"):
            _, content = read_document(path, "recipe")
            validator.validate(json.loads(json.dumps(content.value)))
    with pytest.raises(Exception, match="batchsize"):
        validator.validate({**content.value, "batchsize": 3})
