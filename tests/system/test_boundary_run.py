"""A run with boundaries by frames and sentence, from training to the page."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_moments
import torch
from several import together
from threads import one_thread  # noqa: F401  a fixture
from trainings import lines, weights

from data_tools.manifest import read_manifest
from submission.runs.record import RunResult
from system.__main__ import main
from system.check.check import Found, trainable_parameters
from system.models.scores import Moments
from system.retriever import list_clips, load_model
from system.runs.open import open_trained
from system.serve.server import Search

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


def boundary_recipe(manifest: Path, folder: Path) -> Path:
    decoding = {"heard": 0.99, "mean_edges": True}
    made = tiny_moments.recipe(manifest, folder, epochs=2, steps_per_epoch=12)
    made["model"]["score"] = {"kind": "boundary_moments"}
    made["stages"]["only"]["monitor"] |= {"windows": "overlap", "decoding": decoding}
    made["rank"] = {"heard": made["rank"]["overlap"] | {"windows": "overlap", "decoding": decoding}}
    return tiny.write_recipe(folder / "r.yaml", made)


def answers(path: Path) -> dict[str, np.ndarray]:
    """Windows (W, 3) by query id, with their scores."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["qid"]: np.array(line["pred_relevant_windows"]) for line in lines}


@pytest.fixture(scope="module")
def run(moments_manifest, tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("boundaries")
    assert main(["run", str(boundary_recipe(moments_manifest, folder)), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_all_weights_of_a_boundary_model_are_trained_and_counted(run, tmp_path):
    score = open_trained(run).model.moments
    start = {"scale": 10.0, "offset": -3.0, "enter": -2.0, "leave": -2.0, "rate": 1.0}
    assert score.trained_numbers().keys() == start.keys()
    assert all(abs(value - start[name]) > 1e-4 for name, value in score.trained_numbers().items())
    # 2 x D inputs and outputs, with a bias; single numbers are not counted, as in other scores.
    recipe = open_trained(run).recipe
    counted = RunResult.model_validate_json((run / "result.json").read_text()).parameters
    width = 2 * recipe.model.text.dim
    assert counted.trained["score"] == width * (width + 1)
    clip = read_manifest(Path(recipe.data["train"].manifest))[0]
    data = {name: Found([clip] if name == "train" else []) for name in recipe.data}
    assert trainable_parameters(recipe, data)["score"] == counted.trained["score"]
    plain = recipe.model_copy(update={"model": recipe.model.model_copy(update={"score": Moments(kind="moments")})})
    assert "score" not in trainable_parameters(plain, data)


def test_windows_of_a_boundary_model_are_found_by_its_run_its_export_and_the_page(run, moments_manifest, tmp_path):
    asked = [str(moments_manifest), str(moments_manifest.parent / "moments.jsonl")]
    asked += ["--split", "evaluation", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "w.jsonl")]
    expected = (run / "scores" / "heard.windows.jsonl").read_bytes()
    assert main(["export", str(run), "--out", str(tmp_path / "exported")]) == 0
    for model, more, equal in ((run, [], True), (tmp_path / "exported", [], True), (run, ["heard=null"], False)):
        assert main(["locate", str(model), *asked, *(["--decode", *more] if more else [])]) == 0
        assert ((tmp_path / "w.jsonl").read_bytes() == expected) == equal
    model = load_model(run, cache=tmp_path / "page")
    pool = model.open(list_clips(moments_manifest, "evaluation"))
    search = Search(model, pool, moments_manifest)
    names = {clip.id: clip.file_name for clip in read_manifest(moments_manifest)}
    moments = {one.id: one for one in tiny_moments.moments_of(moments_manifest)}
    for qid, windows in answers(run / "scores/heard.windows.jsonl").items():
        found = search.find(moments[qid].text, len(pool.clips))
        (hit,) = [hit for hit in found or [] if pool.clips[hit.row].file_name == names[moments[qid].clip]]
        assert np.abs(np.array(hit.located.windows) - windows).max() < 2e-4


def test_boundary_training_with_two_processes_matches_one_process(run, moments_manifest, tmp_path):
    """Equal to rounding. Losses above 100 let it grow from step to step, with constant transitions as well."""
    done = together(2, [["run", boundary_recipe(moments_manifest, tmp_path), "--out", tmp_path / "two"]], tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = (lines(folder) for folder in (run, tmp_path / "two"))
    assert [one["loss"] for one in after] == pytest.approx([one["loss"] for one in before], rel=1e-5)
    expected, found = (weights(folder, "only") for folder in (run, tmp_path / "two"))
    assert (found - expected).norm() <= 1e-4 * expected.norm()
    one, two = (answers(folder / "scores" / "heard.windows.jsonl") for folder in (run, tmp_path / "two"))
    assert max(np.abs(two[qid][0] - windows[0]).max() for qid, windows in one.items()) < 1e-3
