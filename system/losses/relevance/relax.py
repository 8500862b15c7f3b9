"""Relax margins by the similarity of captions.

The ranking loss of a batch then has lower margins for similar captions.

Source: "Take it easy" (2022), section 4. The margin between items i and j is multiplied by r(c_ij), where c_ij is the
CIDEr-D of their captions. r(c) is 1 for low c, and falls as c rises from one percentile of all scores of a corpus to
the next.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from data_tools.errors import KitError
from data_tools.files import write_text
from data_tools.settings import Strict
from system.losses.relevance.pairs import CiderAmong, Distribution, distribution
from system.losses.relevance.scorer import CiderD, NgramFeatures
from system.losses.relevance.tokens import tokenize

VERSION = 2  # raised by hand when the same corpus and settings begin to give other percentiles

log = logging.getLogger(__name__)

# N captions of a batch, B items of it


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
    pairs: Literal["all", "other_clips"]  # ordered pairs for the percentiles: all, or only pairs of different clips
    of_clips: Literal["mean", "max", "symmetric"]  # c_ij of clips with several captions
    relax: Annotated[list[PercentileFactor], Field(min_length=1)]  # percentiles must rise, factors must not


class Corpus:
    """CIDEr-D with document frequencies from the captions of clips. Clips without captions are skipped.

    clips: The captions of each clip.
    documents: A document is a single caption ("caption"), or consists of all captions of a clip ("clip").
    tokenizer: Name of the tokenizer, "regex" or "ptb" (needs Java). Raises KitError
    for fewer than two documents, since every n-gram would have the weight 0.
    """

    def __init__(self, clips: Sequence[Sequence[str]], documents: str, tokenizer: str) -> None:
        """Tokenize all captions, and count the number of documents that contain each n-gram."""
        self._tokenizer = tokenizer
        self._clip_of = np.repeat(np.arange(len(clips)), [len(captions) for captions in clips])
        tokens = tokenize([caption for captions in clips for caption in captions], tokenizer)
        ends = np.cumsum([len(captions) for captions in clips], dtype=int)
        of_clips = [tokens[end - len(captions) : end] for captions, end in zip(clips, ends, strict=True) if captions]
        counted = of_clips if documents == "clip" else [[caption] for caption in tokens]
        if len(counted) < 2:
            kind = "clips with captions" if documents == "clip" else "captions"
            raise KitError(f"CIDEr-D needs a corpus of at least two {kind}, not {len(counted)}; use a larger corpus")
        self._cider = CiderD(counted)

    def features(self, captions: Sequence[str]) -> NgramFeatures:
        """Tokenize captions, and compute their n-gram features for CIDEr-D."""
        return self._cider.features(tokenize(captions, self._tokenizer))

    def distribution(self, percents: Sequence[float], pairs: str) -> Distribution:
        """Compute mean, percentiles and histogram of CIDEr-D between captions of the corpus.

        percents: The requested percentiles, each in [0, 100]. pairs: "all" ordered pairs of captions, or "other_clips":
        only pairs of captions of different clips.
        """
        clip_of = self._clip_of if pairs == "other_clips" else None
        return distribution(self._cider.corpus_features(), percents, clip_of)


class MarginFactor:
    """The factor r(c) on the margin of a pair with CIDEr-D c: linear between thresholds, constant outside them.

    thresholds: (K,) ascending scores. factors: (K,) values of r at the thresholds. If several thresholds are equal, r
    at this score is the factor of the first of them; just above it, r is the factor of the last of them. Example:
    the thresholds are percentiles of a corpus, and 95 % of its pairs share no n-gram, so that the percentiles 80 and 90
    are both 0. With the factors 1 and 0.7, pairs with score 0 have r = 1, and pairs with a higher score r = 0.7.
    """

    def __init__(self, thresholds: Sequence[float], factors: Sequence[float]) -> None:
        """Store thresholds of CIDEr-D, and the factors on the margin at these thresholds."""
        self.thresholds, self.factors = list(thresholds), list(factors)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return the factor on the margin, float32, for each CIDEr-D in an array of any shape."""
        relaxed = np.full(scores.shape, self.factors[0], np.float32)
        steps = zip(pairwise(self.thresholds), pairwise(self.factors), strict=True)
        for (low, high), (factor, next_factor) in steps:
            share = np.clip((scores - low) / (high - low), 0, 1) if high > low else scores > low
            relaxed += share * np.float32(next_factor - factor)
        return relaxed


class _Stored(Strict):
    """Content of the file with a corpus's percentiles. key: sha256 of everything that determines the percentiles."""

    key: str
    distribution: Distribution


