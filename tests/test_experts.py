"""Experts against their goldens and definitions, and the bank that keeps their frames."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import filled
import numpy as np
import pytest
import soundfile
import tiny
import torch

from data_tools.audio import content_key, read_audio
from data_tools.manifest import Clip, read_manifest
from system.__main__ import main
from system.bank import Bank, open_bank
from system.errors import KitError
from system.expert_table import table, usual
from system.experts import Expert
from system.experts.audioset import log_mel, patches
from system.experts.logmel import LogMel
from system.experts.network import by_rows, exact, in_pieces, of_one_length
from system.experts.yamnet import OFFSET, PATCH_HOP, Yamnet, load_network
from system.frames import DECODED_AHEAD, DECODERS, GROUP_CLIPS, ContentKeys, build_features

LOGMEL = LogMel(kind="logmel", sample_rate=16_000, bands=32, window_seconds=0.04, hop_seconds=0.02, stack=4)
CPU = torch.device("cpu")
YAMNET_FILE = "data/yamnet/yamnet_layers_float32_dequantised.npz"


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


# YAMNet


def test_yamnet_network_gives_the_public_embeddings(shared: Path) -> None:
    golden = np.load(shared / "golden/yamnet_esc10.npz")
    embedding, scores = load_network(shared / YAMNET_FILE, CPU)(golden["log_mel"])
    assert cosine(embedding, golden["embedding"]).min() >= 0.999
    assert np.abs(scores - golden["scores"]).max() < 0.03  # int8 against float32


def test_yamnet_front_end_is_the_public_one_where_int8_resolves_it(shared: Path) -> None:
    golden = np.load(shared / "golden/yamnet_esc10.npz")
    differences = []
    for name, expected in zip(golden["file_name"], golden["log_mel"], strict=True):
        wave, rate = soundfile.read(shared / "data/esc10/audio" / str(name), dtype="float32")
        assert rate == 16_000
        wave = np.pad(wave[:15_600], (0, max(0, 15_600 - len(wave))))
        found = log_mel(wave, OFFSET)
        assert found.shape == (96, 64)
        loud = expected > -3
        differences.append(np.abs(found - expected)[loud])
    assert np.median(np.concatenate(differences)) < 0.01


def test_yamnet_log_mel_of_a_tone_by_the_definition() -> None:
    t = np.arange(16_000) / 16_000
    wave = np.sin(2 * np.pi * 1000 * t).astype(np.float32)
    column = log_mel(wave, OFFSET)[0]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    spectrum = np.abs(
        [np.sum(wave[:400] * window * np.exp(-2j * np.pi * k * np.arange(400) / 512)) for k in range(257)]
    )
    hertz_to_mel = lambda f: 1127 * np.log(1 + f / 700)  # noqa: E731
    edges = [hertz_to_mel(125) + i * (hertz_to_mel(7500) - hertz_to_mel(125)) / 65 for i in range(66)]
    for band in (10, 25, 26, 63):
        low, centre, high = edges[band : band + 3]
        total = 0.0
        for k in range(1, 257):
            mel = hertz_to_mel(k * 8000 / 256)
            total += spectrum[k] * max(0.0, min((mel - low) / (centre - low), (high - mel) / (high - centre)))
        assert column[band] == pytest.approx(np.log(total + 0.001), abs=1e-3)


def test_yamnet_patches_by_hand() -> None:
    columns = np.repeat(np.arange(200, dtype=np.float32)[:, None], 64, 1)
    found = patches(columns, PATCH_HOP)
    assert [(int(p[0, 0]), int(p[-1, 0])) for p in found] == [(0, 95), (48, 143), (96, 191)]


@pytest.mark.parametrize("samples", [1, 399, 15_600, 15_601, 80_000])
def test_yamnet_frames_of_any_length(shared: Path, samples: int) -> None:
    expert = Yamnet(kind="yamnet", weights=str(shared / YAMNET_FILE))
    frames = expert.load(CPU)([np.full(samples, 0.1, np.float32)])[0]
    assert frames.shape == (max(1, 1 + ((samples - 400) // 160 + 1 - 96) // 48), 1024)
    assert np.isfinite(frames).all()


def test_missing_and_wrong_yamnet_files(tmp_path: Path) -> None:
    missing = Yamnet(kind="yamnet", weights=str(tmp_path / "none.npz"))
    with pytest.raises(KitError, match=r"no weight file .*none\.npz.*yamnet\.tflite.*put it there"):
        missing.key()
    (tmp_path / "text.npz").write_text("no weights")
    with pytest.raises(KitError, match="is not the 31 layers"):
        load_network(tmp_path / "text.npz", CPU)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut")
    np.savez(tmp_path / "few.npz", **{"03_w": np.zeros(3)})
    for name in ("cut", "few"):
        with pytest.raises(KitError, match="is not the 31 layers"):
            load_network(tmp_path / f"{name}.npz", CPU)
    every = {f"{layer:02d}_{part}": np.zeros(3) for layer in range(3, 31) for part in "wb"}
    np.savez(tmp_path / "other.npz", **every | {"03_w": np.zeros(3), "30_w": np.zeros(3)})
    with pytest.raises(KitError, match="other shapes"):
        load_network(tmp_path / "other.npz", CPU)


# log-mel


def test_logmel_of_a_tone_peaks_in_its_band_and_of_silence_is_the_floor() -> None:
    t = np.arange(16_000) / 16_000
    frames = LOGMEL.load(CPU)([np.sin(2 * np.pi * 2000 * t).astype(np.float32), np.zeros(16_000, np.float32)])
    centres = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 34)[1:-1] / 2595) - 1)
    bands = frames[0].reshape(-1, 32)
    assert np.abs(centres[bands[10].argmax()] - 2000) < 150
    assert np.allclose(frames[1], (np.log(1e-5) + 6) / 4, atol=1e-5)


def test_logmel_columns_by_the_definition() -> None:
    wave = tiny.tone(3, 0.5, 1)
    columns = LOGMEL.load(CPU)([wave])[0].reshape(-1, 32)
    window = np.zeros(1024)
    window[192:832] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(640) / 640)
    padded = np.pad(wave.astype(np.float64), 512, "reflect")
    basis = filled.triangles(filled.htk_edges(32, 0, 8000), 16_000, 1024)
    for column in (0, 7, 24):
        power = np.abs(np.fft.rfft(padded[320 * column :][:1024] * window)) ** 2
        assert np.allclose(columns[column], (np.log(basis @ power + 1e-5) + 6) / 4, atol=2e-4)


@pytest.mark.parametrize("samples", [1, 100, 640, 16_000])
def test_logmel_counts_frames(samples: int) -> None:
    frames = LOGMEL.load(CPU)([np.full(samples, 0.1, np.float32)])[0]
    columns = 1 + max(samples, 1024) // 320
    assert frames.shape == (-(-columns // 4), 128)


def test_a_clips_frames_do_not_depend_on_its_neighbours() -> None:
    waves = [tiny.tone(p, 0.5 + p / 3, p) for p in range(4)]
    together = LOGMEL.load(CPU)(waves)
    for wave, frames in zip(waves, together, strict=True):
        assert np.array_equal(LOGMEL.load(CPU)([wave])[0], frames)


def test_the_key_follows_every_setting_but_not_the_place_of_the_weights(shared: Path, tmp_path: Path) -> None:
    assert LOGMEL.key() != LOGMEL.model_copy(update={"bands": 33}).key()
    there = shared / YAMNET_FILE
    copy = tmp_path / "copy.npz"
    copy.write_bytes(there.read_bytes())
    a, b = (Yamnet(kind="yamnet", weights=str(path)).key() for path in (there, copy))
    assert a == b
    copy.write_bytes(there.read_bytes() + b"x")
    assert Yamnet(kind="yamnet", weights=str(copy)).key() != a


# running networks in batches


def test_rows_are_computed_in_batches_whichever_series_they_are_of() -> None:
    sizes: list[int] = []

    def twice(rows: np.ndarray) -> np.ndarray:
        sizes.append(len(rows))
        return 2 * rows[:, 0]

    wholes = [np.arange(n * 3.0).reshape(n, 3) for n in (1, 5, 2, 7)]
    found = by_rows(wholes, 4, twice)
    assert sizes == [4, 4, 4, 3]
    assert [len(one) for one in found] == [1, 5, 2, 7]
    assert all(np.array_equal(one, 2 * whole[:, 0]) for one, whole in zip(found, wholes, strict=True))


def test_places_of_one_length_come_together() -> None:
    assert list(of_one_length([5, 3, 5, 5, 9, 3], 10)) == [[1, 5], [0, 2], [3], [4]]
    assert list(of_one_length([20], 10)) == [[0]]


@pytest.mark.parametrize("size", [4, 5, 7, 8, 9, 23, 24, 40, 41])
@pytest.mark.parametrize("is_ceiled", [False, True])
def test_pieces_give_the_whole(size: int, is_ceiled: bool) -> None:
    """Means of 4 over a sum of 9 neighbours: an output sees one output to either side."""

    def network(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape[2])
        near = torch.nn.functional.avg_pool1d(x, 9, 1, 4, count_include_pad=True)
        return torch.nn.functional.avg_pool1d(near, 4, 4, ceil_mode=is_ceiled)

    x = torch.arange(float(size)).square()[None, None]
    seen: list[int] = []
    whole = network(x)
    for most in (1, 2, 5):
        seen.clear()
        assert torch.allclose(in_pieces(network, x, 2, 4, 1, most), whole)
        assert max(seen) <= 4 * (most + 2) + 3
    if size >= 24:
        assert not torch.allclose(in_pieces(network, x, 2, 4, 0, 2), whole)


def test_arithmetic_is_exact_inside_and_as_it_was_outside() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        with exact():
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.is_inference_mode_enabled()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


# the table


def test_the_table_names_every_kind_with_its_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from typing import get_args

    kinds = {get_args(one.model_fields["kind"].annotation)[0] for one in get_args(get_args(Expert)[0])}
    assert set(usual(tmp_path)) == kinds
    assert all(expert.cost > 0 for expert in usual(tmp_path).values())
    (tmp_path / "H.pth.tar").write_bytes(b"weights")
    text = table(usual(tmp_path))
    for expert in usual(tmp_path).values():
        assert f"{expert.parameters:,}" in text
        for name, path in expert.weight_files().items():
            line = next(line for line in text.splitlines() if line.startswith(f"{expert.kind}.{name} "))
            assert line.split()[1:3] == [str(path), "found" if path.name == "H.pth.tar" else "MISSING"]
            assert expert.published().get(name, "yamnet.tflite") in line
    assert main(["experts"]) == 0
    assert "data/weights/vggish-10086976.pth" in capsys.readouterr().out


def test_the_table_of_a_recipe_has_its_experts(capsys: pytest.CaptureFixture[str], tmp_path: Path, root: Path) -> None:
    assert main(["experts", str(root / "recipes/esc_scenes.yaml")]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert names == ["expert", "yamnet", "weights", "yamnet.weights"]
    assert main(["experts", str(tmp_path / "none.yaml")]) == 1
    assert "no such recipe" in capsys.readouterr().err


def test_the_table_imports_no_torch(root: Path) -> None:
    code = (
        "import sys; from system.__main__ import main; assert not main(['experts']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)


# the bank


def series(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(1 + n % 5, 6)).astype(np.float32)


def fill(bank: Bank, keys: range) -> list[str]:
    return list(bank.add((str(n), series(n)) for n in keys))


def test_bank_gives_back_what_was_stored(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b", 6, "float16", {"a": 1})
    assert fill(bank, range(20)) == [str(n) for n in range(20)]
    assert fill(bank, range(10, 25)) == [str(n) for n in range(20, 25)]
    for again in (bank, open_bank(tmp_path / "b", 6, "float16", {"a": 1})):
        assert len(again) == 25
        for n in range(25):
            assert np.array_equal(again.read(str(n)), series(n).astype(np.float16))
    with pytest.raises(KeyError):
        bank.read("none")


@pytest.mark.parametrize("cut", ["index", "index line", "frames", "both"])
def test_a_half_written_bank_keeps_what_is_whole(tmp_path: Path, cut: str) -> None:
    bank = open_bank(tmp_path / "b", 6, "float16", {})
    fill(bank, range(10))
    index, frames = tmp_path / "b/index.jsonl", tmp_path / "b/frames.bin"
    kept = 9
    if cut == "index":
        index.write_bytes(index.read_bytes()[:-5])
    elif cut == "index line":
        index.write_bytes(index.read_bytes() + b'{"key": "x", "fi')
        frames.write_bytes(frames.read_bytes() + b"123456789")
        kept = 10
    else:
        frames.write_bytes(frames.read_bytes()[:-3])
        if cut == "both":
            index.write_bytes(index.read_bytes()[:-1])
    again = open_bank(tmp_path / "b", 6, "float16", {})
    assert len(again) == kept
    assert all(np.array_equal(again.read(str(n)), series(n).astype(np.float16)) for n in range(kept))
    assert fill(again, range(12)) == [str(n) for n in range(kept, 12)]
    final = open_bank(tmp_path / "b", 6, "float16", {})
    assert all(np.array_equal(final.read(str(n)), series(n).astype(np.float16)) for n in range(12))


def test_bank_refuses_what_something_else_made(tmp_path: Path) -> None:
    open_bank(tmp_path / "b", 6, "float16", {"made by": "a"})
    for dim, dtype, identity in ((7, "float16", {"made by": "a"}), (6, "float16", {"made by": "b"})):
        with pytest.raises(KitError, match="was made by"):
            open_bank(tmp_path / "b", dim, dtype, identity)
    (tmp_path / "b/bank.json").write_text("{")
    with pytest.raises(KitError, match="is damaged; delete"):
        open_bank(tmp_path / "b", 6, "float16", {"made by": "a"})


def test_bank_refuses_frames_of_another_shape_and_keeps_the_rest(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b", 6, "float16", {})
    fill(bank, range(3))
    for wrong in (np.zeros((2, 5)), np.zeros((0, 6)), np.zeros(6)):
        with pytest.raises(KitError, match="do not fit"):
            list(bank.add([("w", wrong)]))
    assert len(open_bank(tmp_path / "b", 6, "float16", {})) == 3


def test_a_second_writer_waits_and_sees_what_the_first_stored(tmp_path: Path) -> None:
    bank, second = (open_bank(tmp_path / "b", 6, "float16", {}) for _ in range(2))
    asked: list[int] = []

    def offered() -> Iterator[tuple[str, np.ndarray]]:
        for n in range(5):
            asked.append(n)
            yield str(n), series(n)

    writing = bank.add((str(n), series(n)) for n in range(3))
    next(writing)
    added: list[str] = []
    thread = threading.Thread(target=lambda: added.extend(second.add(offered())))
    thread.start()
    time.sleep(0.2)
    assert asked == [], "the second writer did not wait"
    assert list(writing) == ["1", "2"]
    thread.join()
    assert added == ["3", "4"]
    final = open_bank(tmp_path / "b", 6, "float16", {})
    assert all(np.array_equal(final.read(str(n)), series(n).astype(np.float16)) for n in range(5))


# features of clips


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


def test_broken_audio_is_named_counted_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clips = broken_world(tmp_path)
    with caplog.at_level("INFO"):
        features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", quiet=True)
    assert sorted(features.keys) == [clips[0].id, clips[5].id]
    for n in (1, 2, 3, 4):
        assert f"development {n:03d}.wav" in features.broken[clips[n].id]
    assert "4 of 6 clips have broken audio and are left out" in caplog.text
    with pytest.raises(KitError, match=r"development 00\d\.wav"):
        build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", strict=True, quiet=True)


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (16_000, 8), (44_100, 2), (192_000, 1)])
def test_any_rate_and_channel_count_goes_in(tmp_path: Path, rate: int, channels: int) -> None:
    clip = read_manifest(tiny.make_world(tmp_path / "world", {"development": 1}))[0]
    t = np.arange(rate) / rate
    wave = np.repeat(np.sin(2 * np.pi * 1000 * t)[:, None] * 0.3, channels, 1)
    soundfile.write(clip.path, wave, rate)
    features = build_features([clip], {"logmel": LOGMEL}, tmp_path / "banks", quiet=True)
    reference = LOGMEL.load(CPU)([(np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000) * 0.3).astype(np.float32)])[0]
    found = features.frames("logmel", clip.id).astype(np.float32)
    assert found.shape == reference.shape
    assert (found[2:-2].reshape(-1, 32).argmax(1) == reference[2:-2].reshape(-1, 32).argmax(1)).all()


def test_content_decides_not_name_and_a_changed_file_is_seen(tmp_path: Path) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 4}))
    Path(clips[1].path).write_bytes(Path(clips[0].path).read_bytes())
    build = lambda: build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", quiet=True)  # noqa: E731
    features = build()
    assert len(features.banks["logmel"]) == 3
    assert np.array_equal(features.frames("logmel", clips[0].id), features.frames("logmel", clips[1].id))
    soundfile.write(clips[1].path, tiny.tone(7, 2.0, 99), 16_000)
    again = build()
    assert len(again.banks["logmel"]) == 4
    assert len(again.frames("logmel", clips[1].id)) != len(features.frames("logmel", clips[0].id))


def test_what_another_process_stored_meanwhile_is_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 4}))
    elsewhere = build_features(clips, {"logmel": LOGMEL}, tmp_path / "other", quiet=True)
    add = Bank.add

    def add_after_another(self: Bank, series: Iterator[tuple[str, np.ndarray]]) -> Iterator[str]:
        twin = Bank(self.folder, self.dim, self.dtype)
        for _ in add(twin, [(key, elsewhere.banks["logmel"].read(key)) for key in elsewhere.keys.values()]):
            pass
        return add(self, series)

    computed: list[int] = []
    monkeypatch.setattr(Bank, "add", add_after_another)
    monkeypatch.setattr(LogMel, "load", lambda self, device: lambda waves: computed.append(1) or [np.zeros((1, 128))])
    features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", quiet=True)
    assert computed == []
    assert all(len(features.frames("logmel", clip.id)) for clip in clips)


def recorded_calls(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What an expert is asked for from now on: a list of lengths a call. Its frame is the mean of the wave."""
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


