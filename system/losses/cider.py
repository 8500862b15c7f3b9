"""CIDEr-D between captions, and margin factors from it.

CIDEr-D clips the count of an n-gram to the smaller count of the two captions. min(a, b) is the number of k with a >= k
and b >= k, so that with a feature per (n-gram, k) all scores are one sparse product, times a penalty for different
lengths. The product is a loop that numba compiles (kernel.py).

Sources: Vedantam et al. 2015, "CIDEr", section 4, as pycocoevalcap 1.2 computes it (deviations: none beyond 1e-14);
"Take it easy" (2022), section 4, for the factors on the margins of the ranking loss.
"""

import logging
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, pairwise
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
THREADS = os.cpu_count() or 1
# N-grams have numbers below 2^32. A key is one of a caption: `caption << 34 | order << 32 | number`, the order 0 to 3;
# sorted keys are in groups of equal caption and order.
_LOW = 0xFFFFFFFF
_SHIFT = 10  # lowest bits of a float32 score that the percentiles ignore: a relative error of 1.2e-4
_BINS = 0x41800000 >> _SHIFT  # below the bits of 16.0; no score is above 10

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
    """The factor on the margin at a percentile of CIDEr-D."""

    percentile: float = Field(ge=0, le=100)  # of the CIDEr-D scores of all pairs
    factor: float = Field(ge=0, le=1)  # factor on the margin from this percentile on


class Cider(Strict):
    """Settings of CIDEr-D between captions, and of margin factors.

    Losses with `relax: cider` use the factors. Document frequencies and percentiles come from one corpus for all
    stages.

    Source: "Take it easy" (2022), section 4. Ours, since the paper does not say: a document is a caption (with clips as
    documents, c80 of Clotho is 0.0151, not 0.0498), and the CIDEr-D of two clips is the mean over all pairs of their
    captions.
    """

    kind: Literal["cider"]
    corpus: Annotated[list[str], Field(min_length=1)]  # data sources whose captions are counted
    tokenizer: Literal["regex", "ptb"]  # ptb needs Java
    relax: Annotated[list[PercentileFactor], Field(min_length=1)]  # percentiles must rise, factors must not


def regex_tokens(caption: str) -> list[str]:
    """Return the tokens of a caption as PTBTokenizer does.

    They are in lower case and without punctuation. Java is not needed.

    Source: pycocoevalcap's PTBTokenizer (Stanford CoreNLP 3.4.1). Deviations: none on Clotho's 29,645 captions; 20 of
    AudioCaps' 57,188 differ, where PTBTokenizer keeps brackets, symbols, and words around a dot as one token.

    >>> regex_tokens("A dog's bark, far-off: it cannot stop.")
    ['a', 'dog', "'s", 'bark', 'far-off', 'it', 'can', 'not', 'stop']
    """
    return _TOKEN.findall(lower_composed(caption).replace("’", "'"))


def tokenize(captions: Sequence[str], tokenizer: str) -> list[list[str]]:
    """Return the tokens of each caption.

    Args:
        tokenizer: `regex`, or pycocoevalcap's `ptb` in one Java process.
    """
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
    """Weights of captions' features, in sparse matrices (N, E)."""

    candidate: sparse.csr_array
    reference: sparse.csr_array
    lengths: np.ndarray  # (N,) bigrams


class CiderD:
    """CIDEr-D with the document frequencies of a corpus.

    A document is a list of captions. An n-gram that is in no document counts as if it were in one.
    """

    def __init__(self, documents: Sequence[Sequence[Tokens]]) -> None:
        self._numbers: dict[Any, int] = defaultdict(count().__next__)  # of n-grams; a new one gets the next number
        captions = list(chain.from_iterable(documents))
        keys, self._most = self._keys(captions, self._numbers), np.log(len(documents))
        document = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
        distinct, _ = np.unique(document[keys >> 34] << 32 | keys & _LOW, return_counts=True)  # faster than without
        self._idf = self._most - np.log(np.maximum(1, np.bincount(distinct & _LOW)))
        self.corpus = self._weigh(captions, keys, self._numbers)

    def features(self, captions: Sequence[Tokens]) -> Features:
        numbers = defaultdict(count(len(self._numbers)).__next__, self._numbers)  # new ones are forgotten again
        return self._weigh(captions, self._keys(captions, numbers), numbers)

    def _keys(self, captions: Sequence[Tokens], numbers: dict[Any, int]) -> np.ndarray:
        """Return a key of every n-gram of every caption."""
        keys = [
            (caption * ORDERS + order) << 32 | numbers[gram]
            for caption, tokens in enumerate(captions)
            for order in range(ORDERS)
            for gram in zip(*(tokens[first:] for first in range(order + 1)), strict=False)
        ]
        return np.array(keys, np.int64)

    def _weigh(self, captions: Sequence[Tokens], keys: np.ndarray, numbers: dict[Any, int]) -> Features:
        keys = np.sort(keys)
        before = np.searchsorted(keys, keys)  # number of smaller keys
        times = np.searchsorted(keys, keys, side="right") - before  # of an n-gram in its caption
        group, gram = keys >> 32, keys & _LOW  # a group: the n-grams of one caption and order
        idf = np.full(len(numbers), self._most)
        idf[: len(self._idf)] = self._idf
        norms = np.sqrt(np.bincount(group, times * idf[gram] ** 2))[group]
        weights = np.divide(idf[gram], norms, out=np.zeros_like(norms), where=norms > 0)
        k = np.arange(len(keys)) - before
        features, feature = np.unique(gram + k * len(numbers), return_inverse=True)
        start = np.searchsorted(group, np.arange(len(captions) + 1) * ORDERS)
        places, shape = (feature.astype(np.int32), start.astype(np.int32)), (len(captions), len(features))
        candidate = sparse.csr_array((weights, *places), shape)
        reference = sparse.csr_array((times * weights * (SCALE / ORDERS), *places), shape)
        return Features(candidate, reference, np.array([max(0, len(tokens) - 1) for tokens in captions], int))


