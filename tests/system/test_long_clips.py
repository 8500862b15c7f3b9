"""Clips longer than an encoder's training input: only the chosen part of them is read."""

from contextlib import closing
from pathlib import Path

import augmented
import numpy as np
import pytest
import tiny
import torch
from augmented import clip
from outcomes import digest, lines

from data_tools.manifest import Clip
from system.__main__ import main
from system.batches.items import Added, Item, Sampler, make_items
from system.batches.loader import collate, read_batches
from system.features.bank import Bank
from system.features.extract import Features
from system.models.audio.segments import SegmentEncoder
from system.models.batch import Batch, Series
from system.models.embeddings import Embedded
from system.recipe.load import load_recipe

CPU = torch.device("cpu")
LENGTHS = {"a": 4, "b": 10, "c": 11, "d": 40, "e": 1000}


def sounds(folder: Path) -> tuple[Features, list[Clip]]:
    """Clips of LENGTHS frames that count from 1."""
    bank = Bank(folder / "waves", 1, "int16", {})
    tiny.store_all(bank, [(name, np.arange(1, length + 1)[:, None]) for name, length in LENGTHS.items()])
    clips = [clip(f"{name}.wav", f"caption {name}") for name in LENGTHS]
    return Features({"waveform": bank}, {one.id: name for one, name in zip(clips, LENGTHS, strict=True)}), clips


def test_random_parts_of_long_clips_match_hand_values(tmp_path: Path) -> None:
    features, clips = sounds(tmp_path)
    items, longest = make_items(clips, "clip"), LENGTHS["d"] - 2  # three parts of d
    for offset, first in ((0.0, 1), (0.33, 1), (0.34, 2), (0.66, 2), (0.67, 3), (0.999999, 3)):
        found = collate(items, features, longest=longest, offsets=np.full((len(items), 2), offset)).audio["waveform"]
        assert found.lengths.tolist() == [min(length, longest) for length in LENGTHS.values()]
        for name, row, length in zip(LENGTHS, found.values[..., 0], found.lengths.tolist(), strict=True):
            begin = first if name == "d" else 1
            assert name == "e" or row[:length].tolist() == [*range(begin, begin + length)]


