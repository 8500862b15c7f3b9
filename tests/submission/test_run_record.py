"""The record of a run: files match their models; files of other releases are read or refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from outcomes import refused, rewrite

from data_tools.errors import DataError
from submission.__main__ import main as submission
from submission.runs.finished import open_finished
from submission.runs.reading import read_metrics, read_provenance, read_result
from submission.runs.recipe import ResolvedRecipe
from submission.runs.record import FORMAT, EpochLine, ModelFacts
from system.recipe.load import load_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))


def test_result_json_and_provenance_json_match_their_schema_classes_exactly(unbroken: Path) -> None:
    result, noted = read_result(unbroken), read_provenance(unbroken)
    assert result.format == FORMAT
    for path, record in (("result.json", result), ("provenance.json", noted)):
        written = json.loads((unbroken / path).read_text())
        assert record.document() == written
        assert not record.model_extra, path
    parts = [result.parameters, *result.experts.values(), *result.data.values()]
    parts += [part for source in result.data.values() for part in source.sets.values()]
    assert not any(part.model_extra for part in parts)
    (ranked,) = result.rank.values()
    assert set(ranked.figures) == set(ranked.model_extra or ()) == {"R@1", "R@5", "R@10", "mAP@10"}


def test_metrics_lines_survive_a_round_trip(unbroken: Path) -> None:
    """A resumed run compares the lines of its checkpoints with the file's, byte by byte."""
    path = unbroken / "metrics.jsonl"
    lines = read_metrics(path, "")
    assert "".join(json.dumps(line.document()) + "\n" for line in lines) == path.read_text()
    assert not any(line.model_extra for line in lines)
    assert lines[0].value("loss") == lines[0].loss
    assert lines[0].value("validation.mAP@10") == lines[0].validation["mAP@10"]
    assert lines[0].value("violations_relaxed") is None
    assert lines[0].value("validation.nothing") is None


def test_unknown_figures_in_metrics_jsonl_are_kept() -> None:
    line = EpochLine.model_validate({"stage": "a", "epoch": 1, "seconds": 1, "entropy": 0.5})
    assert line.value("entropy") == 0.5
    assert line.document() == {"stage": "a", "epoch": 1, "seconds": 1.0, "entropy": 0.5}


def test_result_json_of_a_later_format_is_refused(
    unbroken: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    rewrite(run / "result.json", format=FORMAT + 1, rank={"evaluation": "elsewhere"}, parameters=None)
    sentence = f"error: {run}/result.json has format {FORMAT + 1}, but this release only reads formats up to {FORMAT}"
    assert refused(capsys, "run", recipe, "--out", run).startswith(sentence)
    pack = ["pack", str(run), "--about", str(tmp_path / "about.yaml"), "--out", str(tmp_path / "a.zip")]
    for arguments in (["report", str(run)], pack):
        assert submission(arguments) == 1
        errors = capsys.readouterr().err
        assert errors.startswith(sentence)
        assert errors.count("\n") == 1


def test_text_in_place_of_a_number_in_a_run_file_is_refused(
    unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    rewrite(run / "result.json", seed="3")
    assert submission(["report", str(run)]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {run}/result.json is damaged (seed: ")
    assert errors.count("\n") == 1


def test_run_with_an_edited_resolved_json_is_refused_as_damaged(unbroken: Path, tmp_path: Path) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    open_finished(str(run))
    resolved = run / "resolved.json"
    text = resolved.read_text()
    assert text.count('"seed": 3') == 1
    resolved.write_text(text.replace('"seed": 3', '"seed": 4'))
    with pytest.raises(DataError, match=r"resolved\.json is damaged"):
        open_finished(str(run))


def test_metadata_of_a_score_matrix_name_the_run_folder_of_the_model() -> None:
    written: dict[str, Any] = {"recipe": "r", "from": "folder", "checkpoint": "last", "experts": {}, "text": None}
    facts = ModelFacts(recipe="r", run="folder", checkpoint="last", experts={}, text=None)
    assert facts.document() == written
    assert ModelFacts.model_validate(written) == facts


@pytest.mark.parametrize("path", [path for path in RECIPES if "study" not in path.name], ids=lambda path: path.stem)
def test_every_shipped_recipe_can_be_read_as_the_recipe_of_a_run(path: Path) -> None:
    resolved = json.loads(load_recipe(path).resolved())
    found = ResolvedRecipe.model_validate(resolved)
    assert list(found.stages) == list(resolved["stages"])
    for name, stage in found.stages.items():
        assert [term.document() for term in stage.losses] == resolved["stages"][name]["losses"]
        assert [list(term.document()) for term in stage.losses] == [list(t) for t in resolved["stages"][name]["losses"]]
