"""Names of experts' banks, and models that were trained on frames of earlier versions."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
from outcomes import ranked_evaluation, refused, rewrite

from data_tools.errors import KitError
from data_tools.files import read_json
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.experts import (
    LogMel,
    LogMelSlaney,
    OpenL3,
    PannsCnn14,
    PannsResNet38,
    Vggish,
    VggSound,
    Waveform,
    Yamnet,
)
from system.experts.base import ExpertSettings
from system.features.bank import Bank
from system.features.extract import bank_of

LOGMEL = LogMel(kind="logmel", sample_rate=16_000, bands=32, window_seconds=0.04, hop_seconds=0.02, stack=4)
SLANEY = {"sample_rate": 44_100, "bands": 64, "window_seconds": 0.04, "hop_seconds": 0.02}
# As the release before front-ends in float64 named them, over a file that says "weights".
STAYED: dict[str, ExpertSettings] = {
    "logmel-4df4cb5b6001": LOGMEL,
    "waveform-540a7c76ea26": Waveform(kind="waveform", sample_rate=32_000),
    "panns_cnn14_16k-f8488d6a8f11": PannsCnn14(kind="panns_cnn14_16k", weights="w"),
    "panns_resnet38-0b8abd4c9faa": PannsResNet38(kind="panns_resnet38", weights="w"),
    "vggish-bad490acef62": Vggish(kind="vggish", weights="w", output="raw"),
    "vggsound-05bf1ccfba3c": VggSound(kind="vggsound", weights="w"),
}
CHANGED: dict[str, ExpertSettings] = {
    "openl3-b61137d26bb0": OpenL3(kind="openl3", weights="w"),
    "yamnet-8cac1175306e": Yamnet(kind="yamnet", weights="w"),
    "logmel_slaney-9364790db426": LogMelSlaney(kind="logmel_slaney", lowest=12, highest=8_000, **SLANEY),
}


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a weight file w."""
    monkeypatch.chdir(tmp_path)
    Path("w").write_text("weights")
    return tmp_path


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("key", STAYED)
def test_unchanged_experts_have_the_same_bank_keys_as_in_earlier_versions(key: str) -> None:
    assert STAYED[key].bank_name() == key
    assert "resampling" not in STAYED[key].model_dump(mode="json")


@pytest.mark.parametrize("key", CHANGED)
def test_experts_with_changed_frames_use_new_banks(there: Path, key: str) -> None:
    expert = CHANGED[key]
    before = {**expert.identity(), "version": 1}
    bank = Bank(there / "banks" / key, expert.dim, expert.dtype, before)
    assert tiny.store_all(bank, [("clip", np.ones((2, expert.dim), np.float32))]) == ["clip"]
    assert expert.bank_name() != key
    assert "clip" not in bank_of(expert, there / "banks")
    assert Bank(there / "banks" / key, expert.dim, expert.dtype, before).read("clip").shape == (2, expert.dim)
    shutil.move(there / "banks" / key, there / "other" / expert.bank_name())
    with pytest.raises(
        KitError,
        match="settings",
    ):
        bank_of(expert, there / "other")


@pytest.mark.usefixtures("there")
def test_resampling_setting_changes_the_bank_key() -> None:
    ways = [LOGMEL.model_copy(update={"resampling": how}) for how in ("soxr_hq", "kaiser_best", "kaiser_best_0.2")]
    assert len({expert.bank_name() for expert in ways}) == 3
    assert [expert.model_dump().get("resampling") for expert in ways] == [None, "kaiser_best", "kaiser_best_0.2"]


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
    rewrite(tmp_path / "model/model.json", experts=read_json(unbroken / "provenance.json")["experts"])
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
    assert "experts.logmel.version changed since this run began; start a new run" in message


def test_run_with_changed_expert_settings_is_refused(
    unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    experts = read_json(run / "provenance.json")["experts"]
    rewrite(run / "provenance.json", experts={"logmel": experts["logmel"] | {"version": 0, "bands": 31}})
    message = refused(capsys, "export", run, "--out", tmp_path / "model")
    assert "experts.logmel.bands changed since this run began" in message
