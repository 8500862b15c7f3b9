"""Words of captions, without torch."""

import re
from collections import Counter
from collections.abc import Iterable

_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def words_of(text: str) -> list[str]:
    """Lower-case words of any script; apostrophes and hyphens inside a word stay in it.

    >>> words_of("A dog's bark, far-off.")
    ['a', "dog's", 'bark', 'far-off']
    """
    return _WORD.findall(text.lower())


def vocabulary_of(captions: Iterable[str]) -> list[str]:
    """All words of the captions, most frequent first, then by name."""
    counts = Counter(word for caption in captions for word in words_of(caption))
    return sorted(counts, key=lambda word: (-counts[word], word))
