"""Items of a batch and their tensors: clips and captions that are drawn, cut and mixed."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import augmented
import numpy as np
import pytest
import tiny
import torch
from augmented import clip, table
from outcomes import digest, lines, refused

from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.__main__ import main
from system.batches import loader
from system.batches.augment import Augment, Augmentation, join_captions, mix_waves
from system.batches.items import Added, Item, Sampler, make_items
from system.batches.loader import collate, make_batch_without_audio, read_batches
from system.features.bank import Bank
from system.features.extract import Features
from system.models.audio.segments import SegmentEncoder
from system.models.batch import Embedded, Series
from system.moments.windows import Grid

DOGS = clip("dogs.wav", "Dogs bark.", "Two dogs.")
RAIN = clip("rain.wav", "It rains!")
CATS = clip("cats.wav", "A cat.", "Cats meow.", "Meowing")
MUTE = clip("mute.wav")


def mixing(probability: float = 1.0, joined_by: str | None = "and", **changes: Any) -> Augment:
    mix = {"probability": probability, "low_db": -5, "high_db": 5, "joined_by": joined_by}
    return Augment.model_validate({"mix": mix | changes})


def wave(*samples: int) -> np.ndarray:
    return np.array(samples, np.int16)[:, None]


@pytest.mark.parametrize(
    ("own", "other", "decibels", "place", "expected"),
    [
        ((100, -100, 100, -100), (50, 50), 0, 0.0, [200, 0, 100, -100]),
        ((100, -100, 100, -100), (50, 50), 0, 0.5, [100, 0, 200, -100]),
        ((100, -100, 100, -100), (50, 50), 0, 0.999999, [100, -100, 200, 0]),
        ((100, -100, 100, -100), (50, 50), 20, 0.0, [110, -90, 100, -100]),
        ((100, -100, 100, -100), (50, 50), -20, 0.0, [1100, 900, 100, -100]),
        ((50, 50), (100, -100, 100, -100), 0, 0.5, [50, 0, 100, -50]),
        ((50, 50), (100, -100), 0, 0.9, [100, 0]),
        ((7,), (7,), 0, 0.5, [14]),
        ((0, 0, 0), (5, 6), 3, 0.0, [5, 6, 0]),
        ((5, 6), (0, 0, 0), 3, 0.999, [0, 5, 6]),
        ((0,), (0, 0), 0, 0.0, [0, 0]),
        ((30_000, 12_000), (30_000, 12_000), 0, 0.0, [32_767, 13_107]),
        ((-32_768, 0), (-32_768, 0), 0, 0.0, [-32_767, 0]),
    ],
)
def test_waves_of_mixtures_match_hand_values(own, other, decibels, place, expected):
    waves = wave(*own), wave(*other)
    for one in waves:
        one.flags.writeable = False  # as a bank gives them
    found = mix_waves(*waves, decibels, place)
    assert found.dtype == np.int16
    assert found[:, 0].tolist() == expected


def test_captions_of_mixed_clips_are_joined_with_the_given_text():
    assert join_captions("Dogs bark. ", "It rains!", "and") == "Dogs bark and It rains!"
    assert join_captions("Dogs bark", "It rains", "") == "Dogs bark It rains"
    assert join_captions("?!", "It rains", " while ") == "while It rains"
    augmentation = Augmentation(mixing(), [CATS, RAIN])
    (many,) = augmentation([Item(CATS, tuple(CATS.captions), (0, 1, 2))], [0])
    assert many.captions == ("A cat and It rains!", "Cats meow and It rains!", "Meowing and It rains!")
    for step in range(20):
        (two,) = Augmentation(mixing(), [CATS, DOGS])([Item(DOGS, tuple(DOGS.captions), (0, 1))], [step])
        assert len({text.split(" and ")[1] for text in two.captions}) == 2, "each once, if there are enough"


def test_mixed_clips_match_hand_computed_random_draws():
    """Four draws per item: whether (below the probability), the other clip, r in [-5, 5), the position;
    then the caption of the other clip."""
    items = [Item(RAIN, ("It rains!",), (0,)), Item(DOGS, ("Two dogs.",), (1,))]
    for seed, probability, first, captions, pick, second in (
        (2, 0.4, [0.351, 0.507, 0.538, 0.17], 2, 1, [0.587, 0.924, 0.729, 0.201]),
        (6, 0.6, [0.583, 0.246, 0.073, 0.05], 3, 2, [0.165, 0.658, 0.96, 0.868]),
    ):
        draw = np.random.default_rng([seed, 3])
        assert draw.random(4).round(3).tolist() == first
        assert draw.choice(captions, 1, replace=False).tolist() == [pick]
        assert draw.random(4).round(3).tolist() == second
        one, other = Augmentation(mixing(probability), [CATS, DOGS, MUTE, RAIN])(items, [seed])
        assert one.added.decibels == pytest.approx(10 * first[2] - 5, abs=0.01)
        assert one.added.offset == pytest.approx(first[3], abs=0.001)
        if seed == 2:
            assert (one.added.clip, one.captions, one.numbers) == (DOGS, ("It rains and Two dogs.",), (0,))
            assert other == items[1]
        else:
            assert (one.added.clip, one.captions, one.numbers) == (CATS, ("It rains and Meowing",), (0,))
            assert (other.added.clip, other.captions, other.numbers) == (RAIN, ("Two dogs and It rains!",), (1,))
            assert other.added.decibels == pytest.approx(4.6, abs=0.01)


def test_captions_of_mixtures_are_replaced_too(tmp_path):
    rows = [("rain.wav", 0, "rainfall"), ("dogs.wav", 0, "Barking"), ("dogs.wav", 1, "barks")]
    captions = {"file": str(table(tmp_path / "a.csv", augmented.ALTERNATIVES, *rows)), "probability": 0.5}
    plain = Augment.model_validate({"captions": captions})
    both = Augment.model_validate({"captions": captions, **mixing(0.5).model_dump(exclude_none=True)})
    items = [Item(DOGS, ("Dogs bark.",), (0,)), Item(RAIN, ("It rains!",), (0,))] * 3
    seen = set()
    for step in range(40):
        found = [Augmentation(part, [DOGS, RAIN])(items, [step]) for part in (plain, both)]
        for before, after in zip(*found, strict=True):
            assert before.captions[0].rstrip(".!") in after.captions[0], "own captions are drawn as without mixing"
            seen.add(after.captions[0])
    assert {"Dogs bark and rainfall", "Barking and It rains!", "It rains and barks", "Dogs bark.", "rainfall"} <= seen


def test_mixing_with_fewer_than_two_clips_is_refused():
    with pytest.raises(KitError, match="training"):
        Augmentation(mixing(), [DOGS, DOGS, MUTE])
    Augmentation(mixing(), [DOGS, RAIN])
    with pytest.raises(KitError, match="training"):
        Augmentation(mixing(0.25), [DOGS])


def banks(folder: Path) -> Features:
    """Waves of four clips; the last one has the content of the first."""
    bank = Bank(folder / "waves", 1, "int16", {})
    tiny.store_all(bank, [("d", wave(100, -100, 100, -100)), ("r", wave(50, 50)), ("c", wave(9, 9, 9))])
    names = {DOGS.id: "d", RAIN.id: "r", CATS.id: "c", "own/train/twin.wav": "d"}
    return Features({"waveform": bank}, names)


def test_mixture_counts_as_a_separate_clip_in_batches(tmp_path):
    features = banks(tmp_path)
    twin = clip("twin.wav", "t")
    items = [
        Item(DOGS, ("a",), (0,)),
        Item(DOGS, ("b",), (0,), Added(RAIN, 0.0, 0.5)),
        Item(RAIN, ("c",), (0,), Added(DOGS, 3.0, 0.0)),
        Item(RAIN, ("d",), (0,)),
        Item(DOGS, ("e",), (0,), Added(twin, 0.0, 0.0)),
        Item(DOGS, ("f",), (0,), Added(CATS, 0.0, 0.0)),
    ]
    batch = collate(items, features)
    assert batch.clip_keys == ["d", "d+r", "d+r", "r", "d", "c+d"]
    assert batch.audio["waveform"].lengths.tolist() == [4, 4, 4, 2, 4, 4]
    assert batch.audio["waveform"].values.dtype == torch.int16
    rows = batch.audio["waveform"].values[..., 0].tolist()
    assert rows[0] == [100, -100, 100, -100]
    assert rows[1] == [100, 0, 200, -100]
    assert rows[2] == [85, 15, 35, -35]  # 50 + 0.354 x 100 ..., as 3 dB is a factor of 1.413
    assert rows[3] == [50, 50, 0, 0]
    assert rows[4] == [200, -200, 200, -200]


MIX = {"probability": 0.5, "low_db": -5, "high_db": 5, "joined_by": "and"}


def test_mixing_with_stored_frames_or_teachers_is_refused(world, tmp_path, capsys):
    said = refused(capsys, "check", augmented.recipe(world, tmp_path, {"mix": MIX}))
    assert "stages.only.augment.mix: frames of logmel" in said
    teacher = {"kind": "distill", "weight": 1, "teachers": ["one"], "temperature": 0.1}
    stages = {"first": tiny.stage(), "only": tiny.stage(losses=[teacher], augment={"mix": MIX})}
    content = tiny.recipe(world, tmp_path, **stages)
    content["teachers"] = {"one": {"kind": "stage", "stage": "first", "checkpoint": "last"}}
    content["model"]["audio"] = tiny.panns()
    said = refused(capsys, "check", tiny.write_recipe(tmp_path / "taught.yaml", content))
    assert "stages.only.augment.mix" in said
    assert "which are stored" not in said


def test_clip_with_broken_audio_is_not_mixed(tmp_path, monkeypatch, caplog):
    tiny.narrowed(monkeypatch)
    world = tiny.make_world(tmp_path / "world", {"development": 5, "validation": 2, "evaluation": 1})
    (tmp_path / "world/development/development 001.wav").write_bytes(b"RIFF")
    mix = MIX | {"probability": 1, "joined_by": "meanwhile"}
    stage = tiny.stage(augment={"mix": mix}, batch_size=4, epochs=1, steps_per_epoch=4)
    content = tiny.recipe(world, tmp_path, only=stage) | {"rank": {}}
    content["model"]["audio"] = tiny.panns(max_seconds=1)
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    assert "skipped 1 clip that cannot be used" in caplog.text
    assert '"meanwhile"' in (tmp_path / "run/vocabulary.json").read_text(), "captions are joined by a known word"


LENGTHS = {"a": 4, "b": 10, "c": 11, "d": 40, "e": 1000}


def sounds(folder: Path) -> tuple[Features, list[Clip]]:
    """Clips of LENGTHS frames that count from 1."""
    bank = Bank(folder / "waves", 1, "int16", {})
    tiny.store_all(bank, [(name, np.arange(1, length + 1)[:, None]) for name, length in LENGTHS.items()])
    clips = [clip(f"{name}.wav", f"caption {name}") for name in LENGTHS]
    return Features({"waveform": bank}, {one.id: name for one, name in zip(clips, LENGTHS, strict=True)}), clips


def test_random_parts_of_long_clips_match_hand_values(tmp_path):
    features, clips = sounds(tmp_path)
    items, longest = make_items(clips, "clip"), LENGTHS["d"] - 2  # three parts of d
    for offset, first in ((0.0, 1), (0.33, 1), (0.34, 2), (0.66, 2), (0.67, 3), (0.999999, 3)):
        found = collate(items, features, longest=longest, offsets=np.full((len(items), 2), offset)).audio["waveform"]
        assert found.lengths.tolist() == [min(length, longest) for length in LENGTHS.values()]
        for name, row, length in zip(LENGTHS, found.values[..., 0], found.lengths.tolist(), strict=True):
            begin = first if name == "d" else 1
            assert name == "e" or row[:length].tolist() == [*range(begin, begin + length)]


def test_training_batches_contain_a_random_part_of_long_clips(tmp_path):
    features, clips = sounds(tmp_path)
    sampler = Sampler([make_items(clips, "clip")], "size", 5, 1, (1, 0))
    for first, longest in ((0, 10), (41, 10), (0, None)):
        with closing(read_batches(sampler, features, None, torch.device("cpu"), None, longest, step=first)) as batches:
            for step in range(first, first + 5):
                found = next(batches).audio["waveform"]
                offsets = sampler.crop_offsets(step)
                expected = collate(sampler.batch(step), features, longest=longest or 1000, offsets=offsets)
                assert torch.equal(found.values, expected.audio["waveform"].values)
                assert found.lengths.max() == (longest or 1000)


def test_long_clips_are_cut_before_they_are_mixed(tmp_path):
    """The item's own clip is in the mixture, whatever is added to it, and whichever of both is the longer."""
    dog, rising, falling = (clip(f"{name}.wav", name) for name in "drc")
    bank = Bank(tmp_path / "waves", 1, "int16", {})
    long = 10 * np.arange(1, 101)[:, None]
    tiny.store_all(bank, [("d", np.array([[7000], [-7000], [7001]])), ("r", long), ("c", -long)])
    features = Features({"waveform": bank}, {dog.id: "d", rising.id: "r", falling.id: "c"})
    bark = wave(7000, -7000, 7001)
    for first, second, offsets, parts in (
        (dog, rising, (0.5, 0.999), (bark, wave(960, 970, 980, 990, 1000))),
        (rising, dog, (0, 0.9), (wave(10, 20, 30, 40, 50), bark)),
        (rising, falling, (0, 0.999), (wave(10, 20, 30, 40, 50), wave(-960, -970, -980, -990, -1000))),
    ):
        item = Item(first, ("x",), (0,), Added(second, 0.0, 0.5))
        waves = collate([item], features, longest=5, offsets=np.array([offsets])).audio["waveform"]
        assert waves.lengths.tolist() == [5]
        assert waves.values[0].tolist() == mix_waves(*parts, 0.0, 0.5).tolist()


