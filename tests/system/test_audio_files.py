"""Waveforms that are decoded from audio files for each batch."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tiny
import torch
from slow_builds import LOGMEL
from threads import one_thread  # noqa: F401  a fixture

from data_tools.audio import read_audio
from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest
from system.__main__ import main
from system.audio.stored import Waveform, to_int16
from system.batches import loader
from system.batches.items import Item
from system.batches.loader import collate
from system.features.bank import Bank
from system.features.extract import Features, Waveforms, build_features

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.collapses]  # batch norms that have seen a few steps

WAVEFORM = {"waveform": Waveform(kind="waveform", sample_rate=16_000)}


@pytest.fixture(scope="module")
def mp3s(tmp_path_factory):
    """The tiny world as MP3 and FLAC files at 16 and 44.1 kHz, 1 to 7 s, longer than a crop."""
    folder = tmp_path_factory.mktemp("published")
    return tiny.make_compressed_world(folder / "world", {"development": 10, "validation": 4, "evaluation": 10})


def damage(path: Path) -> None:
    """Overwrite the middle third of a file with zeros."""
    content = path.read_bytes()
    third = len(content) // 3
    path.write_bytes(content[:third] + bytes(third) + content[2 * third :])


def test_waveforms_of_16_bit_files_are_stored_exactly_and_others_rounded_to_16_bits():
    frames = Waveform(kind="waveform", sample_rate=32_000).load(torch.device("cpu"))
    exact = np.array([-32_768, -32_767, -1, 0, 1, 16_385, 32_767])
    (kept,) = frames([(exact / 32_768).astype(np.float32)])
    assert kept.dtype == np.int16
    assert kept[:, 0].tolist() == exact.tolist()
    (loud,) = frames([np.array([-3.0, 1.0, 3.0], np.float32)])
    assert loud[:, 0].tolist() == [-32_768, 32_767, 32_767]
    noise = np.random.default_rng(0).uniform(-0.99, 0.99, 9999).astype(np.float32)
    assert np.abs(frames([noise])[0][:, 0] / 32_768 - noise).max() <= 0.5 / 32_768 + 1e-9


def test_batch_frames_have_the_dtype_of_their_bank(tmp_path):
    series = {"a": np.arange(-3, 2)[:, None], "b": 30_000 + np.arange(2)[:, None]}
    for dtype in ("int16", "float32", "float16"):
        bank = Bank(tmp_path / dtype, 1, dtype, {})
        tiny.store_all(bank, series.items())
        features = Features({"waveform": bank}, {"one": "a", "other": "b"})
        items = [Item(Clip(id=name, path="none", captions=[]), ()) for name in ("other", "one")]
        padded = collate(items, features).audio["waveform"]
        assert str(padded.values.dtype) == f"torch.{dtype}"
        expected = np.array([[30_000, 30_001, 0, 0, 0], [-3, -2, -1, 0, 1]], dtype)
        assert padded.values[..., 0].tolist() == expected.tolist()
        assert padded.lengths.tolist() == [2, 5]


def test_parts_of_audio_files_differ_from_the_whole_by_at_most_one_16_bit_step(mp3s, tmp_path):
    clips, files = read_manifest(mp3s), build_features(read_manifest(mp3s), WAVEFORM, tmp_path / "banks")
    draw, differing = np.random.default_rng(0), 0
    for clip in clips:
        whole = tiny.frames(files, "waveform", clip.id)
        assert np.array_equal(to_int16(read_audio(clip.path, 16_000)), whole)
        first = int(draw.integers(0, len(whole) - 8000))
        part = files.banks["waveform"].part(files.keys[clip.id], first, 8000)
        steps = np.abs(part.astype(int) - whole[first : first + 8000])
        assert steps.max() <= 1
        differing += int((steps > 0).sum())
    assert differing < 8 * len(clips)


def test_damaged_audio_files_end_a_run_once_and_are_skipped_by_the_next_and_in_folders(
    mp3s, tmp_path, monkeypatch, caplog, capsys
):
    tiny.narrowed(monkeypatch)
    mp3s = shutil.copytree(mp3s.parent, tmp_path / "world") / mp3s.name
    content = tiny.recipe(mp3s, tmp_path, only=tiny.stage(epochs=1))
    content["model"]["audio"] = tiny.panns(max_seconds=0.8)
    path, run = tiny.write_recipe(tmp_path / "r.yaml", content), tmp_path / "run"
    damaged = next(Path(clip.path) for clip in read_manifest(mp3s) if clip.path.endswith("development 002.flac"))
    damage(damaged)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "first")]) == 1
    said = rf"error: {re.escape(str(damaged))}: .*; start a new run, which skips this file"
    assert re.search(said, capsys.readouterr().err)
    caplog.clear()
    assert main(["run", str(path), "--out", str(run)]) == 0
    assert "skipped 1 clip that cannot be used" in caplog.text
    result = json.loads((run / "result.json").read_text())
    assert result["rank"]["evaluation"]["mAP@10"] > 0.1
    queries = tmp_path / "queries.csv"
    queries.write_text("caption\na low tone\n")
    paths = [Path(one.path) for one in read_manifest(mp3s) if one.split == "evaluation"]
    ranked = ["rank", run, paths[0].parent, queries, "--out", tmp_path / "scores.npy", "--cache", tmp_path / "cache"]
    damage(next(path for path in paths if path.suffix == ".flac"))
    assert main([*map(str, ranked)]) == 0
    assert np.load(tmp_path / "scores.npy").shape == (1, 9)
    assert not list(tmp_path.rglob("waveform-*"))
    capsys.readouterr()
    assert main(["run", str(path), "--out", str(tmp_path / "third")]) == 1
    assert "evaluation" in capsys.readouterr().err
    assert not (tmp_path / "third/only").exists(), "nothing is trained if a file of a rank entry is damaged"


def test_clips_share_a_content_key_only_if_their_audio_files_are_equal(tmp_path):
    wave = np.random.default_rng(0).uniform(-0.5, 0.5, 200_000)
    for name, sample in (("one", 0.1), ("same", 0.1), ("edited", 0.2)):
        wave[100_000] = sample
        soundfile.write(tmp_path / f"{name}.wav", wave, 16_000)
    clips = [Clip(id=name, path=str(tmp_path / f"{name}.wav"), captions=[]) for name in ("one", "same", "edited")]
    experts = WAVEFORM | {"logmel": LOGMEL}
    features = build_features(clips, experts, tmp_path / "banks")
    assert features.keys["one"] == features.keys["same"] != features.keys["edited"]
    found = {name: tiny.frames(features, "waveform", name)[100_000, 0] / 32_768 for name in features.keys}
    assert found == pytest.approx({"one": 0.1, "same": 0.1, "edited": 0.2}, abs=1e-4)
    backwards = build_features(clips[::-1], experts, tmp_path / "banks")
    assert backwards.keys == features.keys, "independent of the order"


def test_audio_file_that_changes_during_use_raises_an_error_but_is_not_listed_as_broken(tmp_path):
    path = tmp_path / "one.wav"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, 64_000), 16_000)
    clips = [Clip(id="one", path=str(path), captions=[])]
    features = build_features(clips, WAVEFORM, tmp_path / "banks")
    soundfile.write(path, np.random.default_rng(1).uniform(-0.5, 0.5, 80_000), 16_000)
    for first, count in ((0, 100), (0, 64_000)):
        with pytest.raises(KitError, match="changed"):
            features.banks["waveform"].part(features.keys["one"], first, count)
    again = build_features(clips, WAVEFORM, tmp_path / "banks")
    assert again.banks["waveform"].rows_of(again.keys["one"]) == 80_000
    assert not again.broken


def test_each_process_decodes_only_its_share_of_a_batch(mp3s, tmp_path, monkeypatch):
    clips = read_manifest(mp3s)[:10]
    features = build_features(clips, WAVEFORM, tmp_path / "banks")
    decoded: list[str] = []
    part = Waveforms.part

    def counted(files: Waveforms, key: str, first: int, count: int) -> np.ndarray:
        """Note the file that is decoded."""
        decoded.append(key)
        return part(files, key, first, count)

    monkeypatch.setattr(Waveforms, "part", counted)
    items = [Item(clip, ()) for clip in clips]
    for index in range(2):
        monkeypatch.setattr(loader, "own_rows", lambda chunks: chunks[index])  # noqa: B023
        batch = collate(items, features, chunks=[[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]], pad_to_batch=True)
        assert batch.audio["waveform"].values.shape[0] == 5
    assert sorted(decoded) == sorted(features.keys[clip.id] for clip in clips), "each file once"
