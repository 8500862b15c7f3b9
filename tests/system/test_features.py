"""Frames of clips: computed in groups, broken audio named, resumed after kills."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tiny
import torch
from slow_builds import LOGMEL, build_slowly, computed, digest

from data_tools.audio import content_key, read_audio
from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest
from system.experts.logmel import LogMel
from system.experts.yamnet import Yamnet
from system.features.bank import open_bank
from system.features.build import bank_of, build_features
from system.features.contents import ContentKeys
from system.features.decode import DECODED_AHEAD, DECODERS, GROUP_CLIPS

CPU = torch.device("cpu")


def broken_world(tmp_path: Path) -> list[Clip]:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 6}))
    (tmp_path / "world/development/development 001.wav").write_bytes(b"")
    (tmp_path / "world/development/development 002.wav").unlink()
    soundfile.write(
        tmp_path / "world/development/development 003.wav", np.array([0.1, np.nan] * 500), 16_000, subtype="FLOAT"
    )
    loud = np.full(16_000, 1e30)
    soundfile.write(tmp_path / "world/development/development 004.wav", loud, 16_000, subtype="DOUBLE")
    return clips


def test_broken_audio_is_counted_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clips = broken_world(tmp_path)
    with caplog.at_level("INFO"):
        features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert sorted(features.keys) == [clips[0].id, clips[5].id]
    for n in (1, 2, 3, 4):
        assert f"development {n:03d}.wav" in features.broken[clips[n].id]
    assert "skipped 4 clips that cannot be used" in caplog.text
    with pytest.raises(KitError, match=r"development 00\d\.wav"):
        build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", strict=True)


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (16_000, 8), (44_100, 2), (192_000, 1)])
def test_any_sample_rate_and_channel_count_is_accepted(tmp_path: Path, rate: int, channels: int) -> None:
    clip = read_manifest(tiny.make_world(tmp_path / "world", {"development": 1}))[0]
    t = np.arange(rate) / rate
    wave = np.repeat(np.sin(2 * np.pi * 1000 * t)[:, None] * 0.3, channels, 1)
    soundfile.write(clip.path, wave, rate)
    features = build_features([clip], {"logmel": LOGMEL}, tmp_path / "banks")
    reference = LOGMEL.load(CPU)([(np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000) * 0.3).astype(np.float32)])[0]
    found = features.frames("logmel", clip.id).astype(np.float32)
    assert found.shape == reference.shape
    assert (found[2:-2].reshape(-1, 32).argmax(1) == reference[2:-2].reshape(-1, 32).argmax(1)).all()


def test_frames_depend_on_the_content_of_a_file_and_not_on_its_name(tmp_path: Path) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 4}))
    Path(clips[1].path).write_bytes(Path(clips[0].path).read_bytes())
    build = lambda: build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")  # noqa: E731
    features = build()
    assert len(features.banks["logmel"]) == 3
    assert np.array_equal(features.frames("logmel", clips[0].id), features.frames("logmel", clips[1].id))
    soundfile.write(clips[1].path, tiny.tone(7, 2.0, 99), 16_000)
    again = build()
    assert len(again.banks["logmel"]) == 4
    assert len(again.frames("logmel", clips[1].id)) != len(features.frames("logmel", clips[0].id))


def test_series_stored_by_another_process_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 4}))
    elsewhere = build_features(clips, {"logmel": LOGMEL}, tmp_path / "other")
    computed: list[int] = []

    def load(self: LogMel, device: torch.device):  # type: ignore[no-untyped-def]
        """While the weights are read, another process stores all."""
        expected, bank = elsewhere.banks["logmel"], bank_of(LOGMEL, tmp_path / "banks")
        tiny.store_all(bank, [(key, expected.read(key)) for key in elsewhere.keys.values()])
        return lambda waves: computed.append(1) or [np.zeros((1, 128))]

    monkeypatch.setattr(LogMel, "load", load)
    features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert computed == []
    assert all(len(features.frames("logmel", clip.id)) for clip in clips)


def recorded_calls(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Record the calls of an expert from now on: one list of lengths per call. Its frame is the mean of the wave."""
    calls: list[list[int]] = []

    def load(self: LogMel, device: torch.device):  # type: ignore[no-untyped-def]
        def frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            calls.append([len(wave) for wave in waves])
            return [np.full((1, 128), wave.mean(), np.float32) for wave in waves]

        return frames

    monkeypatch.setattr(LogMel, "load", load)
    return calls