@pytest.mark.slow
@pytest.mark.collapses  # Cnn14 from scratch, whose batch norms have seen a few steps
def test_killed_and_resumed_run_of_mixed_and_cut_clips_matches_an_uninterrupted_one(world, tmp_path, monkeypatch):
    """Clips are mixed and cut in training, but not in validation."""
    tiny.narrowed(monkeypatch)
    stage = tiny.stage(augment={"mix": MIX | {"joined_by": "meanwhile"}}, epochs=2, steps_per_epoch=2)
    content = tiny.recipe(world, tmp_path, only=stage)
    content["model"]["audio"] = tiny.panns(max_seconds=0.8)
    path = tiny.write_recipe(tmp_path / "mixed.yaml", content)
    calls: list[int] = []
    heard: dict[bool, list[int]] = {True: [], False: []}
    forward = SegmentEncoder.forward

    def spied(*arguments: Any) -> np.ndarray:
        calls.append(1)
        return mix_waves(*arguments)

    def watched(self: SegmentEncoder, audio: dict[str, Series]) -> Embedded:
        heard[self.training].append(audio["waveform"].values.shape[1])
        return forward(self, audio)

    monkeypatch.setattr(loader, "mix_waves", spied)
    monkeypatch.setattr(SegmentEncoder, "forward", watched)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    assert 4 <= len(calls) <= 7 * 8, "in four steps, and three that were made ahead; never in validation"
    assert heard[True] == [25_600] * 4
    assert max(heard[False]) == 44_800
    assert '"meanwhile"' in (tmp_path / "run/vocabulary.json").read_text()
    augmented.killed_and_resumed(path, tmp_path / "again", 4, monkeypatch)
    assert digest(tmp_path / "again") == digest(tmp_path / "run")
    assert lines(tmp_path / "again") == lines(tmp_path / "run")


