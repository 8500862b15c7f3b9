"""Which known text a mistaken one was meant to be, and how the two differ: hints for messages."""

import html
import re
import unicodedata
from collections.abc import Callable, Iterable

from data_tools.audio.read import AUDIO_SUFFIXES

# What audio files end with.
_ENDING = re.compile(rf"(?:{'|'.join(map(re.escape, AUDIO_SUFFIXES))})\Z", re.IGNORECASE)
# Shorter texts are one letter away from too many others.
SHORTEST = 4

# What tools change unseen: what it is called, and the text without it. Both sides are stripped of all of these, in this
# order, before they are compared.
Way = tuple[str, Callable[[str], str]]
_COMMON: tuple[Way, ...] = (
    ("blanks", lambda text: "".join(text.split())),
    ("HTML entities", html.unescape),
    ("its Unicode form", lambda text: unicodedata.normalize("NFKC", text)),
    ("letter case", str.casefold),
)
_PUNCTUATION: Way = ("punctuation", lambda text: "".join(filter(str.isalnum, text)))
TEXT_WAYS: tuple[Way, ...] = (*_COMMON, _PUNCTUATION)
NAME_WAYS: tuple[Way, ...] = (
    *_COMMON,
    ("a folder in front", lambda text: re.split(r"[/\\]", text)[-1]),
    ("its ending", lambda text: _ENDING.sub("", text)),
    _PUNCTUATION,
)


class Nearest:
    """Known texts, to be asked for the one that another text nearly is.

    texts: the known ones. ways: TEXT_WAYS for queries, NAME_WAYS for file names.
    A question takes time in proportion to the length of its text, whatever the number of known ones; the first one
    that no way answers costs as much as reading all known texts a few times.
    """

    def __init__(self, texts: Iterable[str], ways: tuple[Way, ...]) -> None:
        self._ways = ways
        self._texts: dict[str, list[str]] = {}
        for text in texts:
            self._texts.setdefault(self._bare(text), []).append(text)
        self._texts.pop("", None)  # of punctuation only: near to nothing
        self._shortened: dict[str, str | None] = {}

    def to(self, text: str) -> tuple[str, str] | None:
        """(the known text, how `text` differs from it): in those ways, or by a letter; None when none is near.

        A text a letter away from several known ones is near to none of them: it would be a guess.
        """
        bare = self._bare(text)
        if bare in self._texts:
            known, way = min(((known, self._way(text, known)) for known in self._texts[bare]), key=lambda pair: pair[1])
            difference = self._ways[way][0] if way < len(self._ways) else "more than one way"
            return known, difference
        if len(bare) < SHORTEST:
            return None
        if not self._shortened:
            self._shorten()
        candidates = {self._shortened[short] for short in _shortened(bare) if short in self._shortened}
        only = candidates.pop() if len(candidates) == 1 else None
        return (self._texts[only][0], "a letter") if only else None

    def _bare(self, text: str) -> str:
        for _, strip in self._ways:
            text = strip(text)
        return text

    def _way(self, text: str, known: str) -> int:
        """Index of the first way that alone makes the two one; the number of ways if none does."""
        same = (index for index, (_, strip) in enumerate(self._ways) if strip(text) == strip(known))
        return next(same, len(self._ways))

    def _shorten(self) -> None:
        """Every known text without one of its letters (and whole): two texts an edit apart share one of these."""
        for bare in self._texts:
            if len(bare) >= SHORTEST:
                for short in _shortened(bare):
                    # None: several known texts become this one.
                    self._shortened[short] = bare if self._shortened.get(short, bare) == bare else None


def _shortened(text: str) -> set[str]:
    return {text, *(text[:index] + text[index + 1 :] for index in range(len(text)))}
