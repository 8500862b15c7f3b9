"""Frames of clips: computed in groups, broken audio named, resumed after kills."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tiny
import torch
import yaml
from slow_builds import LOGMEL

from data_tools.__main__ import main as data_tools
from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest
from system.__main__ import main
from system.audio.logmel import LogMel
from system.audio.yamnet import Yamnet
from system.features.extract import GROUP_CLIPS, bank_of, build_features
from system.ranking.embedding import require_readable

CPU = torch.device("cpu")


def test_broken_audio_is_counted_and_left_out(tmp_path, caplog):
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 6}))
    Path(clips[1].path).write_bytes(b"")
    Path(clips[2].path).unlink()
    soundfile.write(clips[3].path, np.array([0.1, np.nan] * 500), 16_000, subtype="FLOAT")
    soundfile.write(clips[4].path, np.full(16_000, 1e30), 16_000, subtype="DOUBLE")
    with caplog.at_level("INFO"):
        features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert sorted(features.keys) == [clips[0].id, clips[5].id]
    for n in (1, 2, 3, 4):
        assert f"development {n:03d}.wav" in features.broken[clips[n].id]
    assert "skipped 4 clips that cannot be used" in caplog.text
    with pytest.raises(KitError, match=r"development 00\d\.wav"):
        require_readable(clips, features.broken, "clips", every=True)


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (16_000, 8), (192_000, 2)])
def test_any_sample_rate_and_channel_count_is_accepted(tmp_path, rate, channels):
    tone = lambda rate: (0.3 * np.sin(2 * np.pi * 1000 * np.arange(rate) / rate)).astype(np.float32)  # noqa: E731
    clip = Clip(id="one", path=str(tmp_path / "one.wav"), captions=[])
    soundfile.write(clip.path, np.repeat(tone(rate)[:, None], channels, 1), rate)
    features = build_features([clip], {"logmel": LOGMEL}, tmp_path / "banks")
    (reference,) = LOGMEL.load(CPU)([tone(16_000)])
    found = tiny.frames(features, "logmel", clip.id).astype(np.float32)
    assert found.shape == reference.shape
    assert (found[2:-2].reshape(-1, 32).argmax(1) == reference[2:-2].reshape(-1, 32).argmax(1)).all()


def test_series_stored_by_another_process_are_not_computed_again(tmp_path, monkeypatch):
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
    assert all(len(tiny.frames(features, "logmel", clip.id)) for clip in clips)


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
    return [replace(clip, seconds=seconds) for clip in clips]


def test_broken_clip_in_a_group_does_not_affect_the_others(tmp_path, monkeypatch):
    clips = write_levels(tmp_path / "world", 2 * GROUP_CLIPS + 3, 0.1)
    broken = {0: b"no sound", GROUP_CLIPS: b"another", len(clips) - 1: b"no sound"}
    for n, content in broken.items():
        Path(clips[n].path).write_bytes(content)
    calls = recorded_calls(monkeypatch)
    features = build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert sum(map(len, calls)) == len(clips) - 3
    assert max(map(len, calls)) <= GROUP_CLIPS
    for n, clip in enumerate(clips):
        if n in broken:
            assert Path(clip.path).name in features.broken[clip.id]
        else:
            assert tiny.frames(features, "logmel", clip.id)[0, 0] == (n + 1) / 256, "frames of another clip"


def test_frames_of_long_clips_are_computed_in_small_groups(tmp_path, monkeypatch):
    clips = write_levels(tmp_path / "world", 5, 50)
    calls = recorded_calls(monkeypatch)
    build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks")
    assert sorted(calls) == [[800_000] * 2, [800_000] * 3]  # two minutes are reached by the third


def test_all_weights_are_opened_before_any_frame_is_computed(tmp_path):
    manifest = tiny.make_world(tmp_path / "world", {"development": 3})
    (tmp_path / "cut.npz").write_bytes(b"PK")
    logmel = LogMel(kind="logmel", sample_rate=16_000, bands=8, window_seconds=0.04, hop_seconds=0.02, stack=1)
    experts = {"first": logmel, "second": Yamnet(kind="yamnet", weights=str(tmp_path / "cut.npz"))}
    with pytest.raises(KitError, match=r"cut.npz"):
        build_features(read_manifest(manifest), experts, tmp_path / "banks")
    assert not bank_of(logmel, tmp_path / "banks").places


@pytest.mark.slow
def test_recipe_for_own_features_learns_when_a_query_is_heard(root, tmp_path, monkeypatch, capsys, caplog):
    """Frames hold the query's vector while it is heard; the baseline's names of files, sizes and arrays."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    sounds = draw.standard_normal((6, 768)).astype(np.float32)

    def publish(folder: Path, name: str, numbers: range, **spans: tuple[int, int]) -> None:
        """A list of queries, a recording each, and their features. spans: of the sound; drawn if not given."""
        lines = []
        for number in numbers:
            sound, (start, length) = draw.integers(6), spans.get("of_all", (draw.integers(20), draw.integers(4, 10)))
            frames = 0.3 * draw.standard_normal((30, 768)).astype(np.float32)
            frames[start : start + length] += sounds[sound]
            for kind, file, content in (
                ("clap", f"{name}{number}", {"features": frames}),
                ("clap_text", f"qid{number}", {"last_hidden_state": np.stack([sounds[sound]] * 3)}),
            ):
                (folder / kind).mkdir(parents=True, exist_ok=True)
                np.savez(folder / kind / f"{file}.npz", **content)
            line = {"qid": number, "query": f"{name} {sound} of {number}", "vid": f"{name}{number}", "duration": 30}
            windows = {} if spans else {"relevant_windows": [[int(start), int(start + length)]]}
            lines.append(json.dumps(line | windows) + "\n")
        form = "list" if spans else f"castella_{name}_release"
        (folder / f"{form}.jsonl").write_text("".join(lines))

    for split, numbers in (("train", range(96)), ("val", range(96, 108)), ("test", range(108, 120))):
        publish(tmp_path / "data/castella", split, numbers)
    shorter = ["stages.train.epochs=4", "stages.train.schedule.warmup_steps=6", "stages.train.optimizer.lr=1e-3"]
    changes = ["--name", "own", *(part for one in shorter for part in ("--set", one))]
    recipe = root / "recipes/moments2026/own_features.yaml"
    assert main(["run", str(recipe), *changes]) == 0
    found = re.search(r"R1@0\.7 +([\d.]+) %", capsys.readouterr().out)
    assert found
    assert float(found[1]) >= 50

    publish(tmp_path / "data/blind", "blind", range(4), of_all=(5, 10))
    files = ["--out", "data/blind/manifest.jsonl", "--moments", "data/blind/moments.jsonl"]
    assert data_tools(["castella", "data/blind", "--features", "data/blind/clap", *files]) == 0
    content = yaml.safe_load(recipe.read_text())
    content["data"]["blind"] = {"manifest": files[1], "moments": files[3], "split": "blind"}
    content["model"]["text"] |= {"blind_files": ["data/blind/clap_text"], "blind_queries": ["data/blind/list.jsonl"]}
    content["rank"]["blind"] = content["rank"]["evaluation"] | {"data": "blind"}
    again = ["run", str(tiny.write_recipe(tmp_path / "with_blind.yaml", content)), *changes]
    weights = sorted(Path("runs/own/train").glob("*.safetensors"))
    stamps = [path.stat().st_mtime_ns for path in weights]
    assert main(again) == 0
    assert [path.stat().st_mtime_ns for path in weights] == stamps, "nothing is trained again"
    found_windows = [json.loads(line) for line in Path("runs/own/scores/blind.windows.jsonl").read_text().splitlines()]
    assert [str(line["qid"]) for line in found_windows] == list("0123")
    assert sum(abs(line["pred_relevant_windows"][0][0] - 5) <= 1 for line in found_windows) >= 3
    assert main(again) == 0
    assert "finished already" in caplog.text
    np.savez("data/blind/clap_text/qid0.npz", last_hidden_state=np.stack([sounds[0] + sounds[1]] * 3))
    caplog.clear()
    assert main(again) == 0
    assert "rank entries blind, without training" in caplog.text