# items


def fake_items(count: int, source: str, captions: int = 1, unit: str = "clip") -> list[Item]:
    texts = [[f"{source} {n} {k}" for k in range(captions)] for n in range(count)]
    return make_items([clip(str(n), *some, source=source) for n, some in enumerate(texts)], unit)


def test_sources_are_shuffled_independently_and_drawn_equally_or_by_size():
    big, small = fake_items(30, "big"), fake_items(6, "small")
    sampler = Sampler([big, small], "equal", 8, 1, (1,))
    seen = [item for step in range(15) for item in sampler.batch(step)]
    assert Counter(item.clip.source for item in seen) == {"big": 60, "small": 60}
    bigs = [item.clip.id for item in seen if item.clip.source == "big"]
    assert len(set(bigs[:30])) == len(set(bigs[30:])) == 30
    assert bigs[:30] != bigs[30:]
    sampler = Sampler([big, small], "size", 12, "all", (1,))
    assert len({item.clip.id for step in range(3) for item in sampler.batch(step)}) == 36
    assert sampler.steps_of_all == 3
    assert [Sampler([fake_items(n, "a")], "size", 8, 1, (1,)).steps_of_all for n in (8, 15, 16, 31)] == [1, 1, 2, 3]
    # Two sources of ten items: the same order in both would pair their items for ever.
    items = Sampler([fake_items(10, name) for name in ("one", "two")], "equal", 20, 1, (1,)).batch(0)
    orders = [[int(item.clip.file_name) for item in items if item.clip.source == name] for name in ("one", "two")]
    assert [sorted(order) for order in orders] == [list(range(10))] * 2
    assert orders[0] != orders[1]