def test_clips_are_computed_in_groups_and_a_broken_one_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = write_levels(tmp_path / "world", 2 * GROUP_CLIPS + 3, 0.5)
    for n in (0, GROUP_CLIPS, len(clips) - 1):
        Path(clips[n].path).write_bytes(b"no sound %d" % n)
    calls = recorded_calls(monkeypatch)
    features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", quiet=True)
    assert calls == [[8000] * GROUP_CLIPS] * 2
    assert set(features.broken) == {clips[n].id for n in (0, GROUP_CLIPS, len(clips) - 1)}
    for n, clip in enumerate(clips):
        if clip.id not in features.broken:
            assert features.frames("logmel", clip.id)[0, 0] == (n + 1) / 256, "frames of another clip"


def test_every_clip_of_a_broken_content_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = write_levels(tmp_path / "world", 4, 0.5)
    for n in (1, 3):
        Path(clips[n].path).write_bytes(b"no sound")
    recorded_calls(monkeypatch)
    features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", quiet=True)
    assert sorted(features.keys) == [clips[0].id, clips[2].id]
    for n in (1, 3):
        assert Path(clips[n].path).name in features.broken[clips[n].id]


def test_a_group_of_long_clips_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = write_levels(tmp_path / "world", 5, 50)
    calls = recorded_calls(monkeypatch)
    build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", quiet=True)
    assert calls == [[800_000] * 3, [800_000] * 2]  # two minutes are reached by the third


