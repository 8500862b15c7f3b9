"""Edits of a caption's words at random: synonyms, deletions, swaps, insertions. Without torch.

Source: SALSA's public code (2024), after "EDA: Easy Data Augmentation" (2019). Deviations: see Edits in
system/recipe/augment.py; an insertion may be behind the last word, and a swap is of two different words' positions.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from data_tools.words import words_of

Random = np.random.Generator
Synonyms = Mapping[str, Sequence[str]]  # by lower-case word


def edited(caption: str, rate: float, synonyms: Synonyms | None, draw: Random) -> str:
    """A caption's lower-case words without punctuation, edited in one way that is drawn evenly: of four, or of deletion
    and swaps where synonyms is None.

    rate: n ~ Binomial(words, rate) words are edited; in [0, 1]. At least one word stays; a caption without any is given
    back as it is.
    """
    words = words_of(caption)
    if not words:
        return caption
    ways = [deleted, swapped] if synonyms is None else [deleted, swapped, replaced, inserted]
    way = ways[int(draw.integers(len(ways)))]
    return " ".join(way(words, int(draw.binomial(len(words), rate)), synonyms or {}, draw))


def deleted(words: list[str], n: int, synonyms: Synonyms, draw: Random) -> list[str]:
    """Without n words, all but one at most."""
    gone = set(draw.choice(len(words), min(n, len(words) - 1), replace=False).tolist())
    return [word for position, word in enumerate(words) if position not in gone]


def swapped(words: list[str], n: int, synonyms: Synonyms, draw: Random) -> list[str]:
    """n times, words of two places exchanged; one word stays."""
    words = list(words)
    for _ in range(n if len(words) > 1 else 0):
        one, other = draw.choice(len(words), 2, replace=False).tolist()
        words[one], words[other] = words[other], words[one]
    return words


def replaced(words: list[str], n: int, synonyms: Synonyms, draw: Random) -> list[str]:
    """n of the words that have synonyms, or all of them, each by one of its own."""
    words, known = list(words), _known(words, synonyms)
    for position in draw.choice(known, min(n, len(known)), replace=False).tolist() if known else ():
        words[position] = _one_of(synonyms[words[position]], draw)
    return words


def inserted(words: list[str], n: int, synonyms: Synonyms, draw: Random) -> list[str]:
    """n times, a synonym of one of the words at any place."""
    found, known = list(words), _known(words, synonyms)
    for _ in range(n if known else 0):
        word = words[known[int(draw.integers(len(known)))]]
        found.insert(int(draw.integers(len(found) + 1)), _one_of(synonyms[word], draw))
    return found


def _known(words: Sequence[str], synonyms: Synonyms) -> list[int]:
    """Positions of words that have synonyms."""
    return [position for position, word in enumerate(words) if word in synonyms]


def _one_of(texts: Sequence[str], draw: Random) -> str:
    return texts[int(draw.integers(len(texts)))]
