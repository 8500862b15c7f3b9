"""Clips and captions of a batch, and their tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tiny

from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.batches.items import Item, Sampler, make_items
from system.batches.loader import make_batch_without_audio
from system.features.bank import Bank
from system.features.extract import Features
from system.moments.windows import Grid


def fake_clips(count: int, source: str, captions: int) -> list[Clip]:
    facts: dict[str, Any] = {"seconds": None, "freesound_id": None, "licence": None, "uploader": None}
    return [
        Clip(
            id=f"{source}/train/{n}",
            file_name=f"{n}",
            path="none",
            captions=[f"{source} {n} {k}" for k in range(captions)],
            source=source,
            split="train",
            **facts,
        )
        for n in range(count)
    ]


def test_sources_are_shuffled_independently_and_drawn_equally_or_by_size():
    big, small = make_items(fake_clips(30, "big", 1), "clip"), make_items(fake_clips(6, "small", 1), "clip")
    sampler = Sampler([big, small], "equal", 8, 1, (1,))
    seen = [item for step in range(15) for item in sampler.batch(step)]
    counts = {source: sum(item.clip.source == source for item in seen) for source in ("big", "small")}
    assert counts == {"big": 60, "small": 60}
    bigs = [item.clip.id for item in seen if item.clip.source == "big"]
    assert len(set(bigs[:30])) == len(set(bigs[30:])) == 30
    assert bigs[:30] != bigs[30:]
    sources = [make_items(fake_clips(n, s, 1), "clip") for n, s in ((30, "big"), (6, "small"))]
    sampler = Sampler(sources, "size", 12, "all", (1,))
    seen = [item.clip.id for step in range(3) for item in sampler.batch(step)]
    assert len(set(seen)) == 36
    assert sampler.steps_of_all == 3
    # Two sources of ten items: the same order in both would pair their items for ever.
    sources = [make_items(fake_clips(10, name, 1), "clip") for name in ("one", "two")]
    sampler = Sampler(sources, "equal", 20, 1, (1,))
    items = sampler.batch(0)
    orders = [[int(item.clip.file_name) for item in items if item.clip.source == name] for name in ("one", "two")]
    assert [sorted(order) for order in orders] == [list(range(10))] * 2
    assert orders[0] != orders[1]


def test_batch_depends_only_on_seed_and_step():
    make = lambda seed: Sampler([make_items(fake_clips(20, "a", 5), "clip")], "size", 8, 2, seed)  # noqa: E731
    one, other = make((1, 0)), make((1, 0))
    for step in (9, 2, 5):
        one.batch(step)
    batches = [other.batch(step) for step in range(6)]
    assert [one.batch(step) for step in range(6)] == batches
    assert [make((1, 0)).batch(step) for step in range(6)] == batches, "as after a resume"
    assert one.batch(0) != make((2, 0)).batch(0)
    assert one.batch(0) != make((1, 1)).batch(0)
    drawn = one.batch(3)
    assert all(len(set(item.captions)) == 2 and set(item.captions) <= set(item.clip.captions) for item in drawn)
    texts = {text for step in range(200) for item in one.batch(step) for text in item.captions}
    assert len(texts) == 100, "some captions are never drawn"


def test_captions_of_a_clip_are_drawn_again_in_every_step():
    sampler = Sampler([make_items(fake_clips(4, "a", 9), "clip")], "size", 4, 2, (0,))
    drawn = {step: {item.clip.id: item.captions for item in sampler.batch(step)} for step in range(6)}
    for clip in drawn[0]:
        assert len({drawn[step][clip] for step in drawn}) > 2


def test_units_of_items_and_labels_of_all_their_windows(tmp_path):
    clips = fake_clips(4, "a", 3)
    assert [item.captions for item in make_items(clips, "pair")][:4] == [("a 0 0",), ("a 0 1",), ("a 0 2",), ("a 1 0",)]
    sampler = Sampler([make_items(clips, "clip")], "size", 4, 5, (0,))
    assert all(len(item.captions) == 3 for item in sampler.batch(0))
    bank = Bank(tmp_path / "frames", 1, "float32", {})
    tiny.store_all(bank, [("five", np.zeros((5, 1), np.float32)), ("three", np.zeros((3, 1), np.float32))])
    long, short = fake_clips(2, "a", 1)
    features = Features({"any": bank}, {long.id: "five", short.id: "three"}, grids={"any": Grid(1.0, 0.5)})
    windows = (((0.0, 1.0), (3.0, 5.0)), ((2.0, 9.0),))
    items = [Item(clip, ("a",), windows=each) for clip, each in zip((long, short), windows, strict=True)]
    labels = make_batch_without_audio(items, features, None).labels
    assert labels.int().tolist() == [[1, 0, 0, 1, 1], [0, 0, 1, 0, 0]]


@pytest.mark.parametrize("sizes", [[3], [4, 3], [9, 0]])
def test_fewer_items_than_batch_size_are_refused(sizes):
    with pytest.raises(KitError, match="training"):
        Sampler([make_items(fake_clips(n, "a", 1), "clip") for n in sizes], "equal", 8, 1, (0,))


@pytest.mark.parametrize(("items", "steps"), [(8, 1), (15, 1), (16, 2), (31, 3)])
def test_epoch_of_all_items_has_only_full_batches(items, steps):
    assert Sampler([make_items(fake_clips(items, "a", 1), "clip")], "size", 8, 1, (1,)).steps_of_all == steps


def test_draws_of_a_step_for_different_purposes_have_different_seeds(monkeypatch):
    seeds, make = list[tuple[int, ...]](), np.random.default_rng

    def recorded(seed: Any) -> np.random.Generator:
        seeds.append(tuple(seed))
        return make(seed)

    def augment(items: Sequence[Item], seed: Sequence[int]) -> list[Item]:
        seeds.append(tuple(seed))
        return list(items)

    monkeypatch.setattr(np.random, "default_rng", recorded)
    sources = [make_items(fake_clips(4, name, 1), "clip") for name in ("one", "two")]
    sampler = Sampler(sources, "equal", 4, 1, (1, 0), augment)
    sampler.batch(0)
    sampler.crop_offsets(0)
    assert len(set(seeds)) == len(seeds) == 5  # two sources, captions, augmentation, crops
