"""The table of all runs: finished, unfinished, running and damaged ones, and its order."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import transformers
from hub_models import tokenizer
from outcomes import refused, rewrite

from data_tools.files import is_locked, lock
from submission.__main__ import main as submission
from system.__main__ import main
from system.retriever import load_model
from system.runs.overview import table_of_runs


@pytest.fixture
def runs(unbroken, tmp_path):
    """a: finished. b: stopped in its third epoch of three, its recipe changed by --set. c: damaged. d: not begun."""
    runs = tmp_path / "runs"
    for name in "abcd":
        shutil.copytree(unbroken, runs / name)
    (runs / "b/result.json").unlink()
    lines = (runs / "b/metrics.jsonl").read_text().splitlines(keepends=True)
    (runs / "b/metrics.jsonl").write_text("".join(lines[:-1]))
    rewrite(runs / "b/provenance.json", changes=["seed=3", "stages.finetune.epochs=2"])
    (runs / "c/resolved.json").write_text("{")
    for name in ("result.json", "metrics.jsonl", "provenance.json"):
        (runs / "d" / name).unlink()
    (runs / "notes").mkdir()
    return runs


def listed(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    capsys.readouterr()
    assert main(["runs", *map(str, argv)]) == 0
    return capsys.readouterr().out


def test_verb_runs_lists_every_run_and_sorts_them(runs, capsys):
    header, a, b, c, d = listed(capsys, runs).splitlines()
    assert header.split() == ["run", "state", "stage", "epoch", "validation", "by", "test", "of", "hours", "changes"]
    result = json.loads((runs / "a/result.json").read_text())["rank"]["evaluation"]
    assert a.split()[:4] == ["a", "finished", "finetune", "3"]
    assert f"{result['mAP@10']:.4f} mAP@10" in " ".join(a.split())
    assert b.split()[:4] == ["b", "unfinished", "finetune", "2"]
    assert b.endswith("seed=3 stages.finetune.epochs=2")
    assert c.split()[:2] == ["c", "damaged"]
    assert "resolved.json: not JSON" in c
    assert d.split() == ["d", "unfinished", *"--------"]
    for name, value in (("a", 0.1), ("b", 0.7), ("d", 0.4)):
        line = {"stage": "s", "epoch": 1, "seconds": value * 3600, "validation": {"mAP@10": value}}
        (runs / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    for order, expected in (("validation", "bdac"), ("time", "bdac"), ("name", "abcd"), ("test", "abcd")):
        lines = listed(capsys, runs, "--sort", order).splitlines()[1:]
        assert "".join(line.split()[0] for line in lines) == expected, order


def test_verb_runs_shows_the_best_validation_of_the_last_stage(runs):
    epochs = [json.loads(line) for line in (runs / "a/metrics.jsonl").read_text().splitlines()]
    for line, value in zip(epochs, [0.9] * (len(epochs) - 3) + [0.1, 0.3, 0.2], strict=True):
        line["validation"]["mAP@10"] = value
    assert [line["stage"] for line in epochs[-3:]] == ["finetune"] * 3
    assert epochs[0]["stage"] != "finetune"
    (runs / "a/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in epochs))
    found = table_of_runs(runs / "a").iloc[0]
    assert (found.by, found.validation) == ("mAP@10", 0.3)
    assert found.hours == pytest.approx(sum(line["seconds"] for line in epochs) / 3600)
    for line, value in zip(epochs[-3:], (4.0, 3.0, 5.0), strict=True):
        line["validation"] = {"loss": value}
    (runs / "a/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in epochs))
    found = table_of_runs(runs / "a").iloc[0]
    assert (found.by, found.validation) == ("loss", 3.0), "the lower loss is the better one"


def test_locked_run_is_listed_as_running(runs):
    assert not is_locked(runs / "b/lock")
    with lock(runs / "b/lock", "busy"):
        assert is_locked(runs / "b/lock")
        assert table_of_runs(runs / "b").state.tolist() == ["running"]
    assert table_of_runs(runs / "b").state.tolist() == ["unfinished"]


def test_error_for_an_unfinished_run_gives_the_command_that_resumes_the_run(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    (runs / "b/finetune/done.json").unlink()
    for door, command in ((submission, ["report", "b"]), (main, ["export", "b", "--out", "x"])):
        assert door(command) == 1
        assert capsys.readouterr().err.endswith("lbar run b/resolved.json --out b\n")
        with lock(Path("b/lock"), "busy"):
            assert door(command) == 1
        assert "in progress" in capsys.readouterr().err
    assert main(["run", "b/resolved.json", "--out", "b"]) == 0
    assert (runs / "b/result.json").exists()


def test_verb_runs_reports_an_empty_folder_and_refuses_a_missing_folder(tmp_path, capsys):
    assert "no run yet" in listed(capsys, tmp_path)
    assert "such" in refused(capsys, "runs", tmp_path / "none")


def test_runs_of_studies_are_listed_by_path(runs, capsys):
    shutil.copytree(runs / "a", runs / "margins/wide_s1")
    names = [line.split()[0] for line in listed(capsys, runs).splitlines()[1:]]
    assert names == ["a", "b", "c", "d", "margins/wide_s1"]
    (line,) = listed(capsys, runs / "margins").splitlines()[1:]
    assert line.startswith("wide_s1 ")


@pytest.fixture(scope="module")
def project(tmp_path_factory, curves):
    """A run trained in a folder by relative paths alone, with a text model and its manifest gone since."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tiny.make_world(folder / "world", {"development": 16, "validation": 4, "evaluation": 12}, 2)
        content = tiny.recipe(Path("world/manifest.jsonl"), Path(), only=tiny.stage(epochs=1, steps_per_epoch=1))
        content["banks"] = "banks"
        tokens = {"trainable": True, "removed": "", "dropout": None, "hidden": None, "dim": 32}
        content["model"]["text"] = {"kind": "published", "pooling": "mean", "model": "texts", **tokens}
        model = transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=300, max_position_embeddings=64))
        model.save_pretrained("texts")
        tokenizer().save_pretrained("texts")
        assert main(["run", str(tiny.write_recipe(Path("r.yaml"), content)), "--name", "mine"]) == 0
    (folder / "world/manifest.jsonl").unlink()
    return folder


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def test_run_opens_from_any_folder_without_its_manifests(project, tmp_path, monkeypatch, capsys):
    folder = Path(shutil.move(shutil.copytree(project, tmp_path / "copy"), tmp_path / "moved 😀"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run, audio = str(folder / "runs/mine"), str(folder / "world/evaluation")
    Path("q.csv").write_text("caption\nA deep tone sounds.\n")
    model = load_model(run, device="cpu")
    assert model.encode_text("a tone").shape == (1, 32)
    for command in (
        ["rank", run, audio, "q.csv", "--out", "s.npy"],
        ["search", run, audio, "a deep tone"],
        ["embed", run, audio, "--out", "e.npz"],
        ["export", run, "--out", "model"],
        ["rank", "model", audio, "q.csv", "--out", "t.npy"],
    ):
        assert main(command) == 0, capsys.readouterr().err
    assert np.allclose(np.load("s.npy"), np.load("t.npy"), atol=1e-5)
    (folder / "runs/mine/figures").rename(folder / "runs/mine/curves")
    Path(run).chmod(0o500)  # a read-only run has its report elsewhere
    assert submission(["report", run, "--out", "page.html"]) == 0
    assert "data:image/svg+xml" in Path("page.html").read_text(encoding="utf-8")
    assert not Path(run, "figures").exists()
