"""Clips and captions of every batch.

They are a function of seed, stage and step, so that a run that is resumed at any step has the same batches as an
uninterrupted one.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment, inside_recordings

BATCHES_AHEAD = 3  # made in threads during a step; a batch of waves is 100 MB or more


class Added(NamedTuple):
    """A clip that is mixed into an item's clip."""

    clip: Clip
    decibels: float  # how much more power the item's clip has, after scaling
    offset: float  # start of the shorter clip in the longer one, in [0, 1): 0 if both begin together
    numbers: tuple[int, ...] = ()  # of its captions that are joined with the item's


class Item(NamedTuple):
    """A clip and some of its captions."""

    clip: Clip
    captions: tuple[str, ...]
    numbers: tuple[int, ...] = ()  # of the original captions among the clip's captions, from 0
    added: Added | None = None
    windows: tuple[tuple[float, float], ...] = ()  # seconds at which the caption is heard, if it is a moment


def caption_key(clip: Clip, number: int) -> tuple[str, int, str]:
    """Return the key of a caption's embedding by a teacher.

    Equal captions of two clips have different keys.
    """
    return clip.id, number, clip.captions[number]


def require_known_windows(moments: Iterable[Moment]) -> None:
    """Raise KitError if a moment has no known windows."""
    if blind := next((moment.id for moment in moments if moment.windows is None), None):
        raise KitError(f"moment {blind} has no windows; name a source or split whose moments all have some")


def make_moment_items(clips: Sequence[Clip], moments: Sequence[Moment]) -> list[Item]:
    """Make one item per moment of the clips.

    Windows after a clip's end are left out.
    """
    by_id = {clip.id: clip for clip in clips}
    left = inside_recordings((moment for moment in moments if moment.clip in by_id), clips)
    require_known_windows(left)
    return [Item(by_id[one.clip], (one.text,), (0,), windows=tuple(one.windows or ())) for one in left]


def make_items(clips: Sequence[Clip], unit: str) -> list[Item]:
    """Make items of clips that have captions.

    Args:
        unit: "clip": one per clip with all its captions; "pair": one per caption.
    """
    if unit == "clip":
        return [Item(clip, tuple(clip.captions), tuple(range(len(clip.captions)))) for clip in clips if clip.captions]
    return [Item(clip, (caption,), (i,)) for clip in clips for i, caption in enumerate(clip.captions)]


@lru_cache(maxsize=16)
def _shuffled(seed: tuple[int, ...], count: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(count)


class Sampler:
    """The training batches of a stage.

    Each data source is an endless stream of turns. A turn has every item once, in random order.
    """

    def __init__(
        self,
        sources: list[list[Item]],
        mix: str,
        batch_size: int,
        captions: int | str | None,
        seed: tuple[int, ...],
        augment: Callable[[Sequence[Item], Sequence[int]], list[Item]] | None = None,
    ) -> None:
        """Take the items of each source.

        Args:
            sources: The items of every data source.
            mix: "equal" takes items from all sources in turn, "size" treats all items as one source.
            batch_size: Items of a batch.
            captions: How many captions of an item are drawn for each use; "all" or None for all.
            seed: Seed of the recipe, and number of the stage.
            augment: Changes the items of a step, given a seed.

        Raises:
            KitError: A source is empty, or all together have less than a batch.
        """
        total = sum(map(len, sources))
        if total < batch_size or not all(sources):
            sizes = " + ".join(str(len(source)) for source in sources)
            raise KitError(f"batch_size {batch_size} is above the {sizes} training items; lower it, or add data")
        self.sources = sources if mix == "equal" else [[item for source in sources for item in source]]
        self.batch_size, self.captions_per_clip, self.seed = batch_size, captions, seed
        self.steps_of_all = total // batch_size
        self.augment = augment

    def batch(self, step: int) -> list[Item]:
        """Return the items of a training step."""
        n, chosen = len(self.sources), []
        for index in range(step * self.batch_size, (step + 1) * self.batch_size):
            source = self.sources[index % n]
            turn, place = divmod(index // n, len(source))
            chosen.append(source[_shuffled((*self.seed, index % n, turn), len(source))[place]])
        count = self.captions_per_clip
        draw = np.random.default_rng([*self.seed, n, step])
        for index, (clip, captions, *_) in enumerate(chosen):
            if isinstance(count, int) and len(captions) > count:
                picks = sorted(draw.choice(len(captions), count, replace=False).tolist())
                chosen[index] = Item(clip, tuple(captions[i] for i in picks), tuple(picks))
        return self.augment(chosen, (*self.seed, n + 1, step)) if self.augment else chosen

    def crop_offsets(self, step: int) -> np.ndarray:
        """Draw where crops begin.

        Returns:
            (batch_size, 2) in [0, 1), of each item's clip and of the one mixed into it.
        """
        return np.random.default_rng([*self.seed, len(self.sources) + 2, step]).random((self.batch_size, 2))
