"""Random changes of a batch's items.

This file never imports torch.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.words import words_of
from system.batches.augment_files import read_alternatives, read_merged, read_synonyms
from system.batches.augment_settings import Augment
from system.batches.mixing import join_captions
from system.batches.sampler import Added, Item
from system.batches.word_edits import edit_caption

Random = np.random.Generator


class _Partner(NamedTuple):
    """The clip that is added to an item, with the indices of its captions, or with one caption of both clips."""

    added: Added
    numbers: tuple[int, ...]
    merged: str | None


class Augmentation:
    """Random changes of a training step's items, by the settings in augment_settings.py.

    clips: All clips for training, with captions or without. notes: For each file that the settings name, a text that
    states how many of its lines fit no training item. Raises DataError for a file that cannot be read, or whose lines
    do not fit the clips. Raises KitError if fewer than two clips can be mixed.
    """

    def __init__(self, settings: Augment, clips: Sequence[Clip]) -> None:
        """Read the files that the settings name, and store the clips that can be mixed."""
        self.settings = settings
        self.notes: list[str] = []
        self._alternatives: dict[tuple[str, int], list[str]] = {}
        if settings.captions:
            self._alternatives, note = read_alternatives(Path(settings.captions.file), clips)
            self.notes.append(note)
        self._merged: dict[str, list[tuple[Clip, str]]] = {}
        if settings.mix and settings.mix.merged:
            self._merged, note = read_merged(Path(settings.mix.merged), clips)
            self.notes.append(note)
        self._synonyms: dict[str, list[str]] | None = None
        if settings.edits and settings.edits.synonyms:
            texts = [*(caption for clip in clips for caption in clip.captions), *self.alternative_texts()]
            words = {word for text in texts for word in words_of(text)}
            self._synonyms, note = read_synonyms(Path(settings.edits.synonyms), words)
            self.notes.append(note)
        self._set_mixing_pool(clips)

    @property
    def mixes(self) -> bool:
        """Whether clips are mixed with other training clips."""
        return self.settings.mix is not None

    def limited_to(self, clips: Sequence[Clip]) -> "Augmentation":
        """Return a copy of the augmentation that mixes items only with clips of the given list.

        All clips of the list must have frames.
        """
        found = copy.copy(self)
        found._set_mixing_pool(clips)
        return found

    def _set_mixing_pool(self, clips: Sequence[Clip]) -> None:
        """Store the clips that may be mixed, those with captions. Raises KitError if there are too few for mixing."""
        self._pool = list({clip.id: clip for clip in clips if clip.captions}.values())
        self._position = {clip.id: position for position, clip in enumerate(self._pool)}
        self._merged = {
            clip_id: [(other, caption) for other, caption in others if other.id in self._position]
            for clip_id, others in self._merged.items()
        }
        if self.mixes and len(self._pool) < 2:
            raise KitError(
                f"augment.mix needs at least two training clips with captions, but the stage has {len(self._pool)}; "
                "add clips, or remove mix from the stage's augment"
            )

    def alternative_texts(self) -> list[str]:
        """Return all caption alternatives that may replace captions, in the order of their files."""
        merged = {caption: None for others in self._merged.values() for _, caption in others}
        return [*(text for texts in self._alternatives.values() for text in texts), *merged]

    def texts_with_new_words(self) -> list[str]:
        """Return the texts whose words may be added to captions: all synonyms, and the text that joins two captions."""
        mix = self.settings.mix
        found = [text for texts in (self._synonyms or {}).values() for text in texts]
        return [*found, *([mix.joined_by] if mix and mix.joined_by else [])]

    def __call__(self, items: Sequence[Item], seed: Sequence[int]) -> list[Item]:
        """Return the items of a training step with random changes, which depend only on `seed`.

        items: Items with original captions. seed: Numbers that determine all random draws of the step.
        """
        changed = list(items)
        partners: list[_Partner | None] = [None] * len(items)
        if self.settings.mix:
            draw = np.random.default_rng([*seed, 3])
            partners = [self._draw_partner(item, draw) for item in items]
        draw = np.random.default_rng([*seed, 1])
        if self.settings.captions:
            changed = [item._replace(captions=self._draw_captions(item.clip, item.numbers, draw)) for item in changed]
        changed = [
            item if partner is None else self._mix_item(item, partner, draw)
            for item, partner in zip(changed, partners, strict=True)
        ]
        if self.settings.edits:
            draw = np.random.default_rng([*seed, 2])
            changed = [item._replace(captions=self._edit_captions(item.captions, draw)) for item in changed]
        return changed

    def _draw_partner(self, item: Item, draw: Random) -> _Partner | None:
        """Draw at random the clip that is mixed into an item; None if the item is not mixed.

        Four random numbers are always drawn per item. If captions are joined, one more is drawn per caption.
        """
        mix = self.settings.mix
        assert mix
        chance, which, level, offset = draw.random(4).tolist()
        if chance >= mix.probability:
            return None
        decibels = mix.low_db + level * (mix.high_db - mix.low_db)
        if mix.merged is not None:
            others = self._merged.get(item.clip.id)
            if not others:
                return None
            other, caption = others[int(which * len(others))]
            return _Partner(Added(other, decibels, offset), (), caption)
        index = int(which * (len(self._pool) - 1))
        other = self._pool[index + (index >= self._position[item.clip.id])]
        count, available = len(item.captions), len(other.captions)
        numbers = draw.choice(available, count, replace=available < count).tolist()
        return _Partner(Added(other, decibels, offset), tuple(numbers), None)

    def _mix_item(self, item: Item, partner: _Partner, draw: Random) -> Item:
        """Return a mixed item: the item with the clip of its `partner` added.

        If a file has a caption that describes both clips, this is the mixed item's only caption. Otherwise each caption
        of the item is joined with one of the partner. draw: Random numbers for replacing the partner's captions by
        alternatives.
        """
        if partner.merged is not None:
            return Item(item.clip, (partner.merged,), item.numbers[:1], partner.added)
        mix = self.settings.mix
        assert mix
        others = self._draw_captions(partner.added.clip, partner.numbers, draw)
        by = mix.joined_by or ""
        captions = tuple(join_captions(*pair, by) for pair in zip(item.captions, others, strict=True))
        return Item(item.clip, captions, item.numbers, partner.added)

    def _draw_captions(self, clip: Clip, numbers: Sequence[int], draw: Random) -> tuple[str, ...]:
        """Return the captions of a clip with the indexes `numbers`, each possibly replaced by a random alternative.

        There are always two random draws per caption, so that later draws do not depend on the settings.
        """
        if not self.settings.captions:
            return tuple(clip.captions[number] for number in numbers)
        captions = []
        for number in numbers:
            chance, which = draw.random(2)
            others = self._alternatives.get((clip.id, number))
            is_replaced = others and chance < self.settings.captions.probability
            captions.append(others[int(which * len(others))] if others and is_replaced else clip.captions[number])
        return tuple(captions)

    def _edit_captions(self, captions: Sequence[str], draw: Random) -> tuple[str, ...]:
        """Edit the words of captions at random; a caption is edited with the probability that the settings state."""
        edits = self.settings.edits
        assert edits
        return tuple(
            edit_caption(caption, edits.rate, self._synonyms, draw) if draw.random() < edits.probability else caption
            for caption in captions
        )