class Relevance:
    """CIDEr-D between training captions, and margin factors from the percentiles of CIDEr-D in a corpus.

    corpus: Captions of every clip. folder: Folder for the file with the percentiles; the file's name has a checksum of
    everything that determines them. thresholds: (K,) scores at the percentiles of settings.relax. distribution:
    Distribution of CIDEr-D over all pairs of captions of the corpus.
    Raises KitError for a corpus of fewer than two documents or without any pair of captions to score, for percentiles
    that are not ascending, and for a damaged file.
    """

    def __init__(self, settings: Cider, corpus: Sequence[Sequence[str]], folder: Path) -> None:
        """Read or compute the percentiles of CIDEr-D in the corpus, and set the factors on margins."""
        self._settings = settings
        self._corpus = Corpus(corpus, settings.documents, settings.tokenizer)
        self.distribution = self._load_distribution(corpus, folder)
        self.thresholds = self.distribution.percentiles
        if len(set(self.thresholds)) < len(self.thresholds):
            log.warning(
                "relax: some percentiles of CIDEr-D are equal (%s), so that some margin factors are never used; "
                "use a corpus of more captions",
                self.thresholds,
            )
        self.margin_factor = MarginFactor(self.thresholds, [point.factor for point in settings.relax])
        self._rows: dict[str, int] = {}  # row of a caption in the features
        self._features = self._corpus.features([])
        self._adding = threading.Lock()

    def _load_distribution(self, corpus: Sequence[Sequence[str]], folder: Path) -> Distribution:
        """Read the distribution of CIDEr-D in the corpus from a file in `folder`, or compute and store it."""
        percents = [point.percentile for point in self._settings.relax]
        if any(later <= earlier for earlier, later in pairwise(percents)):
            raise KitError(f"the percentiles of relax must rise, but are {percents}; sort them, without duplicates")
        settings = self._settings.model_dump(include={"documents", "tokenizer", "pairs"})
        identity = [VERSION, settings, percents, [list(captions) for captions in corpus]]
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        path = folder / f"cider-{key[:12]}.json"
        if path.exists():
            try:
                stored = _Stored.model_validate_json(path.read_bytes())
            except ValidationError as error:
                raise KitError(f"{path} is damaged; delete it, and run the same command again") from error
            if stored.key != key:
                raise KitError(f"{path} has percentiles of other data; delete it, and run the same command again")
            return stored.distribution
        began = time.perf_counter()
        distribution = self._corpus.distribution(percents, self._settings.pairs)
        write_text(path, _Stored(key=key, distribution=distribution).model_dump_json() + "\n")
        shown = ", ".join(f"c{q:g} {c:.5f}" for q, c in zip(percents, distribution.percentiles, strict=True))
        seconds = time.perf_counter() - began
        log.info(
            "computed CIDEr-D of %s pairs of captions in %.1f s; percentiles: %s; stored in %s",
            f"{distribution.pairs:,}",
            seconds,
            shown,
            path,
        )
        return distribution

    def prepare(self, captions: Iterable[str]) -> None:
        """Compute and store tokens and features of captions, so that batches of these captions are fast.

        If a later batch has any caption that was not prepared, the features of all its captions are computed again; the
        tokenizer ptb then starts one Java process. These features are not stored, since such captions are randomly
        edited and occur only once.
        """
        with self._adding:
            new = [caption for caption in dict.fromkeys(captions) if caption not in self._rows]
            if new:
                first = len(self._features)
                self._features = self._features.with_appended(self._corpus.features(new))
                self._rows.update(zip(new, range(first, first + len(new)), strict=True))

    def cider_between(self, captions: Sequence[str]) -> np.ndarray:
        """Compute CIDEr-D between any two of N captions: (N, N) float32 in [0, 10].

        Rows are candidates, columns are references. The matrix is not symmetric.
        """
        if all(caption in self._rows for caption in captions):
            rows, features = self._rows, self._features
        else:
            rows = {caption: row for row, caption in enumerate(dict.fromkeys(captions))}
            features = self._corpus.features(list(rows))
        members = np.array([rows[caption] for caption in captions], np.int64)
        return CiderAmong(features, members).scores(0, len(members))

    def cider_of_items(self, captions: Sequence[str], row_of: np.ndarray) -> np.ndarray:
        """Compute CIDEr-D between any two of B items, (B, B) float32.

        Each caption of item i (candidate) has a score with each caption of item j (reference). c_ij is the mean or the
        maximum of these scores. With the setting of_clips `symmetric`, it is the mean of the means c_ij and c_ji. The
        paper does not state which of these three it uses. row_of: (N,) index of the item of each caption; every item
        has at least one caption.
        """
        order = np.argsort(row_of, kind="stable")
        counts = np.bincount(row_of)
        starts = counts.cumsum() - counts
        scores = self.cider_between([captions[n] for n in order])
        if self._settings.of_clips == "max":
            return np.maximum.reduceat(np.maximum.reduceat(scores, starts, 1), starts, 0)
        sums = np.add.reduceat(np.add.reduceat(scores, starts, 1), starts, 0)
        mean = sums / np.outer(counts, counts).astype(np.float32)
        return (mean + mean.T) / 2 if self._settings.of_clips == "symmetric" else mean
