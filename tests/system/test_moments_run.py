"""A run that learns when a sentence is heard, from the manifest to the challenge's file."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_moments
from threads import one_thread  # noqa: F401  a fixture
from tiny_moments import SECONDS, short_fits  # noqa: F401  a fixture

from data_tools.errors import KitError
from data_tools.manifest import read_manifest, write_manifest
from data_tools.moments import write_moments
from submission.__main__ import main as submission
from submission.editions import MOMENTS, get_moments_edition
from submission.formats.moments import Answer, MomentQuery, MomentTruth
from submission.metrics.moments import score_moments
from submission.metrics.summary import metric_values
from submission.runs.entry import open_entry
from submission.runs.record import read_frame_scores, read_result
from system.__main__ import main
from system.experiments.moments import metrics_of_new_texts, metrics_of_random_windows
from system.experiments.summary import report
from system.moments.windows import Decoding
from system.ranking.windows import find_windows, score_recordings
from system.recipe.data import load_data
from system.retriever import load_model
from system.runs.folder import Run
from system.runs.open import open_trained
from system.training.validation import MomentValidation

pytestmark = pytest.mark.usefixtures("one_thread", "short_fits")


@pytest.fixture(scope="module")
def manifest(moments_manifest):
    return moments_manifest


@pytest.fixture(scope="module")
def run(moments_run):
    return moments_run


def test_moment_run_finds_tones_and_opens_with_its_queries_and_windows(run):
    found = read_result(run).moments
    assert found["overlap"].figures["R1@0.7"] > 0.6
    assert found["overlap"].random["R1@0.7"] < 0.1
    assert found["overlap"].ceiling["R1@0.7"] == 1.0
    assert (found["overlap"].new_texts, found["overlap"].figures_of_new_texts) == (0, None)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["validation"].keys() == {"loss", "R1@0.5", "R1@0.7", "mAP"}
    assert lines[-1]["loss"] < lines[0]["loss"] / 4
    opened = open_entry(f"{run}:thresholds")
    assert opened.ranked == read_result(run).moments["thresholds"]
    assert [answer.qid for answer in opened.answers] == list(opened.truth.queries)
    assert all(len(window) == 3 for answer in opened.answers for window in answer.windows)
    assert open_entry(str(run)).name == "overlap"
    with pytest.raises(KitError, match="choose"):
        open_entry(f"{run}:other")


def test_report_warns_of_windows_that_are_not_surely_better_than_random_ones(run, tmp_path):
    copied = Run(Path(shutil.copytree(run, tmp_path / "run")))
    content = json.loads(copied.result.read_text())
    content["moments"]["overlap"] |= {"random": content["moments"]["overlap"]["figures"]}
    copied.result.write_text(json.dumps(content))
    assert all(f"BEWARE     {metric} " in report(copied) for metric in content["moments"]["overlap"]["figures"])


def test_validation_windows_match_those_of_the_rank_entry(run):
    trained, expected = open_trained(run), read_result(run).moments
    data, stage = load_data(trained.recipe), trained.recipe.stages["only"]
    watched = data.items("evaluation", "moment")
    clips, moments = data.readable_clips("evaluation"), data.moments["evaluation"]
    series = score_recordings(trained.model, clips, moments, data.features)

    def found(**monitor: Any) -> dict[str, float]:
        changed = stage.model_copy(update={"monitor": stage.monitor.model_copy(update=monitor)})
        return MomentValidation(watched, changed, data.features)(trained.model)[0]

    values = {"overlap": found(), "thresholds": found(windows="thresholds")}
    for name, each in values.items():
        figures = expected[name].figures
        assert each == {"loss": each["loss"]} | {
            name: pytest.approx(figures[name], abs=1e-9) for name in each.keys() - {"loss"}
        }
    by_overlap = find_windows([(trained.model.moments, series)], Decoding())
    predictions = {str(n): [list(window) for window in one.windows] for n, one in enumerate(by_overlap)}
    truth = {str(n): [list(window) for window in one.windows or []] for n, one in enumerate(data.moments["evaluation"])}
    expected_map = metric_values(score_moments(predictions, truth), get_moments_edition().metrics)["mAP"]
    assert found(windows="overlap")["mAP"] == pytest.approx(expected_map, abs=1e-9)
    assert values["overlap"]["mAP"] != values["thresholds"]["mAP"]
    whole = found(decoding=Decoding(round_to=tiny_moments.SECONDS))
    assert whole["R1@0.5"] == 0, "no window is as long as the recording"


def test_files_of_a_moment_run_pass_check_and_give_the_metrics_of_the_run(run, capsys):
    entry = read_result(run).moments["overlap"]
    files = {kind: str(Run(run).file(kind, "overlap")) for kind in ("answers", "windows", "truth")}
    assert submission(["check", files["answers"], "--truth", files["truth"]]) == 0
    for file in (files["answers"], files["windows"]):
        capsys.readouterr()
        assert submission(["score", file, "--truth", files["truth"], "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        for metric, value in entry.figures.items():
            assert said["values"][metric] == pytest.approx(value, abs=1e-12)
    first = json.loads(Path(files["answers"]).read_text().splitlines()[0])
    assert first["vid"] == "evaluation_000"
    assert all(0 <= start < end <= tiny_moments.SECONDS for start, end in first["pred_relevant_windows"])


def test_moment_run_writes_the_probabilities_of_frames(run):
    """A frame is in a moment as often as the windows around it say: highest where the first window is."""
    for name in ("overlap", "thresholds"):
        frames = read_frame_scores(Run(run).file("frames", name))
        lines = [json.loads(line) for line in Run(run).file("windows", name).read_text().splitlines()]
        assert list(frames) == [line["qid"] for line in lines]
        for line in lines:
            edges, values = frames[line["qid"]]
            assert len(edges) == len(values) + 1 == 82
            assert edges[0] == 0.0
            assert edges[-1] == pytest.approx(tiny_moments.SECONDS)
            assert ((values >= 0) & (values <= 1)).all()
            start, end, _ = line["pred_relevant_windows"][0]
            inside = (edges[:-1] >= start - 1e-3) & (edges[1:] <= end + 1e-3)
            assert values[inside].mean() > values[~inside].mean()


def test_run_with_changed_moments_files_is_refused(manifest, run, tmp_path, capsys):
    moments, out = tmp_path / "moments.jsonl", tmp_path / "run"
    write_manifest(tmp_path / "manifest.jsonl", read_manifest(manifest))
    shutil.copy(manifest.parent / "moments.jsonl", moments)
    made = tiny_moments.recipe(tmp_path / "manifest.jsonl", run.parent, epochs=1, steps_per_epoch=2)
    made["rank"].pop("overlap")
    command = ["run", str(tiny.write_recipe(tmp_path / "r.yaml", made)), "--out", str(out)]
    assert main(command) == 0
    before = moments.read_text()
    moments.write_text("".join(before.splitlines(keepends=True)[:-1]))
    assert main(command) == 1
    assert "start" in capsys.readouterr().err
    (out / "result.json").unlink()
    assert main(command) == 1
    assert re.search(r"jsonl.* changed since this run began", capsys.readouterr().err)
    moments.write_text(before)
    assert main(command) == 0


def test_plan_reports_the_number_of_moments(manifest, tmp_path, capsys):
    path, made = tmp_path / "r.yaml", tiny_moments.recipe(manifest, tmp_path)
    assert main(["check", str(tiny.write_recipe(path, made))]) == 0
    said = capsys.readouterr().out
    assert re.search(r"  data validation .* 4 clips, 8 captions, .*, 8 moments\n", said)
    assert "42 updates of 8 moments from train" in said
    bare = tmp_path / "bare.jsonl"  # CASTELLA's clips have no captions
    write_manifest(bare, [replace(clip, captions=[]) for clip in read_manifest(manifest)])
    made["data"] |= {name: source | {"manifest": str(bare)} for name, source in made["data"].items()}
    assert main(["check", str(tiny.write_recipe(path, made))]) == 0
    assert "MISTAKE" not in capsys.readouterr().out
    made["data"]["train"]["moments"] = str(tmp_path / "gone.jsonl")
    assert main(["check", str(tiny.write_recipe(path, made))]) == 1
    assert re.search(r"MISSING  .*gone.jsonl: make this file", capsys.readouterr().out)


def test_moment_ranking_errors_are_reported_before_training(manifest, tmp_path, monkeypatch, capsys):
    moments, clips = tiny_moments.moments_of(manifest), read_manifest(manifest)
    blind = [replace(one, windows=None) for one in moments]
    files = {
        "some": [*(one for one in moments if "/evaluation/" in one.clip)][:-1] + blind[-1:],
        "blind": blind,
        "late": [replace(one, windows=[(SECONDS, 99.0)]) for one in moments],
    }
    for name, content in files.items():
        write_moments(tmp_path / f"{name}.jsonl", content, clips)

    def said(source: str, file: str, fit: str | None = None, watched: str = "validation") -> str:
        made = tiny_moments.recipe(manifest, tmp_path)
        made["data"]["extra"] = made["data"]["validation"] | {"moments": str(tmp_path / "blind.jsonl")}
        made["data"][source]["moments"] = str(tmp_path / f"{file}.jsonl")
        made["rank"] = {"overlap": made["rank"]["overlap"] | {"fit": fit}}
        made["stages"]["later"] = made["stages"]["only"] | {
            "monitor": {"data": [watched], "metrics": ["loss"], "keep": 1}
        }
        path = tiny.write_recipe(tmp_path / "r.yaml", made)
        assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 1
        assert not list(tmp_path.rglob("*.pt")), "it is trained first"
        return capsys.readouterr().err

    assert "with and without windows" in said("evaluation", "some")
    assert "validation" in said("extra", "blind", watched="extra")
    assert "has no windows" in said("extra", "blind", fit="extra")
    assert "recording" in said("extra", "late", fit="extra")
    monkeypatch.setattr("system.ranking.windows.MAX_FRAMES", 70)
    assert "_000.wav has 81 frames, but the limit is 70" in said("extra", "blind")
    assert main(["run", "--until=training", str(tmp_path / "r.yaml"), "--out", str(tmp_path / "run")]) == 1
    assert "81 frames" in capsys.readouterr().err


def test_metrics_of_random_windows_match_expected_values():
    """A recording of two frames is true as a whole; each of its three windows comes first equally often."""
    truth = MomentTruth({"q": MomentQuery(1, "q", "?", "v", 2.0, [[0, 2]])}, "truth.jsonl")
    found = metrics_of_random_windows(truth, MOMENTS["2026"], {"q": np.array([0.0, 1.0, 2.0])})
    assert found["R1@0.7"] == pytest.approx(1 / 3, abs=0.2)
    assert found["mAP@0.75"] > found["R1@0.7"] + 0.05, "a later window may be the right one"


def test_moment_metrics_over_queries_with_texts_unseen_in_training_match_hand_values():
    queries = {str(n): MomentQuery(n, str(n), text, "v", 60.0, [[0, 10]]) for n, text in enumerate("abc")}
    truth, edition = MomentTruth(queries, "t.jsonl"), MOMENTS["2026"]
    windows = [[20, 30, 1.0], [0, 10, 1.0], [20, 30, 1.0]]
    pairs = zip(queries.values(), windows, strict=True)
    answers = [Answer(query.line, query.qid, query.query, query.vid, [window]) for query, window in pairs]
    found = metrics_of_new_texts(answers, truth, edition, {"a", "other"})
    assert found["new_texts"] == 2
    assert found["figures_of_new_texts"] == pytest.approx(dict.fromkeys(edition.metrics, 0.5))
    nothing = {"new_texts": 0, "figures_of_new_texts": None}
    assert metrics_of_new_texts(answers, truth, edition, set("abc")) == nothing


@pytest.mark.slow
def test_fitted_parameters_are_stored_in_run_and_export_and_used_without_option_fit(manifest, tmp_path, caplog):
    made = tiny_moments.recipe(manifest, tmp_path, unit="clip", captions_per_clip=1, epochs=2)
    made["stages"]["only"]["losses"] = [{"kind": "nt_xent", "weight": 1, "temperature": 1.0, "same_clip": "masked"}]
    made["stages"]["only"]["monitor"]["metrics"] = ["loss"]
    plain = made["rank"]["overlap"]
    known = [one for one in tiny_moments.moments_of(manifest) if "/validation/" in one.clip]
    behind = [replace(one, id=f"{one.id}_behind", windows=[(SECONDS, SECONDS + 1)]) for one in known]
    write_moments(tmp_path / "more.jsonl", [*known, *behind], read_manifest(manifest))
    made["data"]["more"] = made["data"]["validation"] | {"moments": str(tmp_path / "more.jsonl")}
    fits = {"fitted": "validation", "plain": None, "fitted_to_more": "more", "plain_again": None}
    made["rank"] = {name: plain | {"fit": fit} for name, fit in fits.items()}
    run, path = tmp_path / "run", tiny.write_recipe(tmp_path / "r.yaml", made)
    assert main(["run", str(path), "--out", str(run)]) == 0
    found = read_result(run).moments
    assert found["fitted"].figures != found["plain"].figures
    assert found["plain_again"].figures == found["plain"].figures
    assert found["fitted"].fitted is not None
    assert found["fitted_to_more"].fitted == found["fitted"].fitted, "not to windows after the end"
    trained = open_trained(run).model.moments.trained_numbers()
    fitted = {name: value for name, value in found["fitted"].fitted if value is not None}
    windows = load_model(run).windows
    assert windows.score.trained_numbers() == pytest.approx(fitted, rel=1e-6)
    assert trained != pytest.approx(fitted, rel=1e-3), "clips: as trained"
    assert main(["export", str(run), "--out", str(tmp_path / "exported")]) == 0
    asked = [str(manifest), str(manifest.parent / "moments.jsonl"), "--split", "evaluation"]
    expected, out = (run / "scores/fitted.windows.jsonl").read_bytes(), tmp_path / "w.jsonl"
    for model in (run, tmp_path / "exported"):
        for fit in ([], ["--fit", "validation"]):  # a fit begins with the trained values, whatever was fitted before
            command = ["locate", str(model), *asked, "--cache", str(tmp_path / "cache"), *fit, "--out", str(out)]
            assert main(command) == 0
            assert out.read_bytes() == expected
        assert open_trained(model).model.moments.trained_numbers() == pytest.approx(trained, rel=1e-6)
    load_model(run, cache=tmp_path / "cache").search("a deep tone sounds", manifest)
    assert "the opened model is not" not in caplog.text
    other = ["locate", str(run), *asked, "--set", "rank.fitted.checkpoint=loss", "--out", str(out)]
    assert main(other) == 0
    assert out.read_bytes() != expected
    caplog.clear()
    (run / "result.json").unlink()
    load_model(run, cache=tmp_path / "cache").search("a deep tone sounds", manifest)
    assert "the opened model is not" in caplog.text


@pytest.mark.slow
def test_study_of_a_moment_recipe_writes_a_table_of_moment_metrics(manifest, tmp_path):
    made = tiny_moments.recipe(manifest, tmp_path, epochs=1)
    made["rank"]["blind"] = made["rank"].pop("thresholds") | {"data": "blind"}
    made["data"]["blind"] = made["data"]["evaluation"] | {"moments": str(tmp_path / "blind.jsonl")}
    blind = [replace(one, windows=None) for one in tiny_moments.moments_of(manifest)]
    write_moments(tmp_path / "blind.jsonl", blind, read_manifest(manifest))
    tiny.write_recipe(tmp_path / "r.yaml", made)
    columns = ["R1@0.5", "R1@0.7", "R1@0.7 under 2 s", "R1@0.7 new texts"]
    study = {"name": "small", "recipe": "r.yaml", "seeds": [1, 2], "columns": columns, "unit": "percent"}
    study["cells"] = {"a": {}, "b": {"rank.overlap.windows": "thresholds"}}
    path = tiny.write_recipe(tmp_path / "s.study.yaml", study)
    assert main(["run", str(path), "--runs", str(tmp_path / "runs")]) == 0
    header, _, *rows = (tmp_path / "runs/small/table.md").read_text().splitlines()
    assert [row.split()[3] for row in rows if row.startswith("|")] == ["overlap", "overlap"], "blind has no figures"
    row = dict(
        zip(*([cell.strip(" *") for cell in line.strip("|").split("|")] for line in (header, rows[0])), strict=True)
    )
    figures = [read_result(tmp_path / f"runs/small/a_s{seed}").moments["overlap"].figures for seed in (1, 2)]
    values = [100 * one["R1@0.7"] for one in figures if one]
    assert row["R1@0.7"].startswith(f"{np.mean(values):.1f} ±")
    assert row["R1@0.7 under 2 s"] == row["R1@0.7"], "all moments are shorter than 2 s"
    assert row["R1@0.7 new texts"] == "", "there is no text without training"
    assert row["true frames R1@0.7"] == "100.0"
