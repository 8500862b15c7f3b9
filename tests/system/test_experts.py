"""YAMNet, its conversion, and the log-mel against their goldens and definitions; frames of other versions."""

import shutil
import sys
from pathlib import Path

import filled
import numpy as np
import pytest
import soundfile
import tiny
import torch
from outcomes import ranked_evaluation, refused, rewrite, unfinished

from data_tools.errors import KitError
from data_tools.files import read_json
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.audio.logmel import LogMel
from system.audio.mel import audioset_log_mel
from system.audio.network import exact_arithmetic, groups_of_equal_length
from system.audio.yamnet import Yamnet

LOGMEL = LogMel(kind="logmel", sample_rate=16_000, bands=32, window_seconds=0.04, hop_seconds=0.02, stack=4)
CPU = torch.device("cpu")
TFLITE = "data/yamnet/yamnet.tflite"
YAMNET_FILE = "data/yamnet/yamnet_layers_float32_dequantised.npz"


@pytest.fixture(scope="module")
def yamnet(shared):
    settings = Yamnet(kind="yamnet", weights=str(shared / YAMNET_FILE))
    made = settings.layers()
    settings.load_into(made)
    return made.eval().requires_grad_(False)


def log_mel(wave: np.ndarray) -> np.ndarray:
    return audioset_log_mel(torch.from_numpy(wave)[None], 0.001)[0].numpy()


def scores_of(embedding: np.ndarray, shared: Path) -> np.ndarray:
    with np.load(shared / YAMNET_FILE) as file:
        logits = embedding @ file["30_w"].T.astype(np.float32) + file["30_b"]
    return torch.from_numpy(logits).sigmoid().numpy()


def test_yamnet_matches_the_public_file(yamnet, shared, goldens):
    golden = np.load(goldens / "yamnet_esc10.npz")
    embedding = yamnet.embed(torch.from_numpy(golden["log_mel"]).float())
    scores = scores_of(embedding.numpy(), shared)
    assert torch.cosine_similarity(embedding, torch.from_numpy(golden["embedding"]).float()).min() >= 0.999
    assert np.abs(scores - golden["scores"]).max() < 0.03  # int8 against float32
    assert (scores.argmax(1) == golden["scores"].argmax(1)).all()


def test_yamnet_front_end_matches_public_one_within_int8_precision(shared, goldens):
    golden = np.load(goldens / "yamnet_esc10.npz")
    differences = []
    for name, expected in zip(golden["file_name"], golden["log_mel"], strict=True):
        wave, rate = soundfile.read(shared / "data/esc10/audio" / str(name), dtype="float32")
        assert rate == 16_000
        found = log_mel(np.pad(wave[:15_600], (0, max(0, 15_600 - len(wave)))))
        assert found.shape == (96, 64)
        differences.append(np.abs(found - expected)[expected > -3])
    assert np.median(np.concatenate(differences)) < 0.01


def test_yamnet_log_mel_of_a_tone_matches_definition():
    t = np.arange(16_000) / 16_000
    wave = np.sin(2 * np.pi * 1000 * t).astype(np.float32)
    column = log_mel(wave)[0]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    spectrum = np.abs(np.fft.rfft(wave[:400] * window, 512))
    mel = lambda hertz: 1127 * np.log(1 + np.asarray(hertz) / 700)  # noqa: E731
    edges, bins = np.linspace(mel(125), mel(7500), 66)[:, None], mel(np.arange(257) * 31.25)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    basis = np.maximum(0, np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)))
    assert column == pytest.approx(np.log(basis @ spectrum + 0.001), abs=1e-3)


@pytest.mark.parametrize(
    ("samples", "count"), [(1, 1), (15_600, 1), (15_601, 2), (23_280, 2), (23_281, 3), (600_000, 78)]
)
def test_yamnet_frame_count_matches_definition(shared, samples, count):
    """The counts are those of Google's pad_waveform."""
    expert = Yamnet(kind="yamnet", weights=str(shared / YAMNET_FILE))
    frames = expert.load(CPU)([np.full(samples, 0.1, np.float32)])[0]
    assert frames.shape == (count, 1024)
    assert np.isfinite(frames).all()


def test_yamnet_last_frame_includes_the_end_of_the_clip(shared):
    """Its last 0.18 s are only in the last of ten frames, which is padded with silence."""
    wave, _ = soundfile.read(shared / "data/esc10/audio/1-17150-A-12.flac", dtype="float32")
    wave = wave[:80_000]
    tail = np.pad(wave[9 * 7680 :], (0, 9 * 7680 + 15_600 - 80_000))
    frames, last = Yamnet(kind="yamnet", weights=str(shared / YAMNET_FILE)).load(CPU)([wave, tail])
    assert len(frames) == 10
    assert np.abs(frames[9:] - last).max() < 1e-5


def test_missing_and_wrong_yamnet_files_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no weights")
    np.savez(tmp_path / "few.npz", **{"03_w": np.zeros(3)})
    np.savez(tmp_path / "other.npz", **{f"{layer:02d}_{part}": np.zeros(3) for layer in range(3, 31) for part in "wb"})
    for name, word in (("text", "yamnet"), ("few", "yamnet"), ("other", "yamnet"), ("none", "missing")):
        settings = Yamnet(kind="yamnet", weights=str(tmp_path / f"{name}.npz"))
        with pytest.raises(KitError, match=word):
            settings.load_into(settings.layers())
    with pytest.raises(KitError, match="missing"):
        settings.bank_name()