def test_offsets_of_random_parts_depend_on_seed_stage_step_and_item() -> None:
    def made(*seed: int) -> Sampler:
        return Sampler([make_items([clip(f"{n}.wav", "x") for n in range(9)], "clip")], "size", 8, 1, seed)

    assert made(1, 0).crop_offsets(3).tolist() == made(1, 0).crop_offsets(3).tolist()
    others = [made(1, 0).crop_offsets(4), made(1, 1).crop_offsets(3), made(2, 0).crop_offsets(3)]
    assert not any(np.equal(made(1, 0).crop_offsets(3), other).any() for other in others)
    many = np.concatenate([made(1, 0).crop_offsets(step) for step in range(500)])
    assert many.shape == (4000, 2)
    assert np.unique(many).size == 8000
    for column in many.T:
        assert np.quantile(column, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(np.linspace(0, 1, 5), abs=0.03)


def fed(folder: Path, steps: list[int], longest: int | None) -> dict[int, Batch]:
    features, clips = sounds(folder)
    sampler = Sampler([make_items(clips, "clip")], "size", 5, 1, (1, 0))
    found = {}
    for first in steps[:1] if steps == [*range(len(steps))] else steps:
        with closing(read_batches(sampler, features, None, CPU, None, longest, step=first)) as batches:
            found |= {step: next(batches) for step in ([first] if len(steps) < 3 else steps)}
    return found


def test_training_batches_contain_a_random_part_of_long_clips(tmp_path: Path) -> None:
    found = fed(tmp_path, list(range(60)), 10)
    begins: dict[str, set[int]] = {name: set() for name in LENGTHS}
    for batch in found.values():
        waves = batch.audio["waveform"]
        assert waves.values.shape == (5, 10, 1)
        for key, row, length in zip(batch.clip_keys, waves.values[..., 0].tolist(), waves.lengths, strict=True):
            assert length == min(10, LENGTHS[key])
            assert row == [*range(row[0], row[0] + int(length)), *[0] * (10 - int(length))]
            begins[key].add(row[0])
    assert begins["a"] == begins["b"] == {1}
    assert begins["c"] == {1, 2}
    assert {1, 31} <= begins["d"] <= set(range(1, 32))
    assert len(begins["e"]) > 50
    assert max(begins["e"]) <= 991
    again = fed(tmp_path, [41, 7], 10)
    for step, batch in again.items():
        assert torch.equal(batch.audio["waveform"].values, found[step].audio["waveform"].values)
        assert torch.equal(batch.audio["waveform"].lengths, found[step].audio["waveform"].lengths)
    whole = fed(tmp_path, [0], None)[0].audio["waveform"]
    assert whole.values.shape[1] == 1000


def test_long_clips_are_cut_before_they_are_mixed(tmp_path: Path) -> None:
    """The item's own clip is in the mixture, whatever is added to it, and whichever of both is the longer."""
    dog, rising, falling = (clip(f"{name}.wav", name) for name in "drc")
    bank = Bank(tmp_path / "waves", 1, "int16", {})
    long = 10 * np.arange(1, 101)[:, None]
    tiny.store_all(bank, [("d", np.array([[7000], [-7000], [7001]])), ("r", long), ("c", -long)])
    features = Features({"waveform": bank}, {dog.id: "d", rising.id: "r", falling.id: "c"})

    def made(first: Clip, second: Clip, *offsets: float) -> list[int]:
        item = Item(first, ("x",), (0,), Added(second, 0.0, 0.5))
        waves = collate([item], features, longest=5, offsets=np.array([offsets])).audio["waveform"]
        assert waves.lengths.tolist() == [5]
        found: list[int] = waves.values[0, :, 0].tolist()
        return found

    def power(*samples: int) -> float:
        return float(np.square(samples).mean())

    def rounded(one: np.ndarray, other: list[int]) -> list[int]:
        found: list[int] = np.rint(np.add(one, other)).astype(int).tolist()
        return found

    gain = np.sqrt(power(7000, -7000, 7001) / power(960, 970, 980, 990, 1000))
    rain = np.array([960, 970, 980, 990, 1000]) * gain
    assert made(dog, rising, 0.5, 0.999) == rounded(rain, [0, 7000, -7000, 7001, 0])
    gain = np.sqrt(power(10, 20, 30, 40, 50) / power(7000, -7000, 7001))
    dogs = np.array([0, 7000, -7000, 7001, 0]) * gain
    assert made(rising, dog, 0, 0.9) == rounded(dogs, [10, 20, 30, 40, 50])
    gain = np.sqrt(power(10, 20, 30, 40, 50) / power(960, 970, 980, 990, 1000))
    cats = np.array([-960, -970, -980, -990, -1000]) * gain
    assert made(rising, falling, 0, 0.999) == rounded(cats, [10, 20, 30, 40, 50])


def test_maximum_number_of_training_frames_depends_on_the_encoder_kind(tmp_path: Path) -> None:
    content = tiny.recipe(tmp_path / "m.jsonl", tmp_path)
    assert load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe.model.audio.training_frames is None
    content["model"]["audio"] = tiny.panns(max_seconds=1.5)
    assert load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe.model.audio.training_frames == 48_000


@pytest.mark.slow
@pytest.mark.collapses  # Cnn14 from scratch, whose batch norms have seen a few steps
def test_long_clips_are_cut_in_training_but_not_in_validation(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.narrowed(monkeypatch)
    content = tiny.recipe(world, tmp_path, only=tiny.stage(epochs=2, steps_per_epoch=2))
    content["model"]["audio"] = tiny.panns(max_seconds=0.8)
    path = tiny.write_recipe(tmp_path / "long.yaml", content)
    heard: dict[bool, list[int]] = {True: [], False: []}
    forward = SegmentEncoder.forward

    def spied(self: SegmentEncoder, audio: dict[str, Series]) -> Embedded:
        heard[self.training].append(audio["waveform"].values.shape[1])
        return forward(self, audio)

    monkeypatch.setattr(SegmentEncoder, "forward", spied)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    assert heard[True] == [25_600] * 4
    assert max(heard[False]) == 44_800
    augmented.killed_and_resumed(path, tmp_path / "again", 4, monkeypatch)
    assert digest(tmp_path / "again") == digest(tmp_path / "run")
    assert lines(tmp_path / "again") == lines(tmp_path / "run")
