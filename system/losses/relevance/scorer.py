"""Compute CIDEr-D.

The steps are: tokens -> n-grams -> document frequencies -> features whose products are the scores.

CIDEr-D clips the count of an n-gram to the smaller count of the two captions. min(a, b) is the number of k with a >= k
and b >= k. With one feature (n-gram, k) for the k-th occurrence of an n-gram, clipping thus becomes a product of
features. All scores are a sparse matrix product times the penalty for different lengths.
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

_LOW = 0xFFFFFFFF  # lower half of a key; all numbers are below it

Tokens = Sequence[str]

# N candidates, M references, E entries: all (caption, feature) pairs


class _NgramNumbers:
    """Table that gives every word and every n-gram a number, in the order of their first occurrence.

    The number 0 is the empty n-gram. The key of an n-gram in the table consists of two numbers: the number of the
    n-gram without its last word, and the number of its last word.
    """

    def __init__(self) -> None:
        """Create an empty table, which will give each word and each n-gram a number."""
        self._words: dict[str, int] = {}
        self._grams: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of known n-grams, including the empty n-gram."""
        return len(self._grams) + 1

    def number_words(self, words: Iterable[str]) -> np.ndarray:
        """Return the number that identifies each word; a new word gets the next number."""
        return np.array([self._words.setdefault(word, len(self._words)) for word in words], np.int64)

    def number_ngrams(self, beginnings: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the number that identifies each n-gram; a new n-gram gets the next number.

        beginnings: For each n-gram, the number of the n-gram that remains without its last word. last: For each n-gram,
        the number of its last word.
        """
        keys, inverse = np.unique(beginnings << 32 | last, return_inverse=True)
        numbers = [self._grams.setdefault(key, len(self._grams) + 1) for key in keys.tolist()]
        return np.array(numbers, np.int64)[inverse]

    def number_occurrences(self, grams: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Number the occurrences of n-grams: the k-th occurrence of an n-gram has the same number in every caption.

        Thus, if an n-gram occurs m times in one caption and n times in another, the captions have min(m, n) of its
        numbers in common.
        grams: Number of the n-gram of each occurrence. k: Count of each occurrence in its caption, from 1.
        The first occurrence gets the number of the n-gram. Occurrence k gets the number of a longer n-gram, whose last
        word is an artificial word for k. Artificial words are numbered downwards from the largest number.
        """
        features = grams.copy()
        features[k > 1] = self.number_ngrams(grams[k > 1], _LOW - k[k > 1])
        return features


class _Counts(NamedTuple):
    """Counts of the n-grams of captions: arrays with one value per caption and distinct n-gram of this caption.

    caption: Index of the caption. gram: Number that identifies the n-gram. times: How often the n-gram occurs in the
    caption. order: Number of words of the n-gram. lengths: (N,) numbers of words of the captions.
    """

    caption: np.ndarray
    gram: np.ndarray
    times: np.ndarray
    order: np.ndarray
    lengths: np.ndarray


def _count_ngrams(captions: Sequence[Tokens], numbers: _NgramNumbers) -> _Counts:
    """Count the n-grams of each caption. numbers: Table that gives every n-gram a number."""
    lengths = np.array([len(tokens) for tokens in captions], np.int64)
    words = numbers.number_words(chain.from_iterable(captions))
    caption = np.repeat(np.arange(len(captions)), lengths)
    position = np.arange(len(words)) - np.repeat(lengths.cumsum() - lengths, lengths)  # of a word in its caption
    ending = np.zeros(len(words), np.int64)  # the n-gram that ends at each word; at first the empty one
    parts = []
    for order in range(1, ORDERS + 1):
        at = np.flatnonzero(position >= order - 1)
        grams = numbers.number_ngrams(ending[at - 1], words[at])
        ending[at] = grams
        keys, counts = np.unique(caption[at] << 32 | grams, return_counts=True)
        parts.append((keys >> 32, keys & _LOW, counts, np.full(len(keys), order)))
    of_entries = [np.concatenate(part) for part in zip(*parts, strict=True)]
    return _Counts(of_entries[0], of_entries[1], of_entries[2], of_entries[3], lengths)


@dataclass(frozen=True)
class NgramFeatures:
    """Captions as rows of a sparse matrix, for computing CIDEr-D by products of rows.

    A feature is an n-gram and a number k: a caption has the feature if the n-gram occurs at least k times in it. The
    product of a candidate's weights with a reference's weights, summed over features, is the CIDEr-D of these captions
    before the factor that lowers it for captions of different lengths. The N captions have E features in total, ordered
    by caption. start: (N + 1,) index of each caption's first feature. feature: (E,) number of the feature. candidate,
    reference: (E,) weight of the feature if the caption is the candidate or the reference. lengths: (N,) numbers of
    bigrams of the captions. size: Largest possible number of a feature plus 1.
    """

    start: np.ndarray
    feature: np.ndarray
    candidate: np.ndarray
    reference: np.ndarray
    lengths: np.ndarray
    size: int

    def __len__(self) -> int:
        """Return the number of captions."""
        return len(self.lengths)

    def with_appended(self, more: "NgramFeatures") -> "NgramFeatures":
        """Return these features with the features `more` of other captions, which the same CiderD computed later."""
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

    documents: The tokens of the captions of each document. Source: Vedantam et al. 2015, "CIDEr", section 4, as
    computed by pycocoevalcap 1.2 (its class is called Cider). Deviations: none beyond 1e-14. As in pycocoevalcap, an
    n-gram that is in no document counts as if it were in one document. With only one document, every n-gram has the
    weight 0, and every pair of captions the score 0. Raises KitError for an empty list of documents.
    """

    def __init__(self, documents: Sequence[Sequence[Tokens]]) -> None:
        """Compute the document frequencies of all n-grams of the corpus."""
        if not documents:
            raise KitError("the corpus of CIDEr-D has no captions; name data sources or files that have captions")
        self._numbers = _NgramNumbers()
        counts = self._corpus = _count_ngrams([tokens for captions in documents for tokens in captions], self._numbers)
        document = np.repeat(np.arange(len(documents)), [len(captions) for captions in documents])
        pairs = np.sort(document[counts.caption] << 32 | counts.gram)
        distinct = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]
        frequencies = np.bincount(distinct & _LOW, minlength=len(self._numbers))
        self._log_documents = np.log(len(documents))
        self._idf = self._log_documents - np.log(np.maximum(1, frequencies))

    def corpus_features(self) -> NgramFeatures:
        """Return the features of the captions of all documents, in the order of the documents."""
        return self._weigh_features(self._corpus)

    def features(self, captions: Sequence[Tokens]) -> NgramFeatures:
        """Return the features of captions, in float64.

        They can only be compared with features that the same object has computed.
        """
        return self._weigh_features(_count_ngrams(captions, self._numbers))

    def _weigh_features(self, counts: _Counts) -> NgramFeatures:
        """Convert counts of n-grams to sparse features, weighted by the n-grams' document frequencies."""
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
            feature=self._numbers.number_occurrences(counts.gram[entry], occurrence),
            candidate=weights[entry],
            reference=(counts.times * weights)[entry] * (SCALE / ORDERS),
            lengths=np.maximum(0, counts.lengths - 1),
            size=len(self._numbers),
        )