def test_logmel_of_tones_and_silence_matches_its_definition_apart_from_other_clips():
    t = np.arange(16_000) / 16_000
    frames = LOGMEL.load(CPU)([np.sin(2 * np.pi * 2000 * t).astype(np.float32), np.zeros(16_000, np.float32)])
    centres = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 34)[1:-1] / 2595) - 1)
    bands = frames[0].reshape(-1, 32)
    assert np.abs(centres[bands[10].argmax()] - 2000) < 150
    assert np.allclose(frames[1], (np.log(1e-5) + 6) / 4, atol=1e-5)
    wave = tiny.tone(3, 0.5, 1)
    columns = LOGMEL.load(CPU)([wave])[0].reshape(-1, 32)
    window = np.zeros(1024)
    window[192:832] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(640) / 640)
    padded = np.pad(wave.astype(np.float64), 512, "reflect")
    basis = filled.triangles(32, 16_000, 1024)
    for column in (0, 7, 24):
        power = np.abs(np.fft.rfft(padded[320 * column :][:1024] * window)) ** 2
        assert np.allclose(columns[column], (np.log(basis @ power + 1e-5) + 6) / 4, atol=2e-4)
    waves = [tiny.tone(p, 0.5 + p / 3, p) for p in range(4)]
    together = LOGMEL.load(CPU)(waves)
    for wave, frames in zip(waves, together, strict=True):
        assert np.array_equal(LOGMEL.load(CPU)([wave])[0], frames)
    for samples in (1, 640, 16_000):
        frames = LOGMEL.load(CPU)([np.full(samples, 0.1, np.float32)])[0]
        columns = 1 + max(samples, 1024) // 320
        assert frames.shape == (-(-columns // 4), 128)


def test_bank_key_depends_on_settings_and_resampling_but_not_on_weight_paths(shared, tmp_path):
    assert LOGMEL.bank_name() != LOGMEL.model_copy(update={"bands": 33}).bank_name()
    there = shared / YAMNET_FILE
    copy = tmp_path / "copy.npz"
    copy.write_bytes(there.read_bytes())
    a, b = (Yamnet(kind="yamnet", weights=str(path)).bank_name() for path in (there, copy))
    assert a == b
    copy.write_bytes(there.read_bytes() + b"x")
    assert Yamnet(kind="yamnet", weights=str(copy)).bank_name() != a
    ways = [LOGMEL.model_copy(update={"resampling": how}) for how in ("soxr_hq", "kaiser_best", "kaiser_best_0.2")]
    assert len({expert.bank_name() for expert in ways}) == 3


def test_groups_have_equal_lengths_and_exact_arithmetic_ends_with_its_block():
    assert list(groups_of_equal_length([5, 3, 5, 5, 9, 3], 10)) == [[1, 5], [0, 2], [3], [4]]
    assert list(groups_of_equal_length([20], 10)) == [[0]]
    torch.set_float32_matmul_precision("high")
    try:
        with exact_arithmetic():
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.is_inference_mode_enabled()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_model_trained_on_older_frames_ranks_with_a_warning(unbroken, world, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(LogMel, "version", 2)  # as of a later release, whose log-mel gives other frames
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


def test_resuming_or_exporting_with_other_frames_is_refused(unbroken, recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(LogMel, "version", 2)
    run = unfinished(unbroken, tmp_path / "run")
    message = refused(capsys, "run", "--until=training", recipe, "--out", run)
    assert "experts.logmel.version changed since this run began" in message
    inputs = read_json(run / "provenance.json")["inputs"]
    inputs["experts.logmel"] |= {"version": 0, "bands": 31}
    rewrite(run / "provenance.json", inputs=inputs)
    message = refused(capsys, "export", shutil.copytree(run, tmp_path / "other"), "--out", tmp_path / "model")
    assert "another bands of the expert logmel" in message


@pytest.mark.slow
def test_converted_yamnet_matches_dequantised_layers(shared, tmp_path):
    assert main(["convert", str(shared / TFLITE), "--out", str(tmp_path / "made/layers.npz")]) == 0
    assert main(["convert", str(shared / TFLITE), "--out", str(tmp_path / "again.npz")]) == 0
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "made/layers.npz").read_bytes()
    expected = np.load(shared / YAMNET_FILE)
    with np.load(tmp_path / "made/layers.npz") as found:
        assert found.files == expected.files
        for name in expected.files:
            assert found[name].dtype == np.float32
            assert np.array_equal(found[name], expected[name]), name
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["layers.npz"]


def test_foreign_tflite_files_and_a_missing_package_are_refused(shared, tmp_path, capsys, monkeypatch):
    bad, cut = tmp_path / "bad.tflite", (shared / TFLITE).read_bytes()[:1_000_000]
    for content, word in ((None, "such"), (b"", "public"), (b"<html>Not found</html>", "public"), (cut, "public")):
        if content is not None:
            bad.write_bytes(content)
        assert word in refused(capsys, "convert", bad, "--out", tmp_path / "out.npz")
    monkeypatch.setitem(sys.modules, "tflite", None)
    assert "pip install" in refused(capsys, "convert", shared / TFLITE, "--out", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()