def test_batches_and_random_parts_depend_only_on_seed_and_step():
    def made(*seed: int) -> Sampler:
        return Sampler([fake_items(20, "a", 5)], "size", 8, 2, seed)

    one, other = made(1, 0), made(1, 0)
    for step in (9, 2, 5):
        one.batch(step)
    batches = [other.batch(step) for step in range(6)]
    assert [one.batch(step) for step in range(6)] == batches
    assert [made(1, 0).batch(step) for step in range(6)] == batches, "as after a resume"
    assert one.batch(0) not in (made(2, 0).batch(0), made(1, 1).batch(0))
    drawn = one.batch(3)
    assert all(len(set(item.captions)) == 2 and set(item.captions) <= set(item.clip.captions) for item in drawn)
    texts = {text for step in range(200) for item in one.batch(step) for text in item.captions}
    assert len(texts) == 100, "some captions are never drawn"
    assert np.array_equal(one.crop_offsets(3), other.crop_offsets(3))
    others = [made(1, 1).crop_offsets(3), made(2, 0).crop_offsets(3), *map(one.crop_offsets, range(100))]
    many = np.concatenate(others)
    assert many.shape == (816, 2)
    assert np.unique(many).size == many.size
    for column in many.T:
        assert np.quantile(column, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(np.linspace(0, 1, 5), abs=0.07)


def test_units_of_items_and_labels_of_all_their_windows(tmp_path):
    pairs = fake_items(4, "a", 3, "pair")
    assert [item.captions for item in pairs][:4] == [("a 0 0",), ("a 0 1",), ("a 0 2",), ("a 1 0",)]
    sampler = Sampler([fake_items(4, "a", 3)], "size", 4, 5, (0,))
    assert all(len(item.captions) == 3 for item in sampler.batch(0))
    bank = Bank(tmp_path / "frames", 1, "float32", {})
    tiny.store_all(bank, [("five", np.zeros((5, 1), np.float32)), ("three", np.zeros((3, 1), np.float32))])
    long, short = clip("long", "a"), clip("short", "a")
    features = Features({"any": bank}, {long.id: "five", short.id: "three"}, grids={"any": Grid(1.0, 0.5)})
    items = [Item(long, ("a",), windows=((0.0, 1.0), (3.0, 5.0))), Item(short, ("a",), windows=((2.0, 9.0),))]
    labels = make_batch_without_audio(items, features, None).labels
    assert labels.int().tolist() == [[1, 0, 0, 1, 1], [0, 0, 1, 0, 0]]


@pytest.mark.parametrize("sizes", [[3], [4, 3], [9, 0]])
def test_fewer_items_than_batch_size_are_refused(sizes):
    with pytest.raises(KitError, match="training"):
        Sampler([fake_items(n, "a") for n in sizes], "equal", 8, 1, (0,))


def test_draws_of_a_step_for_different_purposes_have_different_seeds(monkeypatch):
    seeds, make = list[tuple[int, ...]](), np.random.default_rng

    def recorded(seed: Any) -> np.random.Generator:
        seeds.append(tuple(seed))
        return make(seed)

    def augment(items: Sequence[Item], seed: Sequence[int]) -> list[Item]:
        seeds.append(tuple(seed))
        return list(items)

    monkeypatch.setattr(np.random, "default_rng", recorded)
    sources = [fake_items(4, name) for name in ("one", "two")]
    sampler = Sampler(sources, "equal", 4, 1, (1, 0), augment)
    sampler.batch(0)
    sampler.crop_offsets(0)
    assert len(set(seeds)) == len(seeds) == 5  # two sources, captions, augmentation, crops
    del seeds[:]
    for step in range(4):
        sampler.batch(step)
    assert len([seed for seed in set(seeds) if seed[:3] == (1, 0, 3)]) == 4, "another augmentation in every step"
