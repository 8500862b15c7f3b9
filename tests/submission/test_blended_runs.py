"""Blends of finished runs as the folder of a run: scores by hand, validation that is found, verbs that read it."""

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_moments

from submission.__main__ import main
from submission.editions import get_edition
from submission.formats.frame_scores import FrameScores, read_frame_scores
from submission.formats.score_matrix import read_scores, write_scores
from submission.metrics.blend import search_weights
from submission.metrics.moments_blend import blend_moments, search_moment_weights
from submission.runs.blended import _mean_frames
from submission.runs.finished import open_finished, open_finished_moments
from submission.runs.merged import parts_of
from system.__main__ import main as system

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, a and b, of two seeds; only a has scores of the validation split."""
    folder = tmp_path_factory.mktemp("blended")
    world = tiny.make_world(folder / "tones", tiny.SIZES)
    (folder / "blind").mkdir()
    for path in sorted((folder / "tones/evaluation").glob("*"))[:11]:
        shutil.copy(path, folder / "blind" / path.name)
    (folder / "queries.csv").write_text("caption\nA deep tone sounds\nsomebody plays a shrill note\n")
    content = tiny.recipe(world, folder)
    entry = content["rank"]["evaluation"] | {"edition": 2025}
    blind = {"kind": "blind", "audio": str(folder / "blind"), "queries": str(folder / "queries.csv")}
    blind |= {key: entry[key] for key in ("stage", "checkpoint", "edition")}
    corrected = {"kind": "hub_corrected", "bank": ["train"], "validation": "validation", "edition": 2025, "csv": True}
    content["rank"] = {
        "evaluation": entry,
        "corrected": corrected | {"of": "evaluation"},
        "blind": blind,
        "blind_corrected": corrected | {"of": "blind"},
        "validation": entry | {"data": "validation", "csv": False},
    }
    path = tiny.write_recipe(folder / "r.yaml", content)
    assert system(["run", str(path), "--out", str(folder / "a")]) == 0
    del content["rank"]["validation"]
    tiny.write_recipe(path, content | {"seed": 4})
    assert system(["run", str(path), "--out", str(folder / "b")]) == 0
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the runs a and b, in the current folder."""
    for name in ("a", "b"):
        shutil.copytree(made / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_validation(capsys: pytest.CaptureFixture[str], *names: str) -> None:
    """Run the command that a blend without validation scores prints."""
    capsys.readouterr()
    assert main(["blend", *names, "--validation", "--out", "x"]) == 1
    (command,) = re.findall(r"without training, with: lbar (.+)", capsys.readouterr().err)
    assert system(shlex.split(command)) == 0


def test_blend_of_runs_is_the_weighted_mean_and_can_be_scored_and_compared_as_a_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blend", "a", "b", "--weights", "3", "1", "--out", "both"]) == 0
    printed = capsys.readouterr().out
    assert "  0.75  ../a:evaluation\n  0.25  ../b:evaluation\n" in printed
    assert "wrote both; score, compare, report and pack read it like a run" in printed
    assert "no blind set" not in printed
    for mine, theirs in (("evaluation", "evaluation"), ("blind", "blind")):
        first, second = (read_scores(Path(name, f"scores/{theirs}.npy")).values for name in "ab")
        assert np.allclose(read_scores(Path(f"both/scores/{mine}.npy")).values, 0.75 * first + 0.25 * second, atol=1e-6)
    result = json.loads(Path("both/result.json").read_text())
    each = [json.loads(Path(name, "result.json").read_text()) for name in "ab"]
    assert result["parameters"]["total"] == sum(one["parameters"]["total"] for one in each)
    assert result["data"]["train"]["trains"] == ["a/only"]
    assert result["data"]["b/train"]["trains"] == ["b/only"]
    assert [(one["run"], one["weight"]) for one in result["blend"]] == [("../a", 0.75), ("../b", 0.25)]
    for command in (["score", "both"], ["compare", "both", "a", "b"], ["report", "both", "--beside", "a"]):
        assert main([*command, "--edition", "2025"]) == 0, capsys.readouterr().err
    page = Path("both/report.html").read_text()
    assert "blend of 0.75 a:evaluation" in page
    assert "A blend is not compared with an untrained model." in page
    assert main(["blend", "a", "b", "--out", "both"]) == 1
    assert "already" in capsys.readouterr().err


def test_blend_weights_are_searched_on_the_validation_scores_of_the_runs(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_validation(capsys, "a", "b")
    capsys.readouterr()
    assert main(["blend", "a", "b", "--validation", "--out", "both"]) == 0
    printed = capsys.readouterr().out
    (name,) = [path.stem for path in Path("b/scores").glob("*_validation.npy")]
    matrices = {"a": read_scores(Path("a/scores/validation.npy")), "b": read_scores(Path(f"b/scores/{name}.npy"))}
    weights, best = search_weights(matrices, "raw", get_edition(2025))
    assert f"searched the weights on the validation split, where mAP@16 is {best:.4f}" in printed
    shown = [float(line.split()[0]) for line in printed.splitlines() if line.startswith("  ")]
    assert shown == pytest.approx([weight for weight in weights if weight], abs=0.005)
    assert main(["blend", "a", "b", "--validation", "--out", "both.npy"]) == 0
    assert main(["blend", "a", "b", "--validation", "a:validation", "b", "--out", "other"]) == 1
    assert "in common" in capsys.readouterr().err


def test_blend_of_hubness_corrected_entries_uses_hubness_corrected_validation_scores(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_validation(capsys, "a:corrected", "b:corrected")
    add_validation(capsys, "a:corrected", "b:corrected")
    assert main(["blend", "a:corrected", "b:corrected", "--validation", "--how", "standardised", "--out", "both"]) == 0
    assert open_finished("both").entry == "corrected"
    validation = [open_finished(f"{name}:corrected").validation for name in "ab"]
    assert [one.entry for one in validation if one] == ["corrected_validation"] * 2
    facts = [read_scores(one.folder / f"scores/{one.entry}.npy").facts for one in validation if one]
    tested = [read_scores(Path(name, "scores/corrected.npy")).facts for name in "ab"]
    assert [one["hub correction"]["correction"] for one in facts] == [
        one["hub correction"]["correction"] for one in tested
    ]


def test_blend_of_runs_is_packed_if_its_folder_is_given(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blend", "a", "b", "--out", "both"]) == 0
    assert main(["pack", "both", "--template", "about.yaml"]) == 0
    text = Path("about.yaml").read_text()
    assert "output" not in text.split("systems:")[1].split("sources:")[0].split("- {")[1]
    filled = text.replace('email: "FILL IN"', "email: jo@example.org").replace('{url: "FILL IN"}', "{url: null}")
    Path("about.yaml").write_text(filled.replace("FILL IN", "Abc"))
    assert main(["pack", "both", "--about", "about.yaml", "--out", "p.zip"]) == 0, capsys.readouterr().err
    assert main(["pack", "a,b", "--about", "about.yaml", "--out", "q.zip"]) == 1
    assert "a blend of 2 runs needs a score matrix to submit" in capsys.readouterr().err
    shutil.move("a", "renamed")
    assert main(["pack", "renamed", "--about", "about.yaml", "--out", "r.zip"]) == 0, capsys.readouterr().err
    shutil.move("renamed", "a")
    result = json.loads(Path("both/result.json").read_text())
    result["blend"][1]["sha256"] = "0" * 64
    Path("both/result.json").write_text(json.dumps({key: value for key, value in result.items() if key != "checksum"}))
    assert main(["pack", "both", "--about", "about.yaml", "--out", "q.zip"]) == 1
    assert "changed" in capsys.readouterr().err
    shutil.rmtree("b")
    assert main(["pack", "both", "--about", "about.yaml", "--out", "q.zip"]) == 1
    assert "move" in capsys.readouterr().err


def test_blend_refuses_validation_scores_with_another_hubness_correction_or_split(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_validation(capsys, "a", "b")
    for name in ("a", "b"):  # as if every correction chosen were csls 5
        for path in Path(name, "scores").glob("*corrected.npy"):
            matrix = read_scores(path)
            facts = {**matrix.facts, "hub correction": {"correction": "csls 5"}}
            write_scores(path.with_name(f"{path.stem}5.npy"), dataclasses.replace(matrix, facts=facts))
    plain = [f"{name}/scores/corrected5.npy" for name in ("a", "b")]
    checked = ["a:validation", f"b:{open_finished('b').validation.entry}"]  # type: ignore[union-attr]
    assert main(["blend", *plain, "--validation", *checked, "--out", "x.npy"]) == 1
    assert "has the hub correction csls 5, but a:validation has none" in capsys.readouterr().err
    assert main(["pack", "a", "--template", "about.yaml"]) == 0
    text = Path("about.yaml").read_text().replace('abbreviation: "FILL IN"}', "abbreviation: A, output: OUT}")
    filled = text.replace('email: "FILL IN"', "email: jo@example.org").replace('{url: "FILL IN"}', "{url: null}")
    Path("about.yaml").write_text(filled.replace("FILL IN", "Abc").replace("OUT", "a/scores/blind_corrected5.npy"))
    packing = ["--about", "about.yaml", "--out", "p.zip"]
    assert main(["pack", "a", *packing]) == 1
    error = capsys.readouterr().err
    assert (
        "blind_corrected5.npy: has the hub correction csls 5, but the submitted entries have the hub correction none"
        in error
    )
    assert main(["pack", "a:validation", *packing]) == 1
    assert "report" in capsys.readouterr().err


def test_blend_of_runs_refuses_incompatible_arguments(
    made: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("a/scores/evaluation.npy", "m.npy")
    shutil.copy("a/scores/evaluation.json", "m.json")
    for arguments, expected in (
        (
            ["a", "m.npy", "--out", "x"],
            "m.npy is not the folder of a run; correct it, or, to blend files, give --out a name",
        ),
        (["a", "b", "--weights", "-1", "2", "--out", "x"], "give numbers of 0 or more"),
        (["a", "b", "--weights", "0", "0", "--out", "x"], "with a finite sum above 0"),
        (["a", "b", "--weights", "1", "--out", "x"], "1 weights are given for 2 systems"),
        (["a", "b", "--out", "a/x"], "is inside the run"),
        (["a", "a:evaluation", "--out", "x"], "the same system is given twice"),
        (
            ["a", "m.npy", "--validation", "--out", "x.npy"],
            "m.npy is not the folder of a run, so its validation scores are unknown",
        ),
        (["a", "b", "--truth", "t.jsonl", "--out", "x"], "--truth only works with files of moments"),
    ):
        assert main(["blend", *arguments]) == 1
        assert expected in capsys.readouterr().err
        assert not Path("x").exists()
    assert main(["blend", "a", "b", "--out", "both"]) == 0
    assert main(["blend", "both", "a", "--out", "x"]) == 1
    assert "blends" in capsys.readouterr().err
    assert system(["search", "both", "a tone", "--audio", str(made / "blind")]) == 1
    assert "the folder is a blend of runs; give one of its runs" in capsys.readouterr().err
    Path("both/scores/evaluation.npy").write_bytes(b"x")
    assert main(["score", "both"]) == 1
    assert "delete" in capsys.readouterr().err


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of moments of two seeds, with a blind list and validation."""
    folder = tmp_path_factory.mktemp("blended_moments")
    manifest = tiny_moments.make_moments(folder / "world")
    content = tiny_moments.recipe(manifest, folder, epochs=10)
    lines = [json.loads(line) for line in (manifest.parent / "moments.jsonl").read_text().splitlines()]
    blind = "".join(json.dumps({**one, "windows": None}) + "\n" for one in lines)
    (manifest.parent / "blind.jsonl").write_text(blind)
    content["data"]["blind"] = content["data"]["evaluation"] | {"moments": str(manifest.parent / "blind.jsonl")}
    entry = content["rank"]["posterior"]
    content["rank"] = {name: entry | {"data": name} for name in ("evaluation", "validation", "blind")}
    for seed, name in ((1, "a"), (2, "b")):
        path = tiny.write_recipe(folder / f"{name}.yaml", content | {"seed": seed})
        assert system(["run", str(path), "--out", str(folder / name)]) == 0
    return folder


def test_blend_of_moment_runs_can_be_scored_and_compared_and_reported_as_a_run(
    moments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(moments)
    out = str(tmp_path / "both")
    assert main(["blend", "a", "b", "--validation", "--out", out]) == 0, capsys.readouterr().err
    run = open_finished_moments(out)
    assert run.blind is not None
    answers = {name: open_finished_moments(name).answers for name in ("a", "b")}
    checked = {name: open_finished_moments(f"{name}:validation") for name in ("a", "b")}
    truth, edition = checked["a"].truth, run.edition
    weights, best = search_moment_weights({name: one.answers for name, one in checked.items()}, "raw", truth, edition)
    assert best > 0, "a world with scores above zero"
    expected = blend_moments(answers, "raw", edition, weights)
    assert [one.windows for one in run.answers] == [
        [pytest.approx(window, abs=1e-5) for window in one.windows] for one in expected
    ]
    assert len(run.answers) == len(open_finished_moments("a").answers)
    for command in (["score", out], ["compare", out, "a"], ["report", out, "--beside", "a", "b"]):
        assert main(command) == 0, capsys.readouterr().err
    assert main(["blend", "a", "b", "--how", "standardised", "--out", str(tmp_path / "x")]) == 1
    assert "matrices" in capsys.readouterr().err
    assert main(["blend", "a", "b", "--validation", "--out", str(tmp_path / "x.jsonl")]) == 1
    assert "weights" in capsys.readouterr().err


def test_blend_of_frame_probabilities_with_different_frame_edges_is_the_weighted_mean(moments: Path) -> None:
    runs = [open_finished_moments(str(moments / name)) for name in "ab"]
    parts = parts_of(runs, [3, 1])
    qid = next(iter(runs[0].frames))
    runs[0].__dict__["frames"] = {qid: FrameScores(np.array([0.0, 1.0, 2.0]), np.array([0.2, 0.6]))}
    runs[1].__dict__["frames"] = {qid: FrameScores(np.array([0.0, 0.5, 2.5]), np.array([0.8, 0.4]))}
    (found,) = _mean_frames(parts).values()
    assert found.edges.tolist() == [0.0, 0.5, 1.0, 2.0]
    assert found.frames.tolist() == pytest.approx([0.75 * 0.2 + 0.2, 0.75 * 0.2 + 0.1, 0.75 * 0.6 + 0.1])


def test_blend_leaves_out_runs_of_weight_zero_and_gives_runs_of_equal_names_unique_labels(
    made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made / "a", tmp_path / "a")
    runs = [open_finished(str(folder)) for folder in (made / "a", made / "b", tmp_path / "a")]
    parts: list[Any] = parts_of(runs, [1, 0, 3])
    assert [(part.label, part.weight) for part in parts] == [("a:1", 0.25), ("a:3", 0.75)]


def test_frames_file_of_a_blend_is_readable(moments: Path, tmp_path: Path) -> None:
    assert main(["blend", str(moments / "a"), str(moments / "b"), "--out", str(tmp_path / "both")]) == 0
    frames = read_frame_scores(tmp_path / "both/scores/evaluation.frames.npz")
    each = [open_finished_moments(str(moments / name)).frames for name in "ab"]
    for qid, one in frames.items():
        assert one.frames == pytest.approx(0.5 * each[0][qid].frames + 0.5 * each[1][qid].frames, abs=1e-6)