def test_clips_are_decoded_ahead_but_not_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = write_levels(tmp_path / "world", 40, 0.1)
    decoded: list[str] = []
    threads: set[str] = set()

    def read(path: str, rate: int) -> np.ndarray:
        decoded.append(path)
        threads.add(threading.current_thread().name)
        return read_audio(path, rate)

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

    monkeypatch.setattr("system.frames.read_audio", read)
    monkeypatch.setattr(LogMel, "load", load)
    build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", quiet=True)
    assert sorted(decoded) == sorted(clip.path for clip in clips)
    assert 0 < most_ahead <= DECODED_AHEAD + DECODERS
    assert threading.current_thread().name not in threads


def test_content_keys_are_remembered_and_a_damaged_store_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(b"one")
    keys = []
    for _ in range(2):
        with closing(ContentKeys(tmp_path / "banks")) as content:
            keys.append(content(str(file)))
    assert keys == [hashlib.sha256(b"one").hexdigest()] * 2
    (tmp_path / "banks/contents.sqlite").write_bytes(b"no database, only words" * 50)
    with pytest.raises(KitError, match="is damaged .* delete it"):
        ContentKeys(tmp_path / "banks")


def _digest(wave: np.ndarray) -> str:
    return hashlib.sha256(wave.tobytes()).hexdigest()


