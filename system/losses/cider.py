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
from itertools import chain, pairwise
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from data_tools.errors import KitError
from data_tools.settings import Strict
from data_tools.words import lower_composed

ORDERS, SIGMA, SCALE = 4, 6.0, 10.0  # longest n-gram in words; of the penalty, in words; largest score
_LOW = 0xFFFFFFFF  # lower half of a key; all numbers are below it
_SHIFT = 10  # lowest bits of a float32 score that the percentiles ignore: a relative error of 6e-5
_BINS = (int(np.float32(16).view(np.uint32)) >> _SHIFT) + 1
_PART, _BLOCK = 512, 1 << 18  # candidates of a thread's part; scores of a block, which fit into a core's cache
_EDGES = np.exp2(np.arange(-80, 33) / 8)  # of the histogram, from 0.001 to 16

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
    """

    kind: Literal["cider"]
    corpus: Annotated[list[str], Field(min_length=1)]  # data sources whose captions are counted
    documents: Literal["caption", "clip"]  # document frequencies count captions or clips
    tokenizer: Literal["regex", "ptb"]  # ptb needs Java
    of_clips: Literal["mean", "max"]  # c_ij of clips with several captions
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
        said = f"it gave {len(tokens)} lines for {len(captions)} captions; see Java's error message above"
        raise KitError(f"the tokenizer ptb failed: {said}, or set tokenizer: regex")
    return [tokens[n][0].split() for n in range(len(captions))]


class Features(NamedTuple):
    """Captions as rows of a sparse matrix, N captions with E features in all, ordered by caption."""

    start: np.ndarray  # (N + 1,) each caption's first feature
    feature: np.ndarray  # (E,) number of the n-gram and its k
    candidate: np.ndarray  # (E,) weight if the caption is the candidate
    reference: np.ndarray  # (E,) weight if the caption is the reference
    lengths: np.ndarray  # (N,) bigrams
    size: int  # largest possible number of a feature, plus 1


class CiderD:
    """CIDEr-D with the document frequencies of a corpus, a list of documents with captions.

    An n-gram that is in no document counts as if it were in one.
    """

    def __init__(self, documents: Sequence[Sequence[Tokens]]) -> None:
        if not documents:
            raise KitError("the corpus of CIDEr-D has no captions; name data sources or files that have captions")
        self._words: dict[str, int] = {}
        self._grams: dict[int, int] = {}  # number by the numbers of its beginning and its last word; 0 is the empty one
        self._idf = np.zeros(0)
        self.captions = [tokens for captions in documents for tokens in captions]
        self._corpus = caption, gram, *_ = self._counts(self.captions)
        document = np.repeat(np.arange(len(documents)), [len(captions) for captions in documents])
        distinct = np.unique(document[caption] << 32 | gram)
        frequencies = np.bincount(distinct & _LOW, minlength=len(self._grams) + 1)
        self._most = np.log(len(documents))
        self._idf = self._most - np.log(np.maximum(1, frequencies))

    def _numbers(self, beginnings: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the number of each n-gram, by the numbers of its beginning and of its last word."""
        keys, inverse = np.unique(beginnings << 32 | last, return_inverse=True)
        return np.array([self._grams.setdefault(key, len(self._grams) + 1) for key in keys.tolist()], int)[inverse]

    def _counts(self, captions: Sequence[Tokens]) -> tuple[np.ndarray, ...]:
        """Return caption, n-gram, count and order of each caption's distinct n-grams."""
        lengths = np.array([len(tokens) for tokens in captions], int)
        words = np.array([self._words.setdefault(w, len(self._words)) for w in chain.from_iterable(captions)], int)
        caption = np.repeat(np.arange(len(captions)), lengths)
        position = np.arange(len(words)) - np.repeat(lengths.cumsum() - lengths, lengths)
        ending, parts = np.zeros(len(words), int), []  # the n-gram that ends at each word
        for order in range(ORDERS):
            at = np.flatnonzero(position >= order)
            ending[at] = self._numbers(ending[at - 1] if order else ending[at], words[at])
            keys, counts = np.unique(caption[at] << 32 | ending[at], return_counts=True)
            parts.append((keys >> 32, keys & _LOW, counts, np.full(len(keys), order)))
        return tuple(map(np.concatenate, zip(*parts, strict=True)))

    def features(self, captions: Sequence[Tokens]) -> Features:
        """Return the features of captions; they fit those of all captions of the same object."""
        caption, gram, times, order = self._corpus if captions is self.captions else self._counts(captions)
        by_caption = np.argsort(caption, kind="stable")
        caption, gram, times, order = (one[by_caption] for one in (caption, gram, times, order))
        idf = np.full(len(self._grams) + 1, self._most)
        idf[: len(self._idf)] = self._idf
        of_order = caption * ORDERS + order
        norms = np.sqrt(np.bincount(of_order, (times * idf[gram]) ** 2, minlength=len(captions) * ORDERS))[of_order]
        weights = np.divide(idf[gram], norms, out=np.zeros_like(norms), where=norms > 0)
        entry = np.repeat(np.arange(len(gram)), times)
        k = np.arange(len(entry)) - np.repeat(times.cumsum() - times, times)
        feature = gram[entry]
        feature[k > 0] = self._numbers(feature[k > 0], _LOW - k[k > 0])  # as if k were a word
        start = np.concatenate([[0], np.bincount(caption[entry], minlength=len(captions)).cumsum()])
        lengths = np.array([max(0, len(tokens) - 1) for tokens in captions], int)
        reference = (times * weights)[entry] * (SCALE / ORDERS)
        return Features(start, feature, weights[entry], reference, lengths, len(self._grams) + 1)


