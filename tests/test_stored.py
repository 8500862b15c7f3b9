"""Files of an earlier release, stored in tests/stored, open, rank, resume and pack as they did."""

import hashlib
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sandboxes import serving, stored

from data_tools.__main__ import main as data_tools
from data_tools.documents.json_text import write_json
from data_tools.manifest import read_manifest
from submission.__main__ import main as submission
from submission.formats.score_matrix import ScoreMatrix, read_scores
from system.__main__ import main as system
from system.experiments.tables import CHOOSE

STORED = Path(__file__).parent / "stored"
RENAMED = ("ffn_dim", "max_positions", "max_grad_norm", "grad_cache_chunk", "min_lr", "masked", "early_stopping")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder holds the files as they were when they were made."""
    for path in STORED.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)


def contents(folder: str) -> dict[Path, bytes]:
    """Of all files but locks."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size}


def assert_alike(found: ScoreMatrix) -> None:
    """Scores and ranking are those that the earlier release gave."""
    before = read_scores(Path("finished/scores/evaluation.npy"))
    assert (found.query_ids, found.clip_ids, found.relevant) == (before.query_ids, before.clip_ids, before.relevant)
    np.testing.assert_allclose(found.values, before.values, atol=1e-5)
    assert (found.values.argsort(axis=1) == before.values.argsort(axis=1)).all()


def test_a_finished_run_is_finished(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents("finished")
    assert system(["run", "recipe.yaml", "--out", "finished"]) == 0
    assert "finished already: finished, made by the code of 3001ba7" in caplog.text
    assert [record.levelname for record in caplog.records if "finished already" in record.message] == ["WARNING"]
    assert "recipe.yaml: settings by old names (8), which release 0.3.0 no longer reads" in caplog.text
    result = json.loads(Path("finished/result.json").read_text())
    assert not result.keys() & {"format", "checksum", "sha256"}
    assert f"mAP@10   {result['rank']['evaluation']['mAP@10']:.4f}" in capsys.readouterr().out
    assert contents("finished") == before
    assert system(["check", "recipe.yaml"]) == 0
    shown = capsys.readouterr()
    assert all(f"{name} now; write " in shown.out + shown.err for name in RENAMED)


@pytest.mark.parametrize("model", ["finished", "model"])
def test_a_model_ranks_as_it_did_by_the_frames_in_its_bank(model: str, caplog: pytest.LogCaptureFixture) -> None:
    before = {path: data for path, data in contents("banks").items() if path.parent != Path("banks")}
    arguments = ["--audio", "tones/manifest.jsonl", "--split", "evaluation", "--out", "scores.npy"]
    assert system(["rank", model, *arguments]) == 0
    assert_alike(read_scores(Path("scores.npy")))
    assert "computing the frames" not in caplog.text
    assert before.items() <= contents("banks").items()
    assert len([path for path in Path("banks").iterdir() if path.is_dir()]) == 1


def test_a_run_killed_after_its_first_epoch_goes_on_to_the_same_scores(caplog: pytest.LogCaptureFixture) -> None:
    line = Path("unfinished/metrics.jsonl").read_text()
    assert line.count("\n") == 1
    assert system(["run", "recipe.yaml", "--out", "unfinished"]) == 0
    assert Path("unfinished/metrics.jsonl").read_text().startswith(line)
    assert "lost lines" not in caplog.text
    found, before = (
        [json.loads(text) for text in Path(run, "metrics.jsonl").read_text().splitlines()]
        for run in ("unfinished", "finished")
    )
    for after, then in zip(found, before, strict=True):
        assert list(after) == list(then)
        assert after["validation"] == pytest.approx(then["validation"], abs=1e-5)
        assert after["loss"] == pytest.approx(then["loss"], abs=1e-5)
    assert_alike(read_scores(Path("unfinished/scores/evaluation.npy")))
    result = json.loads(Path("unfinished/result.json").read_text())
    assert result["format"] == 1
    assert result["commits"][0] == "3001ba7"


def test_a_study_makes_its_table_and_runs_nothing_again(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = contents("runs")
    assert system(["study", "margins.study.yaml", "--runs", "runs"]) == 0
    assert caplog.text.count("finished already") == 2
    table = capsys.readouterr().out
    assert without_validation(table) == before[Path("runs/margins/table.md")].decode()
    after = contents("runs")
    assert after.pop(Path("runs/margins/table.md")).decode() == table
    assert {path for path, data in before.items() if after.get(path) != data} == {
        Path("runs/margins") / name for name in ("table.md", "table.tex", "table.csv")
    }


def without_validation(table: str) -> str:
    """A table in Markdown as release 0.1 wrote it."""
    rows = [line.split("|") for line in table.splitlines()]
    new = [n for n, name in enumerate(rows[0]) if name.startswith(" validation ")]
    assert len(new) == 1
    old = ["|".join(cell for n, cell in enumerate(row) if len(row) == 1 or n not in new) for row in rows]
    return "\n".join(old).replace(f"\n{CHOOSE}\n", "", 1) + "\n"


def test_a_report_and_a_package_are_made_of_a_finished_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert submission(["report", "finished"]) == 0
    assert "3001ba7" in Path("finished/report.html").read_text()
    assert submission(["check", "package.zip", "--edition", "2022"]) == 0
    command = ["pack", "finished", "--about", "about.yaml", "--report", "report.pdf", "--out", "again.zip"]
    assert submission(command) == 0
    with zipfile.ZipFile("package.zip") as before, zipfile.ZipFile("again.zip") as after:
        for name in before.namelist():
            assert after.read(name.replace("package/", "again/", 1)) == before.read(name), name
        assert len(after.namelist()) == len(before.namelist())


def test_a_crawl_and_a_fetch_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    store = Path("crawl/store.sqlite")
    assert data_tools(["status", str(store)]) == 0
    assert "150  sounds kept" in capsys.readouterr().out
    tables = ["--scores", "crawl/scores.csv", "--exclude", "none", "--rate", "8000", "--seconds", "0.1", "120"]
    before = {path: path.stat().st_mtime_ns for path in Path("crawl/audio").glob("*.flac")}
    assert len(before) == 3
    with serving("--sounds", "320", "--no-throttle") as settings:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        assert data_tools(["crawl", str(store)]) == 0
        assert data_tools(["fetch", str(store), *tables, "--limit", "4", "--out", "crawl/audio"]) == 0
    assert len(stored(store)) == 320
    assert len(read_manifest(Path("crawl/audio/manifest.jsonl"))) == 4
    assert before.items() <= {path: path.stat().st_mtime_ns for path in Path("crawl/audio").glob("*.flac")}.items()


@pytest.mark.parametrize("noted", [False, True])
def test_a_run_that_lost_its_settings_gets_them_back(noted: bool) -> None:
    """By the command that names its recipe, also where the checksum of the old names was noted."""
    resolved, provenance = Path("unfinished/resolved.json"), Path("unfinished/provenance.json")
    if noted:
        facts = json.loads(provenance.read_text())
        checksums = {"resolved.json": hashlib.sha256(resolved.read_bytes()).hexdigest()}
        write_json(provenance, facts | {"sha256": checksums})
    resolved.unlink()
    assert system(["run", "unfinished/recipe.yaml", "--set", "seed=77", "--out", "unfinished"]) == 1
    assert system(["run", "unfinished/recipe.yaml", "--out", "unfinished"]) == 0
    assert "max_grad_norm" in resolved.read_text()
    assert system(["run", str(resolved), "--out", "unfinished"]) == 0
    assert_alike(read_scores(Path("unfinished/scores/evaluation.npy")))
