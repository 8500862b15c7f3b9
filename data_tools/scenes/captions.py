"""Captions of composed scenes, from phrases.yaml."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from data_tools.errors import KitError
from data_tools.manifest import TEST_SPLITS, VALIDATION_SPLITS, Split
from data_tools.settings import parse_yaml

MAX_HELD_OUT = 0.5

# Shares of Clotho's captions that begin with a capital and end with a full stop, counted over its three splits.
_CAPITAL, _STOP = 0.94, 0.86

_ROUNDS = 200  # through all templates; a free wording, if any, is found much earlier

Option = TypeVar("Option")
Phrasing = tuple[str, str]  # clause and noun phrase: "a dog barks", "a barking dog"

_TEXTS = parse_yaml(Path(__file__).with_name("phrases.yaml").read_bytes())
TEMPLATES = _TEXTS["templates"]
SOUNDS = _TEXTS["sounds"]  # by class: phrasings, one more of them for validation, tags


def phrasings(name: str, kind: str = "phrasings") -> list[Phrasing]:
    """Return the phrasings of a sound class, or generic ones.

    Args:
        kind: "validation" for one more, which only queries of a validation split have.
    """
    lines = SOUNDS.get(name, _TEXTS["other"])[kind]
    pairs = [line.format(n=name.replace("_", " ")).split(" | ") for line in lines]
    return [(clause, noun) for clause, noun in pairs]


def not_held_out(options: Sequence[Option], share: float) -> Sequence[Option]:
    """Return the options without their last `share`, which only test splits use; all options if `share` is 0.

    share: Share of the options to leave out, 0 to MAX_HELD_OUT; above 0, at least one option is left out.
    """
    return options[: len(options) - max(1, round(share * len(options)))] if share else options


def describe(
    rng: np.random.Generator, kind: str, events: Sequence[str], count: int, held_out: float, taken: Collection[str] = ()
) -> list[str]:
    """Return `count` captions of a scene, none in `taken`. held_out: Share of wordings that only test splits use.

    Args:
        kind: Kind of the scene, a key of TEMPLATES.
        events: Names of the events' sound classes, in the order of the letters a, b, c in the templates.
        count: Number of captions.
        held_out: This share of the phrasings (wordings of a sound class) and of the templates is not used here.
        taken: Texts that are already in use.
    Raises KitError if no other wording is found.
    """
    templates = not_held_out(TEMPLATES[kind], held_out)
    captions: dict[str, str] = {}
    for _ in range(_ROUNDS):
        for template in rng.permutation(templates):
            order = rng.permutation(events) if kind == "overlap" else events  # an overlap has no order
            words: dict[str, str] = {}
            for letter, event in zip("abc", order, strict=False):
                clause, noun = _pick(rng, not_held_out(phrasings(event), held_out))
                words |= {letter: clause, letter.upper(): noun}
            text = template.format(**words)
            dressed = _with_capital_and_stop(rng, text)
            if dressed not in taken:
                captions.setdefault(text, dressed)
        if len(captions) >= count:
            return list(captions.values())[:count]
    raise KitError(f"no unused caption is left for a scene of {kind} {', '.join(events)}; ask for fewer clips")


def describe_event(rng: np.random.Generator, name: str, split: Split, held_out: float) -> str:
    """Return a query that names a sound class, in a wording for the split. held_out: Share of wordings only for tests.

    If `held_out` is above 0, the validation split gets an additional phrasing (wording of a class), which no other
    split has. Validation can thus measure unknown wordings too.
    """
    options = phrasings(name) if split in TEST_SPLITS else not_held_out(phrasings(name), held_out)
    if split in VALIDATION_SPLITS and held_out:
        options = [*options, *phrasings(name, "validation")]
    text = _pick(rng, _pick(rng, options))
    return text[0].upper() + text[1:]


def describe_noisily(rng: np.random.Generator, events: Sequence[str]) -> str:
    """Return a description in the style of uploaders: one or more of the events, in any order, with asides."""
    order = list(rng.permutation(events))[: rng.integers(1, len(events) + 1) if rng.random() < 0.5 else None]
    names = [_pick(rng, SOUNDS.get(name, {"tags": [name.replace("_", " ")]})["tags"]) for name in order]
    device, location, number = _pick(rng, _TEXTS["devices"]), _pick(rng, _TEXTS["locations"]), rng.integers(1, 40)
    listed = ", ".join(names)
    forms = (
        ", ".join(rng.permutation([*(name.replace(" ", "-") for name in names), "field-recording", device])),
        f"recorded with {device} {location}. {listed}",
        f"{'_'.join(names).replace(' ', '_')}_{number:02d}.wav",
        f"{' '.join(names).title()} {number:02d}",
        f"{' + '.join(names)}, recorded {location}, no processing",
        f"Just a short recording of {listed}. Edited in audacity, some noise removed.",
        f"{location.capitalize()}, {device}: {listed}",
        f"{names[0]} {number}",
    )
    return _pick(rng, forms)


def _pick(rng: np.random.Generator, options: Sequence[Option]) -> Option:
    """Choose one of the options at random, all equally likely."""
    return options[int(rng.integers(len(options)))]


def _with_capital_and_stop(rng: np.random.Generator, text: str) -> str:
    """Return a text with a capital letter at its start and a full stop at its end, each added at random."""
    if rng.random() < _CAPITAL:
        text = text[0].upper() + text[1:]
    return f"{text}." if rng.random() < _STOP else text
