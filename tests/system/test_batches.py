"""Clips and captions of a batch, and their tensors."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tiny
from augmented import clip

from data_tools.errors import KitError
from system.batches.items import Item, Sampler, make_items
from system.batches.loader import make_batch_without_audio
from system.features.bank import Bank
from system.features.extract import Features
from system.moments.windows import Grid


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


def test_captions_of_a_clip_are_drawn_again_in_every_step():
    sampler = Sampler([fake_items(4, "a", 9)], "size", 4, 2, (0,))
    drawn = [{item.clip.id: item.captions for item in sampler.batch(step)} for step in range(6)]
    assert all(len({one[clip_id] for one in drawn}) > 2 for clip_id in drawn[0])


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


@pytest.mark.parametrize(("items", "steps"), [(8, 1), (15, 1), (16, 2), (31, 3)])
def test_epoch_of_all_items_has_only_full_batches(items, steps):
    assert Sampler([fake_items(items, "a")], "size", 8, 1, (1,)).steps_of_all == steps


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
