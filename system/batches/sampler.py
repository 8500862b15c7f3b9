"""Which clips and captions make the batch of a step.

Every draw is a function of (seed, stage, step): a run resumed at any step sees the batches an unbroken run would have
seen."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment, inside_recordings


class Added(NamedTuple):
    """A clip that is mixed with an item's own. decibels: how much stronger the item's own is. offset: in [0, 1), of the
    shorter in the longer."""

    clip: Clip
    decibels: float
    offset: float


class Item(NamedTuple):
    """One place in a batch: a clip and the captions that stand for it there. numbers: of these among the clip's; of a
    caption that was changed, that of the original. added: where it is a mixture of two clips. windows: of a moment,
    when its one caption is heard, in seconds."""

    clip: Clip
    captions: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    added: Added | None = None
    windows: tuple[tuple[float, float], ...] = ()


def require_known(moments: Iterable[Moment]) -> None:
    """KitError for a moment whose windows are not known."""
    if blind := next((moment.id for moment in moments if moment.windows is None), None):
        raise KitError(f"the moment {blind} has no windows, as a blind list has none; take a source of known moments")


def items_of_moments(clips: Sequence[Clip], moments: Sequence[Moment]) -> list[Item]:
    """An item a moment of one of the clips, in the moments' order, without windows behind the recording's end. KitError
    for one whose windows are not known."""
    by_id = {clip.id: clip for clip in clips}
    left = inside_recordings((moment for moment in moments if moment.clip in by_id), clips)
    require_known(left)
    return [Item(by_id[one.clip], (one.text,), (0,), windows=tuple(one.windows or ())) for one in left]


def items_of(clips: Sequence[Clip], unit: str) -> list[Item]:
    """clip: an item a clip, with all its captions; pair: an item a caption. Clips without captions give none."""
    if unit == "clip":
        return [Item(clip, tuple(clip.captions), tuple(range(len(clip.captions)))) for clip in clips if clip.captions]
    return [Item(clip, (caption,), (i,)) for clip in clips for i, caption in enumerate(clip.captions)]


class Augment(Protocol):
    """Changes the items of a step. mixes: whether it gives any an `added`."""

    @property
    def mixes(self) -> bool: ...

    def __call__(self, items: Sequence[Item], seed: Sequence[int]) -> list[Item]: ...


class _Shuffled:
    """An endless stream of a source's items: one random permutation behind another."""

    def __init__(self, items: list[Item], seed: tuple[int, ...]) -> None:
        self.items, self.seed = items, seed
        self.turn, self.order = -1, np.empty(0, int)

    def __getitem__(self, position: int) -> Item:
        turn, index = divmod(position, len(self.items))
        if turn != self.turn:
            self.turn, self.order = turn, np.random.default_rng([*self.seed, turn]).permutation(len(self.items))
        return self.items[int(self.order[index])]


class Sampler:
    """Training batches of a stage: `batch(step)` gives the items of a step, whatever was asked for before.

    sources: the items of every source. mix "equal": each source equally often, in turn; "size": all items as one
    source. captions: how many of an item's captions are drawn without replacement at every visit ("all", or
    None for pairs: as they are; a clip that has fewer gives what it has). augment: changes the items of a step, with a
    seed for its draws; None: they stay. Raises KitError for fewer items than a batch has places."""

    def __init__(
        self,
        sources: list[list[Item]],
        mix: str,
        batch_size: int,
        captions: int | str | None,
        seed: tuple[int, ...],
        augment: Augment | None = None,
    ) -> None:
        total = sum(map(len, sources))
        if total < batch_size or not all(sources):
            sizes = " + ".join(str(len(source)) for source in sources)
            raise KitError(f"batch_size {batch_size} needs as many training items, the sources have {sizes}; lower it")
        pools = sources if mix == "equal" else [[item for source in sources for item in source]]
        self.streams = [_Shuffled(pool, (*seed, i)) for i, pool in enumerate(pools)]
        self.batch_size, self.captions_per_clip, self.seed = batch_size, captions, seed
        self.steps_of_all = total // batch_size
        self.augment = augment

    def batch(self, step: int) -> list[Item]:
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

    def offsets(self, step: int) -> np.ndarray:
        """(batch_size, 2) in [0, 1): where the part that is heard of a long clip lies, see Parts."""
        return np.random.default_rng([*self.seed, len(self.streams) + 2, step]).random((self.batch_size, 2))
