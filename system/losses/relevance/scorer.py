"""CIDEr-D between captions: tokens -> n-grams -> document frequencies -> features whose products are the scores.

min(a, b) of two counts is the number of k with a >= k and b >= k, so a feature (n-gram, k) for every occurrence of an
n-gram turns CIDEr-D's clipping into a plain product: all scores are a sparse matrix product times the penalty.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from data_tools.errors import KitError

ORDERS = 4  # n-grams of 1 to 4 words
SIGMA = 6.0  # of the length penalty, in words
SCALE = 10.0

_LOW = 0xFFFFFFFF  # half of a key; numbers are below it

Tokens = Sequence[str]

# N candidates, M references, E entries: all (caption, feature) pairs


class _NgramNumbers:
    """Numbers of n-grams, given as they are first met; 0 is the empty one.

    An n-gram is known by the number of all but its last word, and that word's number.
    """

    def __init__(self) -> None:
        self._words: dict[str, int] = {}
        self._grams: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._grams) + 1

    def words(self, words: Iterable[str]) -> np.ndarray:
        return np.array([self._words.setdefault(word, len(self._words)) for word in words], np.int64)

    def grams(self, beginnings: np.ndarray, last: np.ndarray) -> np.ndarray:
        keys, inverse = np.unique(beginnings << 32 | last, return_inverse=True)
        numbers = [self._grams.setdefault(key, len(self._grams) + 1) for key in keys.tolist()]
        return np.array(numbers, np.int64)[inverse]

    def occurrences(self, grams: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Numbers of the features (n-gram, k), k >= 1: the n-gram's own for k = 1; later ones count as if followed by a
        word, numbered from the far end."""
        features = grams.copy()
        features[k > 1] = self.grams(grams[k > 1], _LOW - k[k > 1])
        return features


class _Counts(NamedTuple):
    """An entry for every different n-gram of every caption: the caption, the n-gram, its occurrences and its words.

    lengths: (N,) words of the captions.
    """

    caption: np.ndarray
    gram: np.ndarray
    times: np.ndarray
    order: np.ndarray
    lengths: np.ndarray


def _count(captions: Sequence[Tokens], numbers: _NgramNumbers) -> _Counts:
    lengths = np.array([len(tokens) for tokens in captions], np.int64)
    words = numbers.words(chain.from_iterable(captions))
    caption = np.repeat(np.arange(len(captions)), lengths)
    position = np.arange(len(words)) - np.repeat(lengths.cumsum() - lengths, lengths)  # of a word in its caption
    ending = np.zeros(len(words), np.int64)  # the n-gram that ends at each word; the empty one before there are any
    parts = []
    for order in range(1, ORDERS + 1):
        at = np.flatnonzero(position >= order - 1)
        grams = numbers.grams(ending[at - 1], words[at])
        ending[at] = grams
        keys, counts = np.unique(caption[at] << 32 | grams, return_counts=True)
        parts.append((keys >> 32, keys & _LOW, counts, np.full(len(keys), order)))
    of_entries = [np.concatenate(part) for part in zip(*parts, strict=True)]
    return _Counts(of_entries[0], of_entries[1], of_entries[2], of_entries[3], lengths)


@dataclass(frozen=True)
class NgramFeatures:
    """Captions as sparse rows, whose products are CIDEr-D; start: (N + 1,) of each caption's entries.

    feature, candidate, reference: (E,) the features' numbers, their weights in a caption that is scored and in one that
    is scored against. lengths: (N,) bigrams of a caption. size: above every feature's number.
    """

    start: np.ndarray
    feature: np.ndarray
    candidate: np.ndarray
    reference: np.ndarray
    lengths: np.ndarray
    size: int

    def __len__(self) -> int:
        return len(self.lengths)

    def followed_by(self, more: "NgramFeatures") -> "NgramFeatures":
        """The captions of both, these first. more: made later by the same CiderD."""
        return NgramFeatures(
            start=np.concatenate([self.start, self.start[-1] + more.start[1:]]),
            feature=np.concatenate([self.feature, more.feature]),
            candidate=np.concatenate([self.candidate, more.candidate]),
            reference=np.concatenate([self.reference, more.reference]),
            lengths=np.concatenate([self.lengths, more.lengths]),
            size=more.size,
        )


class CiderD:
    """CIDEr-D with the document frequencies of a corpus.

    documents: each the tokens of its captions. Source: Vedantam et al. 2015, "CIDEr", section 4, as pycocoevalcap 1.2
    computes it (its class is called Cider). Deviations: none beyond 1e-14; an n-gram that no document has counts as if
    one had it, which is pycocoevalcap's way, too.
    A corpus of one document gives every n-gram the weight 0, and every pair the score 0. Raises KitError for none.
    """

    def __init__(self, documents: Sequence[Sequence[Tokens]]) -> None:
        if not documents:
            raise KitError("CIDEr-D needs document frequencies, and the corpus has no captions; name one that has some")
        self._numbers = _NgramNumbers()
        counts = self._corpus = _count([tokens for captions in documents for tokens in captions], self._numbers)
        document = np.repeat(np.arange(len(documents)), [len(captions) for captions in documents])
        pairs = np.sort(document[counts.caption] << 32 | counts.gram)
        distinct = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]
        frequencies = np.bincount(distinct & _LOW, minlength=len(self._numbers))
        self._log_documents = np.log(len(documents))
        self._idf = self._log_documents - np.log(np.maximum(1, frequencies))

    def corpus_features(self) -> NgramFeatures:
        """The features of the documents' captions, in their order."""
        return self._weighed(self._corpus)

    def features(self, captions: Sequence[Tokens]) -> NgramFeatures:
        """The features of captions, in float64; to be scored against others of this object only."""
        return self._weighed(_count(captions, self._numbers))

    def _weighed(self, counts: _Counts) -> NgramFeatures:
        captions = len(counts.lengths)
        idf = np.full(len(self._numbers), self._log_documents)
        idf[: len(self._idf)] = self._idf
        of_order = counts.caption * ORDERS + counts.order - 1
        squares = np.bincount(of_order, (counts.times * idf[counts.gram]) ** 2, minlength=captions * ORDERS)
        norms = np.sqrt(squares)[of_order]
        weights = np.divide(idf[counts.gram], norms, out=np.zeros_like(norms), where=norms > 0)

        by_caption = np.argsort(counts.caption, kind="stable")
        times = counts.times[by_caption]
        entry = np.repeat(by_caption, times)
        occurrence = np.arange(len(entry)) - np.repeat(times.cumsum() - times, times) + 1
        sizes = np.bincount(counts.caption[entry], minlength=captions)
        return NgramFeatures(
            start=np.concatenate([[0], sizes.cumsum()]),
            feature=self._numbers.occurrences(counts.gram[entry], occurrence),
            candidate=weights[entry],
            reference=(counts.times * weights)[entry] * (SCALE / ORDERS),
            lengths=np.maximum(0, counts.lengths - 1),
            size=len(self._numbers),
        )