def _build_slowly(clips: list[Clip], banks: Path) -> None:
    original = LogMel.load

    def slow(self: LogMel, device: torch.device):  # type: ignore[no-untyped-def]
        frames = original(self, device)

        def told(waves: list[np.ndarray]) -> list[np.ndarray]:
            with (banks / "computed").open("a") as file:
                file.writelines(f"{_digest(wave)}\n" for wave in waves)
            time.sleep(0.02 * len(waves))
            return frames(waves)

        return told

    LogMel.load = slow  # type: ignore[method-assign]
    build_features(clips, {"logmel": LOGMEL}, banks, quiet=True)


@pytest.mark.slow
def test_a_killed_build_computes_no_finished_clip_again(tmp_path: Path) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 200}))
    waves = {content_key(clip.path): _digest(read_audio(clip.path, LOGMEL.rate)) for clip in clips}
    banks = tmp_path / "banks"
    banks.mkdir()
    context = multiprocessing.get_context("spawn")
    random = np.random.default_rng(5)
    finished: set[str] = set()  # waves whose frames were stored when a process was killed
    told = 0  # lines of `computed` up to then

    def computed_since() -> set[str]:
        return set((banks / "computed").read_text().splitlines()[told:])

    for _ in range(5):
        process = context.Process(target=_build_slowly, args=(clips, banks))
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
        finished = {waves[key] for key in bank.rows}
        told = len((banks / "computed").read_text().splitlines())
    assert len(finished) < 200, "killed too late to show anything"
    process = context.Process(target=_build_slowly, args=(clips, banks))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert computed_since() == set(waves.values()) - finished
    killed = build_features(clips, {"logmel": LOGMEL}, banks, quiet=True)
    whole = build_features(clips, {"logmel": LOGMEL}, tmp_path / "other", quiet=True)
    for clip in clips:
        assert np.array_equal(killed.frames("logmel", clip.id), whole.frames("logmel", clip.id))
    assert json.loads((index.parent / "bank.json").read_text())["dim"] == 128


