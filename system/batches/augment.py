"""Random changes of training items: other captions, and mixed clips."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from data_tools.errors import KitError
from data_tools.files import require_file
from data_tools.manifest import Clip, check_caption
from data_tools.settings import Strict
from data_tools.tables import read_table
from system.batches.items import Added, Item

Random = np.random.Generator
Probability = Annotated[float, Field(gt=0, le=1)]


class Captions(Strict):
    """Replacement of captions by alternatives.

    They may be GPT's variations or back-translations; all alternatives of a caption are equally probable. Relaxed
    margins use the new captions, teachers the original ones.

    Source: SALSA (2024), with five GPT variations per caption.
    """

    file: str  # table (.csv): clip (id or file name), caption (index among the clip's captions, from 0), alternative
    probability: Probability  # that a caption is replaced


class Mix(Strict):
    """Mixing of clips: another training clip is added.

    The item's clip has r dB more power; r is uniform between low_db and high_db. The shorter clip starts at a random
    position in the longer one. A sum beyond full scale is scaled down as a whole. Each caption of the item is joined
    with one of the other clip. Losses treat a mixture as a third clip, which matches neither of both. Not for stages
    with teachers, nor for experts.

    Source: the captioner of Wu et al. (2023; r from -5 to 5 dB), PairMix and MixGen (joined captions). Deviations: Wu
    et al. always scale the shorter clip, so that half of their mixtures are not at r dB, and compute powers from
    overlapping frames. PairMix weights the waves.
    """

    probability: Probability  # that an item is mixed
    low_db: float = Field(ge=-60, le=60)  # r at one end: level of the item's clip above the other clip
    high_db: float = Field(ge=-60, le=60)  # r at the other end
    joined_by: str  # text between both captions, such as "and"; it may be empty


class Augment(Strict):
    """Random changes of training data.

    They are a function of seed, stage and step. Each kind has random numbers of its own, so that one more kind changes
    neither the other one nor the choice of clips and captions.
    """

    captions: Captions | None = None  # replace captions by alternatives
    mix: Mix | None = None  # mix two clips


class Augmentation:
    """The random changes of a training step's items."""

    def __init__(self, settings: Augment, clips: Sequence[Clip]) -> None:
        """Read the alternatives.

        Raises:
            KitError: The file is missing or does not fit the clips.
            KitError: Fewer than two clips can be mixed.
        """
        self.captions, self.mix = settings.captions, settings.mix
        self._alternatives = read_alternatives(Path(self.captions.file), clips) if self.captions else {}
        self._pool = list({clip.id: clip for clip in clips if clip.captions}.values())
        self._position = {clip.id: position for position, clip in enumerate(self._pool)}
        if self.mix and len(self._pool) < 2:
            raise KitError("augment.mix needs at least two training clips with captions; add clips, or remove mix")

    def new_texts(self) -> list[str]:
        """Return all texts that may be added to captions."""
        joined_by = [self.mix.joined_by] if self.mix and self.mix.joined_by else []
        return [*(text for texts in self._alternatives.values() for text in texts), *joined_by]

    def __call__(self, items: Sequence[Item], seed: Sequence[int]) -> list[Item]:
        """Change the items of a training step."""
        draw = np.random.default_rng([*seed, 3])
        partners = [self._draw_partner(item, draw) for item in items]
        draw = np.random.default_rng([*seed, 1])
        changed = [item._replace(captions=self._draw_captions(item.clip, item.numbers, draw)) for item in items]
        for number, (item, added) in enumerate(zip(changed, partners, strict=True)):
            if added and self.mix:
                others = self._draw_captions(added.clip, added.numbers, draw)
                pairs = zip(item.captions, others, strict=True)
                joined = tuple(join_captions(*pair, self.mix.joined_by) for pair in pairs)
                changed[number] = item._replace(captions=joined, added=added)
        return changed

    def _draw_partner(self, item: Item, draw: Random) -> Added | None:
        """Draw a clip that is mixed in, and its captions."""
        if self.mix is None:
            return None
        chance, which, level, offset = draw.random(4).tolist()
        if chance >= self.mix.probability:
            return None
        index = int(which * (len(self._pool) - 1))
        other = self._pool[index + (index >= self._position[item.clip.id])]
        count, available = len(item.captions), len(other.captions)
        numbers = draw.choice(available, count, replace=available < count).tolist()
        decibels = self.mix.low_db + level * (self.mix.high_db - self.mix.low_db)
        return Added(other, decibels, offset, tuple(numbers))

    def _draw_captions(self, clip: Clip, numbers: Sequence[int], draw: Random) -> tuple[str, ...]:
        """Draw a clip's captions, or their alternatives."""
        captions = [clip.captions[number] for number in numbers]
        for place, number in enumerate(numbers if self.captions else ()):
            chance, which = draw.random(2)
            others = self._alternatives.get((clip.id, number))
            if others and self.captions and chance < self.captions.probability:
                captions[place] = others[int(which * len(others))]
        return tuple(captions)


