"""Random edits of a caption's words.

An edit replaces words by synonyms, deletes words, swaps words, or inserts synonyms. Never imports torch.

Source: SALSA's public code (2024), after "EDA: Easy Data Augmentation" (2019). Deviations: one rate for all kinds of
edits, synonyms from a file, apostrophes and hyphens inside words stay. An insertion may be after the last word, and a
swap always exchanges two different positions.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from data_tools.words import words_of

Random = np.random.Generator
Synonyms = Mapping[str, Sequence[str]]  # by lower-case word


def edit_caption(caption: str, rate: float, synonyms: Synonyms | None, draw: Random) -> str:
    """Return a caption with the share `rate` of its words changed: synonyms, deletions, swaps or insertions.

    The result has lower-case words without punctuation. One of the four kinds of edit is drawn with equal probability.
    Without `synonyms`, words are only deleted or swapped. At least one word stays. A caption without words is returned
    unchanged. rate: Expected share of edited words, in [0, 1]: n ~ Binomial(words, rate) words are edited.
    """
    words = words_of(caption)
    if not words:
        return caption
    ways = [delete_words, swap_words]
    if synonyms is not None:
        ways += [replace_by_synonyms, insert_synonyms]
    way = ways[int(draw.integers(len(ways)))]
    return " ".join(way(words, int(draw.binomial(len(words), rate)), synonyms or {}, draw))


def delete_words(words: list[str], n: int, synonyms: Synonyms, draw: Random) -> list[str]:
    """Delete n random words; if there are not more than n words, delete all but one. synonyms: Not used."""
    gone = set(draw.choice(len(words), min(n, len(words) - 1), replace=False).tolist())
    return [word for position, word in enumerate(words) if position not in gone]


def swap_words(words: list[str], n: int, synonyms: Synonyms, draw: Random) -> list[str]:
    """Exchange two random words, n times. A single word is unchanged. synonyms: Not used."""
    words = list(words)
    for _ in range(n if len(words) > 1 else 0):
        one, other = draw.choice(len(words), 2, replace=False).tolist()
        words[one], words[other] = words[other], words[one]
    return words


def replace_by_synonyms(words: list[str], n: int, synonyms: Synonyms, draw: Random) -> list[str]:
    """Replace n random words by synonyms; if fewer than n words have synonyms, replace all of these."""
    words, known = list(words), _positions_with_synonyms(words, synonyms)
    for position in draw.choice(known, min(n, len(known)), replace=False).tolist() if known else ():
        words[position] = _draw_text(synonyms[words[position]], draw)
    return words


def insert_synonyms(words: list[str], n: int, synonyms: Synonyms, draw: Random) -> list[str]:
    """Insert a synonym of a random word at a random position, n times."""
    found, known = list(words), _positions_with_synonyms(words, synonyms)
    for _ in range(n if known else 0):
        word = words[known[int(draw.integers(len(known)))]]
        found.insert(int(draw.integers(len(found) + 1)), _draw_text(synonyms[word], draw))
    return found


def _positions_with_synonyms(words: Sequence[str], synonyms: Synonyms) -> list[int]:
    """Return the positions, in the list `words`, of words that have synonyms."""
    return [position for position, word in enumerate(words) if word in synonyms]


def _draw_text(texts: Sequence[str], draw: Random) -> str:
    """Draw one of the texts, with equal probability."""
    return texts[int(draw.integers(len(texts)))]