def test_all_weights_are_opened_before_any_frame_is_computed(tmp_path: Path) -> None:
    manifest = tiny.make_world(tmp_path / "world", {"development": 3})
    (tmp_path / "cut.npz").write_bytes(b"PK")
    logmel = LogMel(kind="logmel", sample_rate=16_000, bands=8, window_seconds=0.04, hop_seconds=0.02, stack=1)
    experts = {"first": logmel, "second": Yamnet(kind="yamnet", weights=str(tmp_path / "cut.npz"))}
    with pytest.raises(KitError, match="cut.npz"):
        build_features(read_manifest(manifest), experts, tmp_path / "banks", quiet=True)
    assert not len(open_bank(tmp_path / "banks" / logmel.key(), 8, "float16", logmel.identity()))


@pytest.mark.slow
def test_ten_minutes_of_audio(tmp_path: Path, shared: Path) -> None:
    wave = np.random.default_rng(0).normal(0, 0.05, 600 * 16_000).astype(np.float32)
    assert LOGMEL.load(CPU)([wave])[0].shape == (7501, 128)
    frames = Yamnet(kind="yamnet", weights=str(shared / YAMNET_FILE)).load(CPU)([wave])[0]
    assert frames.shape[0] == 1 + ((600 * 16_000 - 400) // 160 + 1 - 96) // 48
    assert np.isfinite(frames).all()