def write_levels(folder: Path, count: int, seconds: float) -> list[Clip]:
    """Clip n is the constant (n + 1) / 256."""
    clips = read_manifest(tiny.make_world(folder, {"development": count}))
    for n, clip in enumerate(clips):
        soundfile.write(clip.path, np.full(round(seconds * 16_000), (n + 1) / 256), 16_000)
    return clips


def test_broken_clip_in_a_group_does_not_affect_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = write_levels(tmp_path / "world", 2 * GROUP_CLIPS + 3, 0.5)
    for n in (0, GROUP_CLIPS, len(clips) - 1):
        Path(clips[n].path).write_bytes(b"no sound %d" % n)
    calls = recorded_calls(monkeypatch)
    features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert calls == [[8000] * GROUP_CLIPS] * 2
    assert set(features.broken) == {clips[n].id for n in (0, GROUP_CLIPS, len(clips) - 1)}
    for n, clip in enumerate(clips):
        if clip.id not in features.broken:
            assert features.frames("logmel", clip.id)[0, 0] == (n + 1) / 256, "frames of another clip"


def test_all_clips_with_the_same_broken_content_are_reported_as_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = write_levels(tmp_path / "world", 4, 0.5)
    for n in (1, 3):
        Path(clips[n].path).write_bytes(b"no sound")
    recorded_calls(monkeypatch)
    features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert sorted(features.keys) == [clips[0].id, clips[2].id]
    for n in (1, 3):
        assert Path(clips[n].path).name in features.broken[clips[n].id]


def test_frames_of_long_clips_are_computed_in_small_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = write_levels(tmp_path / "world", 5, 50)
    calls = recorded_calls(monkeypatch)
    build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert calls == [[800_000] * 3, [800_000] * 2]  # two minutes are reached by the third


def test_only_a_limited_number_of_clips_is_decoded_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = write_levels(tmp_path / "world", 40, 0.1)
    decoded: list[str] = []
    threads: set[str] = set()

    def read(expert: LogMel, path: str) -> np.ndarray:
        decoded.append(path)
        threads.add(threading.current_thread().name)
        return read_audio(path, expert.rate)

    most_ahead = 0

    def load(self: LogMel, device: torch.device):  # type: ignore[no-untyped-def]
        taken = 0

        def frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            nonlocal taken, most_ahead
            taken += len(waves)
            time.sleep(0.05)
            most_ahead = max(most_ahead, len(decoded) - taken)
            return [np.zeros((1, 128), np.float32) for _ in waves]

        return frames

    monkeypatch.setattr(LogMel, "read", read)
    monkeypatch.setattr(LogMel, "load", load)
    build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert sorted(decoded) == sorted(clip.path for clip in clips)
    assert 0 < most_ahead <= DECODED_AHEAD + DECODERS
    assert threading.current_thread().name not in threads


def test_content_keys_are_cached_and_a_damaged_cache_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(b"one")
    keys = []
    for _ in range(2):
        with closing(ContentKeys(tmp_path / "banks")) as content:
            keys.append(content(str(file)))
    assert keys == [hashlib.sha256(b"one").hexdigest()] * 2
    (tmp_path / "banks/contents.sqlite").write_bytes(b"no database, only words" * 50)
    with pytest.raises(KitError, match="delete"):
        ContentKeys(tmp_path / "banks")
    with closing(ContentKeys(tmp_path / "others")):
        pass
    path = tmp_path / "others/contents.sqlite"
    path.write_bytes(path.read_bytes().replace(b"(path text", b"\xffpath text"))  # quoted as the text that it is not
    with pytest.raises(KitError, match="delete"):
        ContentKeys(tmp_path / "others")


