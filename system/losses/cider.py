"""CIDEr-D between captions, and the factors by which it relaxes the margins of the ranking loss.

CIDEr-D clips the count of an n-gram to the smaller count of the two captions. min(a, b) is the number of k with a >= k
and b >= k, so that with a feature per (n-gram, k) all scores are one sparse product, times a penalty for different
lengths. The product is a loop that numba compiles (kernel.py).

Sources: Vedantam et al. 2015, "CIDEr", section 4, as pycocoevalcap 1.2 computes it (deviations: none beyond 1e-14);
"Take it easy" (2022), section 4, for the factors.
"""

import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field
from scipy import sparse

from data_tools.errors import KitError
from data_tools.settings import Strict
from data_tools.words import lower_composed

# N captions of a set, E different features, B items of a batch

ORDERS, SIGMA, SCALE = 4, 6.0, 10.0  # longest n-gram in words; of the penalty, in words; largest score
FREQUENT = 1 / 12  # share of the captions from which a feature is a full row, which is faster to add
# N-grams are whole numbers, which numpy sorts and counts fast. Two numbers below 2^32 share one of 64 bits, a key:
# `a << 32 | b`; then `key >> 32` is a, and `key & _LOW` is b. Keys of three kinds occur:
# * n-gram a followed by word b, which together are a longer n-gram; the table `_grams` gives each its own number.
#   With "a" 1 and the empty n-gram 0, "a dog" has the key 1 << 32 | (word number of "dog").
# * n-gram b in caption c as one of n words, where a is 4 c + n - 1, so that sorted keys are in groups of equal c and n.
#   Two more bits further, `key >> 34` is c.
# * An n-gram for the k-th time (k > 0, from 0 on) is a feature of its own, as if the word _LOW - k followed it.
_LOW = 0xFFFFFFFF
_SHIFT = 10  # lowest bits of a float32 score that the percentiles ignore: a relative error of 1.2e-4
_OCTAVE = 1 << 20  # bits of a float32 from one bar of the figure to the next, an eighth of an octave
_LOWEST, _HIGHEST = 0x3A8, 0x418  # bars of 2^-10 and 2^4, the end of the histogram
_ROWS, _BLOCK = 512, 1 << 18  # most candidates and scores of a block, which fits into a core's cache

# Clitics are tokens of their own ("'s", "n't"), as are the two halves of "cannot" and its like; a hyphen, apostrophe or
# slash inside a word, and a dot, comma or colon inside a number, stay. Everything else only separates.
_TOKEN = re.compile(
    r"""
      can(?=not\b) | (?:gon|wan)(?=na\b) | got(?=ta\b) | (?:gim|lem)(?=me\b)
    | [^\W_]+?(?=n't\b) | n't\b
    | '(?:s|re|ve|ll|m|d)\b
    | \d+(?:[.,:]\d+)+\b
    | [^\W_]+(?:[-'/](?!(?:s|re|ve|ll|m|d)\b)[^\W_]+)*
    """,
    re.VERBOSE,
)

log = logging.getLogger(__name__)

Tokens = Sequence[str]


class PercentileFactor(Strict):
    """Factor on the margin for pairs of captions whose CIDEr-D is at a percentile of the corpus's scores."""

    percentile: float = Field(ge=0, le=100)  # of the CIDEr-D scores of all pairs
    factor: float = Field(ge=0, le=1)  # factor on the margin from this percentile on


class Cider(Strict):
    """Settings of the CIDEr-D between captions, and of the margin factors that `relax: cider` computes from it.

    Document frequencies and percentiles come from one corpus for all stages. Source: "Take it easy" (2022), section 4.
    Ours, since the paper does not say: a document is a caption (with clips as documents, c80 of Clotho is 0.0151, not
    0.0498), and the CIDEr-D of two clips is the mean over all pairs of their captions.
    """

    kind: Literal["cider"]
    corpus: Annotated[list[str], Field(min_length=1)]  # data sources whose captions are counted
    tokenizer: Literal["regex", "ptb"]  # ptb needs Java
    relax: Annotated[list[PercentileFactor], Field(min_length=1)]  # percentiles must rise, factors must not


