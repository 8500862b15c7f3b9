"""Split captions into words."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_MARKS = re.compile("[\u0300-\u036f]+")


def lower_composed(text: str) -> str:
    """Return the text in lower case and composed (NFC).

    Marks that have no composed letter are removed.

    >>> lower_composed("CAFÉ") == "café", lower_composed("x̄")
    (True, 'x')
    """
    return text.lower() if text.isascii() else _MARKS.sub("", unicodedata.normalize("NFC", text.lower()))


def words_of(text: str) -> list[str]:
    """Return the words of a text in any script, as lower_composed writes them, with inner apostrophes and hyphens.

    >>> words_of("A dog's bark, far-off.")
    ['a', "dog's", 'bark', 'far-off']
    """
    return _WORD.findall(lower_composed(text))


def vocabulary_of(captions: Iterable[str]) -> list[str]:
    """Return all words of the captions, most frequent first; equally frequent ones are in alphabetical order."""
    counts = Counter(word for caption in captions for word in words_of(caption))
    return sorted(counts, key=lambda word: (-counts[word], word))