class CiderAmong:
    """CIDEr-D between any two of N captions.

    The captions are the rows `members` of the features.
    """

    def __init__(self, features: Features, members: np.ndarray, dtype: Any = np.float32) -> None:
        from system.losses import kernel  # imports numba, which takes half a second

        self.kernel, self._dtype = kernel, dtype
        candidates, references = features.candidate[members], features.reference[members]
        # Only the features of these captions get a column, so that the columns fit into a core's cache.
        number = (np.bincount(candidates.indices) > 0).cumsum(dtype=np.int32) - 1
        parts = references.data.astype(dtype), number[references.indices], references.indptr
        references = sparse.csr_array(parts, (len(members), number.max(initial=-1) + 1)).tocsc()
        frequent = np.flatnonzero(np.diff(references.indptr) > FREQUENT * len(members))
        dense_row = np.full(references.shape[1], -1, np.int32)
        dense_row[frequent] = np.arange(len(frequent))
        lengths = features.lengths[members]
        levels, level = np.unique(lengths, return_inverse=True)
        self._pairs = (
            *(candidates.indptr, number[candidates.indices], candidates.data.astype(dtype), level),
            *(references.indptr, references.indices, references.data),
            *(dense_row, np.ascontiguousarray(references[:, frequent].toarray().T)),
            np.exp((levels[:, None] - lengths) ** 2 / (-2 * SIGMA**2)).astype(dtype),
        )

    def run(self, loop: Callable[..., None], more: Any, found: np.ndarray) -> np.ndarray:
        """Run a loop of the kernel over all candidates, in threads.

        Args:
            more: The loop's fourth argument.
            found: To which the loop writes; it is returned.
        """
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda thread: loop(thread, THREADS, self._pairs, more, found), range(THREADS)))
        return found

    def of_items(self, counts: Sequence[int]) -> np.ndarray:
        """Average the scores of two items' captions, (B, B).

        The captions of row i are candidates, those of column j references.

        Args:
            counts: (B,) number of captions of each item; they follow each other.
        """
        starts, number = np.cumsum([0, *counts]), np.array(counts, self._dtype)
        sums = np.empty((len(number), len(number)), self._dtype)
        return self.run(self.kernel.sum_by_items, starts, sums) / np.outer(number, number)


def percentiles(features: Features, percents: Sequence[float]) -> list[float]:
    """Return percentiles of the CIDEr-D of all ordered pairs.

    A caption is also paired with itself. Percentiles are too low by up to a relative 1.2e-4, since scores are counted
    by the upper bits of float32.
    """
    among = CiderAmong(features, np.argsort(features.lengths, kind="stable"))  # neighbours share a row of the penalty
    counts = among.run(among.kernel.count_upper_bits, _SHIFT, np.zeros((THREADS, _BINS), int)).sum(0).cumsum()
    bins = np.searchsorted(counts, np.array(percents) * (counts[-1] - 1) // 100, side="right")
    return [float(one) for one in (bins << _SHIFT).astype(np.uint32).view(np.float32)]


class Relevance:
    """CIDEr-D between training captions, and margin factors from it.

    The percentiles are those of a corpus, the captions of clips.
    """

    def __init__(self, settings: Cider, corpus: Sequence[Sequence[str]]) -> None:
        self.settings = settings
        captions = tokenize(list(chain.from_iterable(corpus)), settings.tokenizer)
        if len(captions) < 2:
            raise KitError(f"CIDEr-D needs two captions, not {len(captions)}; add data")
        self._cider = CiderD([[caption] for caption in captions])
        percents = [point.percentile for point in settings.relax]
        self.percentiles = percentiles(self._cider.corpus, percents)
        named = [f"c{q:g} {c:.5f}" for q, c in zip(percents, self.percentiles, strict=True)]
        log.info("CIDEr-D of %s pairs of captions: %s", f"{len(captions) ** 2:,}", ", ".join(named))
        self.prepare([])

    def margin_factor(self, scores: np.ndarray) -> np.ndarray:
        """Interpolate the factor r(c) of each score.

        Where percentiles are equal, it steps down above them.
        """
        points = [*zip(self.percentiles, self.settings.relax, strict=True)]
        factors = np.full_like(scores, points[0][1].factor)
        for (low, before), (high, after) in pairwise(points):  # some passes, 8 times faster than np.interp
            factors += (after.factor - before.factor) * np.clip((scores - low) / max(high - low, 1e-30), 0, 1)
        return np.maximum(factors, points[-1][1].factor)  # rounding may end just below it

    def prepare(self, captions: Iterable[str]) -> None:
        """Compute the features of captions, for fast batches of them."""
        self._rows, self._features = self._table(captions)

    def _table(self, captions: Iterable[str]) -> tuple[dict[str, int], Features]:
        """Return the features of different captions, and the row of each."""
        rows = {caption: row for row, caption in enumerate(dict.fromkeys(captions))}
        return rows, self._cider.features(tokenize(list(rows), self.settings.tokenizer))

    def among(self, captions: Sequence[str]) -> CiderAmong:
        """Return CIDEr-D between N captions."""
        rows, features = self._rows, self._features
        if not rows.keys() >= set(captions):
            rows, features = self._table(captions)
        return CiderAmong(features, np.array([rows[caption] for caption in captions], int))