def regex_tokens(caption: str) -> list[str]:
    """Return the lower-case tokens of a caption as PTBTokenizer does, without Java and punctuation.

    Source: pycocoevalcap's PTBTokenizer (Stanford CoreNLP 3.4.1). Deviations: none on Clotho's 29,645 captions; 20 of
    AudioCaps' 57,188 differ, where PTBTokenizer keeps brackets, symbols, and words around a dot as one token.

    >>> regex_tokens("A dog's bark, far-off: it cannot stop.")
    ['a', 'dog', "'s", 'bark', 'far-off', 'it', 'can', 'not', 'stop']
    """
    return _TOKEN.findall(lower_composed(caption).replace("’", "'"))


def tokenize(captions: Sequence[str], tokenizer: str) -> list[list[str]]:
    """Return the tokens of each caption, by `regex` or by pycocoevalcap's `ptb`, in one Java process."""
    if tokenizer == "regex" or not captions:
        return [regex_tokens(caption) for caption in captions]
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    if shutil.which("java") is None:
        raise KitError("the tokenizer ptb needs Java, and `java` is missing; install it, or set tokenizer: regex")
    tokens = PTBTokenizer().tokenize({n: [{"caption": " ".join(one.split())}] for n, one in enumerate(captions)})
    if len(tokens) != len(captions):
        raise KitError(f"Java tokenized {len(tokens)} lines of {len(captions)} captions; set tokenizer: regex")
    return [tokens[n][0].split() for n in range(len(captions))]


class Features(NamedTuple):
    """The features of captions, as weights of candidates and of references in sparse matrices (N, E)."""

    candidate: sparse.csr_array
    reference: sparse.csr_array
    lengths: np.ndarray  # (N,) bigrams