def read_alternatives(path: Path, clips: Sequence[Clip]) -> dict[tuple[str, int], list[str]]:
    """Read a table of alternative captions.

    Lines of other clips are skipped.

    Returns:
        The alternatives by clip id and number of the caption.

    Raises:
        KitError: The file is missing, a line has an unknown caption or an ambiguous file name, or no line names a
            training clip.
    """
    require_file(path, "correct the path, or remove its key from the stage's augment")
    named: dict[str, list[Clip]] = {}
    for clip in {clip.id: clip for clip in clips}.values():
        for name in {clip.id, clip.file_name}:
            named.setdefault(name, []).append(clip)
    found: dict[tuple[str, int], list[str]] = {}
    for line, row in read_table(path, ["clip", "caption", "alternative"]):
        where, number, known = f"{path}, line {line}", row["caption"], named.get(row["clip"], [])
        check_caption(row["alternative"], where)
        if len(known) > 1:
            raise KitError(f"{where}: several clips have the file name {row['clip']!r}; give the clip's id")
        if known and number not in map(str, range(len(known[0].captions))):
            raise KitError(f"{where}: clip {row['clip']!r} has no caption {number[:40]!r}; they are numbered from 0")
        if known:
            found.setdefault((known[0].id, int(number)), []).append(row["alternative"])
    if not found:
        raise KitError(f"{path}: no line names a training clip; name clips by id or file name in the manifest")
    return found


def mix_waves(wave: np.ndarray, added: np.ndarray, decibels: float, offset: float) -> np.ndarray:
    """Add two waves; only the result is rounded.

    Args:
        wave: (T, 1) int16.
        added: (U, 1) int16, scaled unless one of both is silent.
        decibels: How much more power (mean square) the first wave gets.
        offset: Start of the shorter wave, in [0, 1): 0 if both begin together, near 1 if both end together.

    Returns:
        (max(T, U), 1) int16, scaled down as a whole if it is beyond full scale.
    """
    waves = [samples[:, 0].astype(np.float32) for samples in (wave, added)]
    powers = [float(np.square(samples).mean(dtype=np.float64)) for samples in waves]
    if all(powers):
        waves[1] *= np.float32(np.sqrt(powers[0] / (10 ** (decibels / 10) * powers[1])))
    shorter, longer = sorted(waves, key=len)
    first = int(offset * (len(longer) - len(shorter) + 1))
    longer[first : first + len(shorter)] += shorter
    limits = np.iinfo(np.int16)
    if longer.max() > limits.max or longer.min() < limits.min:
        longer *= np.float32(limits.max / np.abs(longer).max())
    return np.rint(longer).astype(np.int16)[:, None]


def join_captions(caption: str, other: str, by: str) -> str:
    """Join two captions, without punctuation between them.

    >>> join_captions("A dog barks.", "It rains.", "and")
    'A dog barks and It rains.'
    """
    return " ".join(part for part in (caption.rstrip(" .,;:!?"), by.strip(), other) if part)
