"""Waveforms that are decoded from audio files for each batch."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import augmented
import numpy as np
import pytest
import soundfile
import tiny
from outcomes import digest, lines
from safetensors.numpy import load_file
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
from system.features.extract import Waveforms, build_features

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.collapses]  # batch norms that have seen a few steps

WAVEFORM = {"waveform": Waveform(kind="waveform", sample_rate=16_000)}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The tiny world as MP3 and FLAC files at 16 and 44.1 kHz, 1 to 7 s, longer than a crop."""
    folder = tmp_path_factory.mktemp("published")
    return tiny.make_compressed_world(folder / "world", {"development": 12, "validation": 6, "evaluation": 10})


@pytest.fixture
def mp3s(published, tmp_path):
    """A copy of the published files."""
    shutil.copytree(published.parent, tmp_path / "world")
    return tmp_path / "world" / published.name


def recipe(manifest: Path, folder: Path, **changes: Any) -> Path:
    """A recipe with a small Cnn14 on crops of 0.8 s."""
    folder.mkdir(exist_ok=True)
    stage = tiny.stage(epochs=2, steps_per_epoch=3, **changes)
    content = tiny.recipe(manifest, folder, only=stage)
    content["model"]["audio"] = tiny.panns(max_seconds=0.8)
    return tiny.write_recipe(folder / "recipe.yaml", content)


def trained(path: Path, out: Path) -> dict[str, np.ndarray]:
    """Train a recipe. Returns: The weights after its last epoch."""
    assert main(["run", "--until=training", str(path), "--out", str(out)]) == 0
    return load_file(out / "only/e0002.safetensors")


def test_audio_samples_decoded_piece_by_piece_differ_by_at_most_one_16_bit_step(mp3s, tmp_path):
    clips, files = read_manifest(mp3s), build_features(read_manifest(mp3s), WAVEFORM, tmp_path / "banks")
    draw, differing, samples = np.random.default_rng(0), 0, 0
    for clip in clips:
        whole = tiny.frames(files, "waveform", clip.id)
        assert np.array_equal(to_int16(read_audio(clip.path, 16_000)), whole)
        first = int(draw.integers(0, len(whole) - 8000))
        part = files.banks["waveform"].part(files.keys[clip.id], first, 8000)
        steps = np.abs(part.astype(int) - whole[first : first + 8000])
        assert steps.max() <= 1
        differing, samples = differing + int((steps > 0).sum()), samples + steps.size
    print(f"{differing} of {samples:,} samples differ by one 16-bit step")
    assert differing < samples / 1000


@pytest.mark.slow
def test_killed_and_resumed_run_on_audio_files_matches_uninterrupted_run(mp3s, tmp_path, monkeypatch):
    tiny.narrowed(monkeypatch)
    path = recipe(mp3s, tmp_path / "files")
    trained(path, tmp_path / "run")
    augmented.killed_and_resumed(path, tmp_path / "again", 5, monkeypatch)
    assert digest(tmp_path / "again") == digest(tmp_path / "run")
    assert lines(tmp_path / "again") == lines(tmp_path / "run")


def test_run_that_reads_audio_files_ranks_and_embeds_and_skips_damaged_files(mp3s, tmp_path, monkeypatch, caplog):
    tiny.narrowed(monkeypatch)
    run = tmp_path / "run"
    assert main(["run", str(recipe(mp3s, tmp_path / "files")), "--out", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    assert result["rank"]["evaluation"]["mAP@10"] > 0.1
    queries = tmp_path / "queries.csv"
    queries.write_text("caption\na low tone\n")
    paths = [Path(one.path) for one in read_manifest(mp3s) if one.split == "evaluation"]
    ranked = ["rank", run, paths[0].parent, queries, "--out", tmp_path / "scores.npy", "--cache", tmp_path / "cache"]
    assert main([*map(str, ranked)]) == 0
    assert np.load(tmp_path / "scores.npy").shape == (1, 10)
    assert not list(tmp_path.rglob("waveform-*"))
    damage(next(path for path in paths if path.suffix == ".flac"))
    assert main([*map(str, ranked[:-1]), str(tmp_path / "new")]) == 0  # all are embedded again
    assert np.load(tmp_path / "scores.npy").shape == (1, 9)
    assert "skipped 1 clip that cannot be used" in caplog.text


def test_damaged_audio_file_is_named_when_it_ends_a_run_and_skipped_by_the_next(
    mp3s, tmp_path, monkeypatch, caplog, capsys
):
    tiny.narrowed(monkeypatch)
    path = recipe(mp3s, tmp_path / "files")
    damaged = next(Path(clip.path) for clip in read_manifest(mp3s) if clip.path.endswith("development 002.flac"))
    damage(damaged)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 1
    assert re.search(
        rf"error: {re.escape(str(damaged))}: .*; start a new run, which skips this file", capsys.readouterr().err
    )
    caplog.clear()
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "next")]) == 0
    assert "skipped 1 clip that cannot be used" in caplog.text


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


def damage(path: Path) -> None:
    """Overwrite the middle third of a file with zeros."""
    content = path.read_bytes()
    third = len(content) // 3
    path.write_bytes(content[:third] + bytes(third) + content[2 * third :])


def test_run_refuses_a_damaged_audio_file_of_a_rank_entry_before_training_starts(mp3s, tmp_path, monkeypatch, capsys):
    tiny.narrowed(monkeypatch)
    path = next(Path(one.path) for one in read_manifest(mp3s) if one.split == "evaluation" and "flac" in one.path)
    damage(path)
    assert main(["run", str(recipe(mp3s, tmp_path / "files")), "--out", str(tmp_path / "run")]) == 1
    assert "evaluation" in capsys.readouterr().err
    assert not (tmp_path / "run/only").exists(), "nothing is trained"
