"""What is changed of the items of a batch at random, as a stage's `augment` says. Without torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_tools.manifest import Clip
from system.batches.augment_files import read_alternatives, read_synonyms
from system.batches.sampler import Item
from system.batches.word_edits import edited
from system.recipe.augment import Augment
from system.words import words_of

Random = np.random.Generator


class Augmentation:
    """Items of a step -> the same items, changed: see system/recipe/augment.py.

    clips: those that are trained on, with captions or without. notes: a line a file, how much of it fits.
    Raises DataError for files that cannot be read or do not fit.
    """

    def __init__(self, settings: Augment, clips: Sequence[Clip]) -> None:
        self.settings = settings
        self.notes: list[str] = []
        self._alternatives: dict[tuple[str, int], list[str]] = {}
        if settings.captions:
            self._alternatives, note = read_alternatives(Path(settings.captions.file), clips)
            self.notes.append(note)
        self._synonyms: dict[str, list[str]] | None = None
        if settings.edits and settings.edits.synonyms:
            texts = [*(caption for clip in clips for caption in clip.captions), *self.texts()]
            words = {word for text in texts for word in words_of(text)}
            self._synonyms, note = read_synonyms(Path(settings.edits.synonyms), words)
            self.notes.append(note)

    def texts(self) -> list[str]:
        """Captions that may come in place of others, in the order of their file."""
        return [text for texts in self._alternatives.values() for text in texts]

    def words(self) -> list[str]:
        """What else captions may newly hold, such as synonyms."""
        return [text for texts in (self._synonyms or {}).values() for text in texts]

    def __call__(self, items: Sequence[Item], seed: Sequence[int]) -> list[Item]:
        """seed: of this step's draws; the items' captions are those of their numbers."""
        changed = list(items)
        if self.settings.captions:
            draw = np.random.default_rng([*seed, 1])
            changed = [item._replace(captions=self._replaced(item.clip, item.numbers, draw)) for item in changed]
        if self.settings.edits:
            draw = np.random.default_rng([*seed, 2])
            changed = [item._replace(captions=self._edited(item.captions, draw)) for item in changed]
        return changed

    def _replaced(self, clip: Clip, numbers: Sequence[int], draw: Random) -> tuple[str, ...]:
        """A clip's captions of these numbers, or alternatives; two draws a caption, whatever the file has."""
        assert self.settings.captions
        found = []
        for number in numbers:
            chance, which = draw.random(2)
            there = self._alternatives.get((clip.id, number))
            is_replaced = there and chance < self.settings.captions.probability
            found.append(there[int(which * len(there))] if there and is_replaced else clip.captions[number])
        return tuple(found)

    def _edited(self, captions: Sequence[str], draw: Random) -> tuple[str, ...]:
        edits = self.settings.edits
        assert edits
        return tuple(
            edited(caption, edits.rate, self._synonyms, draw) if draw.random() < edits.probability else caption
            for caption in captions
        )