@pytest.mark.slow
def test_resumed_build_after_a_kill_computes_no_finished_clip_again(tmp_path: Path) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 200}))
    waves = {content_key(clip.path): digest(read_audio(clip.path, LOGMEL.rate)) for clip in clips}
    banks = tmp_path / "banks"
    banks.mkdir()
    context = multiprocessing.get_context("spawn")
    random = np.random.default_rng(5)
    finished: set[str] = set()  # waves whose frames were stored when a process was killed
    output = 0  # lines of `computed` up to then

    def computed_since() -> set[str]:
        return {wave for _, wave in computed(banks)[output:]}

    for _ in range(5):
        process = context.Process(target=build_slowly, args=(clips, banks))
        process.start()
        while not list(banks.glob("logmel-*/index.jsonl")):
            time.sleep(0.01)
        index = next(banks.glob("logmel-*/index.jsonl"))
        while len(index.read_bytes().splitlines()) <= len(finished) and process.is_alive():
            time.sleep(0.005)
        time.sleep(float(random.uniform(0, 0.25)))
        os.kill(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        process.join()
        bank = open_bank(index.parent, 128, "float16", LOGMEL.identity())
        assert len(bank) > len(finished)
        assert not computed_since() & finished
        finished = {waves[key] for key in list(bank.keys())}
        output = len(computed(banks))
    assert len(finished) < 200, "killed too late to show anything"
    process = context.Process(target=build_slowly, args=(clips, banks))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert computed_since() == set(waves.values()) - finished
    killed = build_features(clips, {"logmel": LOGMEL}, banks)
    whole = build_features(clips, {"logmel": LOGMEL}, tmp_path / "other")
    for clip in clips:
        assert np.array_equal(killed.frames("logmel", clip.id), whole.frames("logmel", clip.id))
    assert json.loads((index.parent / "bank.json").read_text())["dim"] == 128


def test_all_weights_are_opened_before_any_frame_is_computed(tmp_path: Path) -> None:
    manifest = tiny.make_world(tmp_path / "world", {"development": 3})
    (tmp_path / "cut.npz").write_bytes(b"PK")
    logmel = LogMel(kind="logmel", sample_rate=16_000, bands=8, window_seconds=0.04, hop_seconds=0.02, stack=1)
    experts = {"first": logmel, "second": Yamnet(kind="yamnet", weights=str(tmp_path / "cut.npz"))}
    with pytest.raises(KitError, match=r"cut.npz"):
        build_features(read_manifest(manifest), experts, tmp_path / "banks")
    assert not len(open_bank(tmp_path / "banks" / logmel.bank_name(), 8, "float16", logmel.identity()))


def test_changed_audio_of_equal_size_and_time_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Remembered contents are not trusted for a clip whose frames are about to be computed."""
    clips = write_levels(tmp_path / "world", 3, 0.5)
    fine = LogMel(**LOGMEL.model_dump() | {"bands": 16})
    before = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    status = Path(clips[1].path).stat()
    wave = np.full(8_000, 0.25)
    soundfile.write(clips[1].path, wave, 16_000)
    os.utime(clips[1].path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert Path(clips[1].path).stat().st_size == status.st_size
    after = build_features(clips, {"logmel": LOGMEL, "fine": fine}, tmp_path / "banks")
    assert "modification" in caplog.text
    assert after.keys[clips[0].id] == before.keys[clips[0].id]
    assert after.keys[clips[1].id] == content_key(clips[1].path) != before.keys[clips[1].id]
    fresh = build_features(clips, {"logmel": LOGMEL}, tmp_path / "fresh")
    assert np.array_equal(after.frames("logmel", clips[1].id), fresh.frames("logmel", clips[1].id))


def test_verify_rereads_audio_and_recomputes_damaged_frames(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clips = write_levels(tmp_path / "world", 4, 0.5)
    expected = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    frames = expected.banks["logmel"].folder / "frames.bin"
    data = bytearray(frames.read_bytes())
    data[len(data) // 2] ^= 1
    frames.write_bytes(data)
    damaged = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    with pytest.raises(KitError, match="features"):
        [damaged.frames("logmel", clip.id) for clip in clips]
    status = Path(clips[3].path).stat()
    shutil.copyfile(clips[0].path, clips[3].path)
    os.utime(clips[3].path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with caplog.at_level("INFO"):
        mended = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", verify=True)
    loss = [
        record
        for record in caplog.records
        if "the bank has 3 series, and 1 damaged series were removed" in record.message
    ]
    assert [record.levelname for record in loss] == ["WARNING"], "-q does not silence it"
    assert "computing the frames of 1 clip\n" in caplog.text, "its new content has frames already"
    assert mended.keys[clips[3].id] == mended.keys[clips[0].id] != expected.keys[clips[3].id]
    for clip in clips[:3]:
        found, before = mended.frames("logmel", clip.id), expected.frames("logmel", clip.id)
        assert np.allclose(found, before, rtol=2e-3), "to the rounding of float16: other clips shared its group"
    again = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", verify=True)
    assert all(len(again.frames("logmel", clip.id)) for clip in clips)


def test_file_with_new_modification_time_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    with closing(ContentKeys(tmp_path / "keys")) as keys:
        before = keys(str(tmp_path / "a"))
    (tmp_path / "a").write_bytes(b"two")
    os.utime(tmp_path / "a", ns=(1, 1))
    with closing(ContentKeys(tmp_path / "keys")) as keys:
        assert keys(str(tmp_path / "a")) == hashlib.sha256(b"two").hexdigest() != before


def _remember(paths: list[str], banks: Path, number: int) -> None:
    with closing(ContentKeys(banks)) as keys:
        for path in [*paths[number::3], *paths]:
            assert keys(path) == hashlib.sha256(Path(path).name.encode()).hexdigest()


@pytest.mark.slow
def test_content_keys_are_cached_by_concurrent_processes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.wav" for n in range(200)]
    for path in paths:
        path.write_bytes(path.name.encode())
    context = multiprocessing.get_context("spawn")
    arguments = [([str(path) for path in paths], tmp_path / "banks", number) for number in range(3)]
    processes = [context.Process(target=_remember, args=one) for one in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    with closing(sqlite3.connect(tmp_path / "banks" / "contents.sqlite")) as store:
        assert store.execute("select count(*), count(distinct sha256) from files").fetchall() == [(200, 200)]


def test_processes_start_reading_at_different_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = write_levels(tmp_path / "world", 6, 0.5)
    read: list[str] = []
    monkeypatch.setattr(ContentKeys, "read_key", lambda self, path: read.append(path) or content_key(path))
    for rank, first in (("0", 0), ("1", 2), ("2", 4), ("3", 0), ("x", 0)):
        read.clear()
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "3")
        features = build_features(clips, {}, tmp_path / f"banks {rank}")
        assert read == [clip.path for clip in [*clips[first:], *clips[:first]]]
        assert list(features.keys) == [clip.id for clip in clips]


def test_clip_keeps_its_frames_when_an_identical_audio_file_of_another_clip_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clips = write_levels(tmp_path / "world", 3, 0.5)
    shutil.copyfile(clips[0].path, clips[1].path)
    with closing(ContentKeys(tmp_path / "banks")) as content:
        before = [content(clip.path) for clip in clips]
    status = Path(clips[0].path).stat()
    soundfile.write(clips[0].path, np.full(8_000, 0.25), 16_000)
    os.utime(clips[0].path, ns=(status.st_atime_ns, status.st_mtime_ns))
    features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert caplog.text.count("content has changed") == 1
    assert features.keys[clips[1].id] == before[1]
    assert features.keys[clips[0].id] == content_key(clips[0].path)
    assert len(features.banks["logmel"]) == 3
    assert all(len(features.frames("logmel", clip.id)) for clip in clips)