class CiderD:
    """CIDEr-D with the document frequencies of a corpus, a list of documents with captions.

    An n-gram that is in no document counts as if it were in one.
    """

    def __init__(self, documents: Sequence[Sequence[Tokens]]) -> None:
        self._words: dict[str, int] = {}
        self._grams: dict[int, int] = {}  # number by the numbers of its beginning and its last word; 0 is the empty one
        captions = [tokens for document in documents for tokens in document]
        keys, self._most = self._keys(captions), np.log(len(documents))
        document = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
        distinct = np.unique(document[keys >> 34] << 32 | keys & _LOW)
        frequencies = np.bincount(distinct & _LOW, minlength=len(self._grams) + 1)
        self._idf = self._most - np.log(np.maximum(1, frequencies))
        self.corpus = self._weigh(captions, keys)

    def features(self, captions: Sequence[Tokens]) -> Features:
        return self._weigh(captions, self._keys(captions))

    def _numbers(self, beginnings: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the number of each n-gram, by the numbers of its beginning and of its last word."""
        keys, inverse = np.unique(beginnings << 32 | last, return_inverse=True)
        return np.array([self._grams.setdefault(key, len(self._grams) + 1) for key in keys.tolist()], int)[inverse]

    def _keys(self, captions: Sequence[Tokens]) -> np.ndarray:
        """Return a key of every n-gram of every caption: the caption, the order - 1 (2 bits), and its number."""
        lengths = np.array([len(tokens) for tokens in captions], int)
        words = np.array([self._words.setdefault(w, len(self._words)) for w in chain.from_iterable(captions)], int)
        caption = np.repeat(np.arange(len(captions)), lengths)
        position = np.arange(len(words)) - np.repeat(lengths.cumsum() - lengths, lengths)
        ending, parts = np.zeros(len(words), int), []  # the n-gram that ends at each word
        for order in range(ORDERS):
            at = np.flatnonzero(position >= order)
            ending[at] = self._numbers(ending[at - 1] if order else ending[at], words[at])
            parts.append((caption[at] * ORDERS + order) << 32 | ending[at])
        return np.concatenate(parts)

    def _weigh(self, captions: Sequence[Tokens], keys: np.ndarray) -> Features:
        distinct, times = np.unique(keys, return_counts=True)
        group, gram = distinct >> 32, distinct & _LOW  # a group: the n-grams of one caption and order
        idf = np.full(len(self._grams) + 1, self._most)
        idf[: len(self._idf)] = self._idf
        norms = np.sqrt(np.bincount(group, (times * idf[gram]) ** 2))[group]
        weights = np.divide(idf[gram], norms, out=np.zeros_like(norms), where=norms > 0)
        entry = np.repeat(np.arange(len(gram)), times)
        k = np.arange(len(entry)) - np.repeat(times.cumsum() - times, times)
        feature = gram[entry]
        feature[k > 0] = self._numbers(feature[k > 0], _LOW - k[k > 0])  # as if k were a word
        start = np.searchsorted(group[entry], np.arange(len(captions) + 1) * ORDERS)
        shape = len(captions), len(self._grams) + 1
        candidate, reference = weights[entry], (times * weights)[entry] * (SCALE / ORDERS)
        as_candidate, as_reference = (
            sparse.csr_array((one, feature.astype(np.int32), start.astype(np.int32)), shape)
            for one in (candidate, reference)
        )
        return Features(as_candidate, as_reference, np.array([max(0, len(tokens) - 1) for tokens in captions], int))


class CiderAmong:
    """CIDEr-D between any two of N captions, rows `members` of the features."""

    def __init__(self, features: Features, members: np.ndarray, dtype: Any = np.float32) -> None:
        from system.losses import kernel  # imports numba, which takes half a second

        self.kernel, self._dtype = kernel, dtype
        candidates, references = features.candidate[members], features.reference[members]
        # Only the features of these captions get a column, in the order in which the captions have them, so that the
        # columns of a caption are near each other in a core's cache.
        number = np.full(candidates.shape[1], -1, np.int32)
        columns = kernel.number_by_use(candidates.indices, number)  # of both: they have the same features
        parts = columns, candidates.indptr
        shape = len(members), int(number.max(initial=-1)) + 1
        self._candidates = sparse.csr_array((candidates.data.astype(dtype), *parts), shape)
        references = sparse.csr_array((references.data.astype(dtype), *parts), shape).tocsc()
        frequent = np.flatnonzero(np.diff(references.indptr) > FREQUENT * len(members))
        dense_row = np.full(references.shape[1], -1, np.int32)
        dense_row[frequent] = np.arange(len(frequent))
        dense = np.ascontiguousarray(references[:, frequent].toarray().T)
        self._references = references.indptr, references.indices, references.data, dense_row, dense
        lengths = features.lengths[members]
        levels, self._level = np.unique(lengths, return_inverse=True)
        self._penalty = np.exp((levels[:, None] - lengths) ** 2 / (-2 * SIGMA**2)).astype(dtype)

    def __len__(self) -> int:
        return len(self._level)

    def scores(self, first: int, last: int) -> np.ndarray:
        """Compute CIDEr-D of candidates `first` to `last` - 1 (rows) with all N captions as references (columns)."""
        found, rows = np.empty((last - first, len(self)), self._dtype), self._candidates[first:last]
        candidates = rows.indptr, rows.indices, rows.data, self._level[first:last]
        self.kernel.score_captions(candidates, self._references, self._penalty, found)
        return found

    def each_thread(self, work: Callable[[Iterator[tuple[int, np.ndarray]]], Any]) -> list[Any]:
        """Give each thread a share of the scores, in blocks: the first candidate, and its row and later ones."""
        rows, count = max(1, min(_ROWS, _BLOCK // max(1, len(self)))), os.cpu_count() or 1

        def blocks(thread: int) -> Iterator[tuple[int, np.ndarray]]:
            for first in range(thread * rows, len(self), count * rows):
                yield first, self.scores(first, min(first + rows, len(self)))

        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(lambda thread: work(blocks(thread)), range(count)))

    def of_items(self, item: np.ndarray) -> np.ndarray:
        """Average the scores of the captions of two items, (B, B).

        Args:
            item: (N,) item of each caption, in rising order.
        """

        def add(blocks: Iterator[tuple[int, np.ndarray]]) -> np.ndarray:
            sums = np.zeros((int(item[-1]) + 1,) * 2, self._dtype)
            for first, block in blocks:
                self.kernel.add_to_items(block, item[first:], item, sums)
            return sums

        counts = np.bincount(item).astype(self._dtype)
        found: np.ndarray = np.sum(self.each_thread(add), axis=0) / np.outer(counts, counts)
        return found


class Distribution(NamedTuple):
    """CIDEr-D of all ordered pairs of captions, also of a caption with itself."""

    pairs: int
    percentiles: list[float]  # by up to a relative 1.2e-4 too low
    counts: list[int]  # of pairs with edges[k] <= score < edges[k + 1]
    edges: list[float]


def distribution(features: Features, percents: Sequence[float]) -> Distribution:
    """Count all scores by the upper bits of float32, which are ordered as the scores."""
    among = CiderAmong(features, np.argsort(features.lengths, kind="stable"))  # neighbours share a row of the penalty

    def count(blocks: Iterator[tuple[int, np.ndarray]]) -> np.ndarray:
        counts = np.zeros(_HIGHEST * _OCTAVE >> _SHIFT, np.int64)
        for _, block in blocks:
            among.kernel.count_upper_bits(block.ravel().view(np.uint32), _SHIFT, counts)
        return counts

    counts = np.sum(among.each_thread(count), axis=0)
    pairs = int(counts.sum())
    bins = np.searchsorted(counts.cumsum(), np.array(percents) * (pairs - 1) // 100, side="right")
    bars = counts.reshape(_HIGHEST, -1).sum(1)
    edges = (np.arange(_LOWEST, _HIGHEST + 1) * _OCTAVE).astype(np.uint32).view(np.float32)
    percentiles = (bins << _SHIFT).astype(np.uint32).view(np.float32)
    sizes = [bars[:_LOWEST].sum(), *bars[_LOWEST:]]
    return Distribution(pairs, percentiles.tolist(), sizes, [0.0, *edges.tolist()])


def margin_factor(scores: np.ndarray, thresholds: Sequence[float], factors: Sequence[float]) -> np.ndarray:
    """Interpolate the factor on the margin; where thresholds are equal, it steps down above them."""
    found: np.ndarray = np.interp(-scores, -np.array(thresholds[::-1]), factors[::-1]).astype(np.float32)
    return found


class Relevance:
    """CIDEr-D between training captions, and margin factors by its percentiles in a corpus of clips' captions."""

    def __init__(self, settings: Cider, corpus: Sequence[Sequence[str]]) -> None:
        self.settings, self._rows, self._lock = settings, dict[str, int](), threading.Lock()
        captions = self._tokenize([caption for captions in corpus for caption in captions])
        if len(captions) < 2:
            raise KitError(f"CIDEr-D needs two captions, not {len(captions)}; add data")
        self._cider = CiderD([[caption] for caption in captions])
        percents = [point.percentile for point in settings.relax]
        self.distribution = distribution(self._cider.corpus, percents)
        named = [f"c{q:g} {c:.5f}" for q, c in zip(percents, self.distribution.percentiles, strict=True)]
        log.info("CIDEr-D of %s pairs of captions: %s", f"{self.distribution.pairs:,}", ", ".join(named))
        self.prepare([])

    def _tokenize(self, captions: Sequence[str]) -> list[list[str]]:
        return tokenize(captions, self.settings.tokenizer)

    def margin_factor(self, scores: np.ndarray) -> np.ndarray:
        """Return the factor r(c) of each score, by the corpus's percentiles."""
        return margin_factor(scores, self.distribution.percentiles, [point.factor for point in self.settings.relax])

    def prepare(self, captions: Iterable[str]) -> None:
        """Compute the features of more captions, so that batches of them are fast."""
        self._rows = {caption: row for row, caption in enumerate(dict.fromkeys([*self._rows, *captions]))}
        self._features = self._cider.features(self._tokenize(list(self._rows)))

    def among(self, captions: Sequence[str]) -> CiderAmong:
        """Return CIDEr-D between N captions."""
        rows, features = self._rows, self._features
        if not all(caption in rows for caption in captions):
            rows = {caption: row for row, caption in enumerate(dict.fromkeys(captions))}
            with self._lock:  # new words are numbered
                features = self._cider.features(self._tokenize(list(rows)))
        return CiderAmong(features, np.array([rows[caption] for caption in captions], int))

    def cider_of_items(self, captions: Sequence[str], row_of: np.ndarray) -> np.ndarray:
        """Compute c_ij of any two items, (B, B).

        It is the mean over the captions of item i (candidates) and item j (references).

        Args:
            row_of: (N,) item of each caption.
        """
        order = np.argsort(row_of, kind="stable")
        return self.among([captions[n] for n in order]).of_items(row_of[order])
