"""Names of experts' banks, and models that were trained on frames of earlier versions."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from outcomes import ranked_evaluation, refused, rewrite

from data_tools.files import read_json
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.audio.logmel import LogMel

LOGMEL = LogMel(kind="logmel", sample_rate=16_000, bands=32, window_seconds=0.04, hop_seconds=0.02, stack=4)


def test_resampling_setting_changes_the_bank_key() -> None:
    ways = [LOGMEL.model_copy(update={"resampling": how}) for how in ("soxr_hq", "kaiser_best", "kaiser_best_0.2")]
    assert len({expert.bank_name() for expert in ways}) == 3


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose log-mel gives other frames."""
    monkeypatch.setattr(LogMel, "version", 2)


@pytest.mark.usefixtures("later")
def test_model_trained_on_older_frames_ranks_with_a_warning(
    unbroken: Path, world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = r"trained on frames of version 1 of the expert logmel"
    assert main(["export", str(unbroken), "--out", str(tmp_path / "model")]) == 0
    assert words in caplog.text
    caplog.clear()
    found = ranked_evaluation(unbroken, world, tmp_path / "run.npy")
    assert words in caplog.text
    assert np.array_equal(found, read_scores(unbroken / "scores/evaluation.npy").values), "in truth they are the same"
    assert read_scores(tmp_path / "run.npy").facts["experts"]["logmel"]["version"] == 2
    inputs = read_json(unbroken / "provenance.json")["inputs"]
    rewrite(tmp_path / "model/model.json", experts={"logmel": inputs["experts.logmel"]})
    caplog.clear()
    assert np.array_equal(ranked_evaluation(tmp_path / "model", world, tmp_path / "model.npy"), found)
    assert f"{tmp_path / 'model'} was {words}" in caplog.text
    assert read_scores(tmp_path / "model.npy").facts["experts"]["logmel"]["version"] == 2


@pytest.mark.usefixtures("later")
def test_resuming_training_with_other_frames_is_refused(
    unbroken: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    (run / "result.json").unlink()
    (run / "finetune/done.json").unlink()
    message = refused(capsys, "run", "--until=training", recipe, "--out", run)
    assert "experts.logmel.version changed since this run began" in message


def test_run_with_changed_expert_settings_is_refused(
    unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    inputs = read_json(run / "provenance.json")["inputs"]
    inputs["experts.logmel"] |= {"version": 0, "bands": 31}
    rewrite(run / "provenance.json", inputs=inputs)
    message = refused(capsys, "export", run, "--out", tmp_path / "model")
    assert "another bands of the expert logmel" in message
