"""Choose the clips and captions of every batch.

Every draw is a function of (seed, stage, step): a run that is resumed at any step has the same batches as an
uninterrupted one.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment, inside_recordings

SHORTEST = 0.1  # seconds of a window, for the chance that its moment is drawn
BATCHES_AHEAD = 3  # most batches that are read or decoded during the current step


class Added(NamedTuple):
    """A clip that is mixed into the clip of a training item.

    decibels: How many dB more power the item's clip has than this clip, after scaling. offset: Start of the shorter
    clip in the longer clip, in [0, 1): 0 if both begin together, near 1 if both end together.
    """

    clip: Clip
    decibels: float
    offset: float


class Item(NamedTuple):
    """An item of a batch: a clip and some of its captions.

    numbers: Index of each caption among the clip's captions, from 0; a changed caption keeps the original's index.
    added: The second clip, if two clips are mixed.
    windows: In training on moments, the times (start, end) in seconds at which the only caption is heard; else empty.
    """

    clip: Clip
    captions: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    added: Added | None = None
    windows: tuple[tuple[float, float], ...] = ()


def require_known_windows(moments: Iterable[Moment]) -> None:
    """Raise KitError if the windows of any of the moments are not known."""
    if blind := next((moment.id for moment in moments if moment.windows is None), None):
        raise KitError(
            f"moment {blind} has no windows, so it cannot be used for training or validation; "
            "use a data source whose moments all have windows"
        )


def make_moment_items(clips: Sequence[Clip], moments: Sequence[Moment]) -> list[Item]:
    """Return one training item per moment of the clips, in the order of `moments`.

    A moment is a sentence and its windows: the times at which it is heard in a clip. Moments of clips that are not in
    `clips`, and windows after the clip's end, are left out. Raises KitError for a moment whose windows are not known.
    """
    by_id = {clip.id: clip for clip in clips}
    left = inside_recordings((moment for moment in moments if moment.clip in by_id), clips)
    require_known_windows(left)
    return [Item(by_id[one.clip], (one.text,), (0,), windows=tuple(one.windows or ())) for one in left]


def make_items(clips: Sequence[Clip], unit: str) -> list[Item]:
    """Return the training items of clips: one per clip for the unit "clip", or one per caption for "pair".

    An item of a clip has all captions of the clip.
    Clips without captions have no item.
    """
    if unit == "clip":
        return [Item(clip, tuple(clip.captions), tuple(range(len(clip.captions)))) for clip in clips if clip.captions]
    return [Item(clip, (caption,), (i,)) for clip in clips for i, caption in enumerate(clip.captions)]


class Augment(Protocol):
    """Interface of a function that changes the items of a training step."""

    @property
    def mixes(self) -> bool:
        """Whether items may be mixed with another clip."""
        ...

    def __call__(self, items: Sequence[Item], seed: Sequence[int]) -> list[Item]:
        """Return the items of a training step with random changes, which depend only on `seed`."""
        ...


class _Shuffled:
    """An endless stream of the n items of a data source, in rounds of n draws.

    chances: (n,) weights of the items, above 0. None: each round has every item once, in random order. With
    weights, an item of weight w occurs n * w / W times in a round, rounded down or up (systematic sampling). W is the
    sum of all weights.
    """

    def __init__(self, items: list[Item], seed: tuple[int, ...], chances: np.ndarray | None) -> None:
        """Store the items of a data source, the seed of their random order, and their drawing weights, `chances`."""
        self.items, self.seed, self.chances = items, seed, chances
        self.turn, self.order = -1, np.empty(0, int)

    def __getitem__(self, position: int) -> Item:
        """Return the item at a position of the endless stream of shuffled items."""
        turn, index = divmod(position, len(self.items))
        if turn != self.turn:
            self.turn, self.order = turn, self._draw_round(np.random.default_rng([*self.seed, turn]))
        return self.items[int(self.order[index])]

    def _draw_round(self, draw: np.random.Generator) -> np.ndarray:
        """Draw the items of one round through the data source: (n,) indexes of items."""
        order = draw.permutation(len(self.items))
        if self.chances is None:
            return order
        ends = self.chances[order].cumsum()
        marks = (np.arange(len(order)) + draw.random()) * (ends[-1] / len(order))
        return draw.permutation(order[np.searchsorted(ends[:-1], marks, side="right")])


def _drawing_weights(items: Sequence[Item], power: float) -> np.ndarray:
    """Return the drawing weights of n items, (n,); items with short windows are drawn more often.

    A weight is the duration of the item's shortest window in seconds, to the power -`power`. An item's windows are the
    times at which its sentence is heard. A window of fewer seconds than SHORTEST counts as SHORTEST.
    """
    seconds = [min(end - start for start, end in item.windows) for item in items]
    return np.maximum(seconds, SHORTEST) ** -power


class Sampler:
    """Training batches of a stage: `batch(step)` returns the items of a step, independent of earlier calls.

    sources: The items of every data source.
    mix: "equal" takes items from all sources in turn; "size" treats all items as one source.
    captions: Number of captions that are drawn without replacement each time an item is used; an item with fewer
    captions uses all of them. "all" or None: always all captions of the item.
    short_moments: Power p. Every item must be a moment. An item is drawn with a chance in proportion to s^-p, where s
    is the length in seconds of its shortest window. None: all items are drawn equally often.
    augment: Function that changes the items of a step; it also gets a seed. None: no changes.
    Raises KitError if there are fewer items than the batch size, and for a source without items.
    """

    def __init__(
        self,
        sources: list[list[Item]],
        mix: str,
        batch_size: int,
        captions: int | str | None,
        seed: tuple[int, ...],
        augment: Augment | None = None,
        short_moments: float | None = None,
    ) -> None:
        """Create a random stream of items per source, or one stream of all items if `mix` is "size"."""
        total = sum(map(len, sources))
        if total < batch_size or not all(sources):
            sizes = " + ".join(str(len(source)) for source in sources)
            raise KitError(
                f"batch_size {batch_size} needs at least {batch_size} training items and no empty data source, but the "
                f"sources have {sizes} items; lower batch_size, or add data"
            )
        pools = sources if mix == "equal" else [[item for source in sources for item in source]]
        chances = [None if short_moments is None else _drawing_weights(pool, short_moments) for pool in pools]
        self.streams = [_Shuffled(pool, (*seed, i), chances[i]) for i, pool in enumerate(pools)]
        self.batch_size, self.captions_per_clip, self.seed = batch_size, captions, seed
        self.steps_of_all = total // batch_size
        self.augment = augment

    def batch(self, step: int) -> list[Item]:
        """Return the items of a training step. They depend only on the seed, the stage and the step."""
        n = len(self.streams)
        positions = range(step * self.batch_size, (step + 1) * self.batch_size)
        chosen = [self.streams[index % n][index // n] for index in positions]
        count = self.captions_per_clip
        draw = np.random.default_rng([*self.seed, n, step])
        for index, (clip, captions, *_) in enumerate(chosen):
            if isinstance(count, int) and len(captions) > count:
                picks = sorted(draw.choice(len(captions), count, replace=False).tolist())
                chosen[index] = Item(clip, tuple(captions[i] for i in picks), tuple(picks))
        return self.augment(chosen, (*self.seed, n + 1, step)) if self.augment else chosen

    def crop_offsets(self, step: int) -> np.ndarray:
        """Draw a step's random crop positions: (batch_size, 2) in [0, 1), of each item's clip and mixed-in clip."""
        return np.random.default_rng([*self.seed, len(self.streams) + 2, step]).random((self.batch_size, 2))


def batches_ahead(has_relevance: bool) -> int:
    """Return the number of batches to prepare during the current step: 1 if they need CIDEr-D, else several."""
    return 1 if has_relevance else BATCHES_AHEAD
