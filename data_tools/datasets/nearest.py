"""Suggest the closest known name.

Finds the known text that is closest to a mistaken text, and their difference, for hints in messages.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Iterable
from itertools import takewhile

from data_tools.audio import AUDIO_SUFFIXES
from data_tools.cli import counted

# Endings of audio files.
_ENDING = re.compile(rf"(?:{'|'.join(map(re.escape, AUDIO_SUFFIXES))})\Z", re.IGNORECASE)
A_FOLDER, MORE_THAN_ONE, A_LETTER = "a folder in front", "more than one way", "a letter"  # differences
# Shorter texts differ by one letter from too many others.
SHORTEST = 4

# Invisible changes by tools: the name of each, and the text without it. Before a comparison, all of them are removed
# from both sides, in this order.
Way = tuple[str, Callable[[str], str]]
_QUOTES = dict.fromkeys(map(ord, "\"'`\u00b4\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f«»"))


def _repair_encoding(text: str) -> str:
    """Repair UTF-8 text that was decoded as Latin-1 or Windows' code page; return any other text unchanged.

    >>> _repair_encoding("CafÃ©"), _repair_encoding("Café")
    ('Café', 'Café')
    """
    for encoding in ("cp1252", "latin-1"):
        try:
            return text.encode(encoding).decode()
        except UnicodeError:
            continue
    return text


_COMMON: tuple[Way, ...] = (
    ("the encoding", _repair_encoding),
    ("blanks", lambda text: "".join(text.split())),
    ("HTML entities", html.unescape),
    ("its Unicode form", lambda text: unicodedata.normalize("NFKC", text)),
    ("letter case", str.casefold),
)
_PUNCTUATION: Way = ("punctuation", lambda text: "".join(filter(str.isalnum, text)))
TEXT_WAYS: tuple[Way, ...] = (*_COMMON, ("quotes", lambda text: text.translate(_QUOTES)), _PUNCTUATION)
NAME_WAYS: tuple[Way, ...] = (
    *_COMMON,
    ("the separator of folders", lambda text: text.replace("\\", "/")),
    (A_FOLDER, lambda text: re.split(r"[/\\]", text)[-1]),
    ("its ending", lambda text: _ENDING.sub("", text)),
    _PUNCTUATION,
)


class Nearest:
    """Known texts, with a search for the known text that is closest to a given text.

    texts: The known texts. ways: Differences to ignore, such as case and blanks: TEXT_WAYS for queries, NAME_WAYS for
    file names.
    The time of a search depends on the length of the given text only, not on the number of known texts. There is one
    exception: if `ways` are not enough to find a text, the first such search indexes all known texts.
    """

    def __init__(self, texts: Iterable[str], ways: tuple[Way, ...]) -> None:
        """Index the known texts for searches that ignore the differences `ways`, such as case and blanks."""
        self._ways = ways
        self._texts: dict[str, list[str]] = {}
        for text in texts:
            self._texts.setdefault(self._without_differences(text), []).append(text)
        self._texts.pop("", None)  # punctuation only: similar to no text
        self._by_variant: dict[str, str | None] = {}

    def to(self, text: str) -> tuple[str, str] | None:
        """Return the most similar known text and its difference from `text`; None without a similar one.

        The difference is given by its name: "blanks", "letter case" and so on for one ignored difference; "more than
        one way" for several of these; "a letter" for one added, missing or other letter.

        A text one letter away from several known texts has no result (None), since each of them would be a guess.
        """
        bare = self._without_differences(text)
        if bare in self._texts:
            ways = {known: self._kind_of_difference(text, known) for known in self._texts[bare]}
            known = min(ways, key=lambda known: (ways[known], -_common_end_length(known, text)))
            return known, self._ways[ways[known]][0] if ways[known] < len(self._ways) else MORE_THAN_ONE
        if len(bare) < SHORTEST:
            return None
        if not self._by_variant:
            self._index_variants()
        candidates = {self._by_variant[short] for short in _variants(bare) if short in self._by_variant}
        only = candidates.pop() if len(candidates) == 1 else None
        return (self._texts[only][0], A_LETTER) if only else None

    def _without_differences(self, text: str) -> str:
        """Return a text without the differences that the comparison ignores, such as case and blanks."""
        for _, strip in self._ways:
            text = strip(text)
        return text

    def _kind_of_difference(self, text: str, known: str) -> int:
        """Return the index in `_ways` of the only difference between two texts; len(_ways) for several differences."""
        same = (index for index, (_, strip) in enumerate(self._ways) if strip(text) == strip(known))
        return next(same, len(self._ways))

    def _index_variants(self) -> None:
        """Fill `_by_variant`, which maps each known text, and each variant with one letter removed, to the known text.

        Two texts that differ in one letter have a common variant.
        """
        for bare in self._texts:
            if len(bare) >= SHORTEST:
                for short in _variants(bare):
                    # None: several known texts give this one.
                    self._by_variant[short] = bare if self._by_variant.get(short, bare) == bare else None


def note_on_similar_names(missing: Iterable[str], present: Iterable[str]) -> str:
    """Return a note on missing files whose names differ only slightly, such as in blanks, from a present file's name.

    NAME_WAYS lists these differences. The note is "" if no file has a similar name.
    """
    nearest = Nearest(sorted(present), NAME_WAYS)
    similar = [(name, *pair) for name in missing if (pair := nearest.to(name)) and pair[1] != A_LETTER]
    if not similar:
        return ""
    name, known, difference = similar[0]
    if difference == A_FOLDER:
        difference += ", with Windows' separators" if "\\" in name else ""
        difference += ", as on another machine" if name[0] == "/" or name[1:2] == ":" else ""
    files = counted(len(similar), "missing file")
    return (
        f"{files} may be present under a similar name: {known!r} instead of {name!r} (the names differ in {difference})"
    )


def _common_end_length(one: str, other: str) -> int:
    """Return the number of equal characters at the end of two texts."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(reversed(one), reversed(other), strict=False))))


def _variants(text: str) -> set[str]:
    """Return a text and all its variants with one letter removed."""
    return {text, *(text[:index] + text[index + 1 :] for index in range(len(text)))}