class CiderAmong:
    """CIDEr-D between any two of M captions, rows `members` of the features."""

    def __init__(self, features: Features, members: np.ndarray, dtype: Any = np.float32) -> None:
        from system.losses import kernel  # imports numba, which takes half a second

        self._features, self._members, self._dtype, self._kernel = features, members, dtype, kernel
        lengths = features.lengths[members]
        levels, self._level = np.unique(lengths, return_inverse=True)
        self._penalty = np.exp((levels[:, None] - lengths) ** 2 / (-2 * SIGMA**2)).astype(dtype)
        f, like = features, np.empty(0, dtype)
        self._postings = kernel.build_postings(members, f.start, f.feature, f.reference, f.size, like)

    def __len__(self) -> int:
        return len(self._members)

    def scores(self, first: int, last: int) -> np.ndarray:
        """Compute CIDEr-D of candidates `first` to `last` - 1 (rows) with all M captions as references (columns)."""
        f, out = self._features, np.empty((last - first, len(self)), self._dtype)
        members, level = self._members[first:last], self._level[first:last]
        self._kernel.score_captions(members, f.start, f.feature, f.candidate, self._postings, level, self._penalty, out)
        return out

    def blocks(self, apply: Callable[[int, np.ndarray], Any]) -> Iterator[Any]:
        """Yield the results of a function of the first candidate and the scores of each block, by threads."""
        rows = max(1, min(_PART, _BLOCK // max(1, len(self))))
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            starts = range(0, len(self), rows)
            yield from threads.map(lambda at: apply(at, self.scores(at, min(at + rows, len(self)))), starts)

    def of_items(self, item: np.ndarray, is_max: bool) -> np.ndarray:
        """Sum the scores of the captions of any two items, or take the highest, (B, B). item: (M,) in rising order."""
        size = int(item[-1]) + 1
        sums = np.zeros((size, size), self._dtype)
        cuts = np.searchsorted(item, np.arange(0, size, -(-size // (os.cpu_count() or 1)))).tolist()

        def add(first: int, last: int) -> None:
            for at in range(first, last, 64):
                block = self.scores(at, min(at + 64, last))
                self._kernel.join_items(block, item[at:last], item, is_max, sums)

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(add, cuts, [*cuts[1:], len(item)]))
        return sums


class Distribution(NamedTuple):
    """CIDEr-D of all ordered pairs of captions, also of a caption with itself."""

    pairs: int
    zeros: int
    mean: float
    percentiles: list[float]  # to a relative 6e-5
    counts: list[int]  # of pairs with edges[k] <= score < edges[k + 1]
    edges: list[float]


def distribution(features: Features, percents: Sequence[float]) -> Distribution:
    """Count all scores by the upper bits of float32, which are ordered as the scores."""
    order = np.argsort(features.lengths, kind="stable")  # neighbours share a row of the penalty
    among, local = CiderAmong(features, order), threading.local()
    tables: list[np.ndarray] = []

    def count(_: int, block: np.ndarray) -> float:
        if not hasattr(local, "counts"):
            local.counts = np.zeros(_BINS, np.int64)
            tables.append(local.counts)
        among._kernel.count_upper_bits(block.ravel().view(np.uint32), _SHIFT, local.counts)
        return float(block.sum(dtype=np.float64))

    total = sum(among.blocks(count))
    counts = np.sum(tables, axis=0)
    pairs, up_to = int(counts.sum()), counts.cumsum()
    bins = np.searchsorted(up_to, [int(q * (pairs - 1) // 100) for q in percents], side="right").astype(np.uint32)
    middles = np.where(bins > 0, bins << _SHIFT | 1 << _SHIFT - 1, 0).astype(np.uint32).view(np.float32)
    first = np.append(np.uint32(0), _EDGES.astype(np.float32).view(np.uint32) >> _SHIFT)
    sizes = np.add.reduceat(counts, first[:-1].astype(int)).tolist()
    edges = (first << _SHIFT).view(np.float32).tolist()
    return Distribution(pairs, int(counts[0]), total / pairs, middles.tolist(), sizes, edges)


class Corpus:
    """CIDEr-D with the document frequencies of the captions of clips; a document is a caption, or a clip's captions."""

    def __init__(self, clips: Sequence[Sequence[str]], documents: str, tokenizer: str) -> None:
        self._tokenizer, ends = tokenizer, np.cumsum([len(captions) for captions in clips], dtype=int)
        tokens = tokenize([caption for captions in clips for caption in captions], tokenizer)
        of_clips = [tokens[end - len(each) : end] for each, end in zip(clips, ends, strict=True) if each]
        counted = of_clips if documents == "clip" else [[caption] for caption in tokens]
        if len(counted) < 2:
            raise KitError(f"CIDEr-D needs two {documents}s with captions, not {len(counted)}; use a larger corpus")
        self._cider = CiderD(counted)

    def features(self, captions: Sequence[str]) -> Features:
        return self._cider.features(tokenize(captions, self._tokenizer))

    def distribution(self, percents: Sequence[float]) -> Distribution:
        return distribution(self._cider.features(self._cider.captions), percents)


class MarginFactor:
    """The factor r(c) on the margin: linear between thresholds, constant outside, a step if two are equal."""

    def __init__(self, thresholds: Sequence[float], factors: Sequence[float]) -> None:
        self.thresholds, self.factors = list(thresholds), list(factors)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        relaxed = np.full(scores.shape, self.factors[0], np.float32)
        steps = zip(pairwise(self.thresholds), pairwise(self.factors), strict=True)
        for (low, high), (factor, following) in steps:
            share = np.clip((scores - low) / (high - low), 0, 1) if high > low else scores > low
            relaxed += share * np.float32(following - factor)
        return relaxed


class Relevance:
    """CIDEr-D between training captions, and margin factors by its percentiles in a corpus of clips' captions."""

    def __init__(self, settings: Cider, corpus: Sequence[Sequence[str]]) -> None:
        percents = [point.percentile for point in settings.relax]
        if any(later <= earlier for earlier, later in pairwise(percents)):
            raise KitError(f"the percentiles of relax must rise, but are {percents}; sort them, without duplicates")
        self._settings, self._corpus = settings, Corpus(corpus, settings.documents, settings.tokenizer)
        self.distribution = self._corpus.distribution(percents)
        self.thresholds = self.distribution.percentiles
        log.info("CIDEr-D of %s pairs of captions: %s", f"{self.distribution.pairs:,}",
                 ", ".join(f"c{q:g} {c:.5f}" for q, c in zip(percents, self.thresholds, strict=True)))  # fmt: skip
        if len(set(self.thresholds)) < len(self.thresholds):
            log.warning("relax: some percentiles of CIDEr-D are equal (%s); use a larger corpus", self.thresholds)
        self.margin_factor = MarginFactor(self.thresholds, [point.factor for point in settings.relax])
        self._rows: dict[str, int] = {}
        self._features, self._lock = self._corpus.features([]), threading.Lock()

    def prepare(self, captions: Iterable[str]) -> None:
        """Compute the features of captions, so that batches of them are fast."""
        self._rows = {caption: row for row, caption in enumerate(dict.fromkeys([*self._rows, *captions]))}
        self._features = self._corpus.features(list(self._rows))

    def _among(self, captions: Sequence[str]) -> CiderAmong:
        rows, features = self._rows, self._features
        if not all(caption in rows for caption in captions):
            rows = {caption: row for row, caption in enumerate(dict.fromkeys(captions))}
            with self._lock:  # it numbers new words
                features = self._corpus.features(list(rows))
        return CiderAmong(features, np.array([rows[caption] for caption in captions], int))

    def cider_between(self, captions: Sequence[str]) -> np.ndarray:
        """Compute CIDEr-D of N captions as candidates (rows) with all of them as references, (N, N)."""
        return self._among(captions).scores(0, len(captions))

    def cider_of_items(self, captions: Sequence[str], row_of: np.ndarray) -> np.ndarray:
        """Compute c_ij, the mean or the maximum over the captions of item i (candidates) and item j (references).

        Args:
            row_of: (N,) item of each caption.
        """
        order = np.argsort(row_of, kind="stable")
        is_max, counts = self._settings.of_clips == "max", np.bincount(row_of).astype(np.float32)
        joined = self._among([captions[n] for n in order]).of_items(row_of[order], is_max)
        return joined if is_max else joined / np.outer(counts, counts)
