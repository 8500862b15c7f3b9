"""Score texts by networks that did not learn them.

Divides texts into folds, chooses the training texts of each fold's network, and scores all texts (cross-fitting).

No network scores a text that it learnt, an equal text, or another text of the same uploader or clip.
"""

from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple, get_args

import numpy as np

from data_tools.cli import counted, each
from data_tools.errors import DataError

# N texts (a description or caption each), D embedding

Weighting = Literal["natural", "balanced"]
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)


@dataclass(frozen=True)
class Texts:
    """N texts to learn from and to score; the same text may occur several times.

    Attributes:
        labels: (N,) bool, True for a caption, False for a description.
        rows: (N,) row of each text in the array of embeddings; equal for equal texts.
        groups: (N,) int, group number of each text. A group has all descriptions of an uploader, or all captions of a
            clip; its texts must be in the same fold.
    """

    labels: np.ndarray
    rows: np.ndarray
    groups: np.ndarray

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.labels)


@dataclass(frozen=True)
class Fitting:
    folds: int = 5
    epochs: int = 5
    seed: int = 0


class CrossFit(NamedTuple):
    """Result of cross-fitting.

    A class weighting is the way of weighting captions and descriptions in training. `natural`: every text has the same
    weight; `balanced`: both classes have the same total weight.

    Attributes:
        scores: Dict from class weighting to the scores of the N texts, (N,) float64 in [0, 1], rounded to 6 decimals.
        folds: (N,) fold of each text. The network that scored the text was trained on the other folds.
        left_out: For each fold, the number of texts in other folds that its network did not learn, because the fold
            contains an equal text.
    """

    scores: dict[Weighting, np.ndarray]
    folds: np.ndarray
    left_out: list[int]


def cross_fit(vectors: np.ndarray, texts: Texts, fitting: Fitting) -> CrossFit:
    """Train one network per fold and class weighting; score every text by the networks trained without its fold.

    The classes are captions and descriptions. The class weightings are `natural` (every text has the same weight) and
    `balanced` (both classes have the same total weight).
    vectors: (R, D) embeddings of R different texts, memory-mapped or not. Raises DataError for a class with fewer
    groups than folds, and if a fold leaves no text of a class for training.
    """
    from data_tools.classify.classifier import network_threads, score, train

    folds = assign_folds(texts, fitting)
    chosen = [training_texts(texts, folds, fold) for fold in range(fitting.folds)]
    scores = {weighting: np.empty(len(texts)) for weighting in WEIGHTINGS}

    def fit(network: tuple[Weighting, int]) -> None:
        """Train one network and score the texts of its fold. network: (weighting, fold)."""
        weighting, fold = network
        learnt, in_fold = chosen[fold], np.flatnonzero(folds == fold)
        labels = texts.labels[learnt]
        weights = class_weights(labels, weighting)
        trained = train(vectors, texts.rows[learnt], labels, weights, fitting.epochs, fitting.seed)
        scores[weighting][in_fold] = score(trained, vectors, texts.rows[in_fold])

    networks = list(product(WEIGHTINGS, range(fitting.folds)))
    with network_threads() as pool:
        for _ in each(pool.map(fit, networks), "training", "network", len(networks)):
            pass
    left_out = [int((folds != fold).sum()) - len(learnt) for fold, learnt in enumerate(chosen)]
    return CrossFit({name: values.round(6) for name, values in scores.items()}, folds, left_out)


def assign_folds(texts: Texts, fitting: Fitting) -> np.ndarray:
    """Return a random fold number for each of N texts, (N,); all texts of a group get the same fold.

    A group has one uploader's descriptions, or one clip's captions. The folds have equal numbers of groups of captions,
    and of groups of descriptions, or differ by one. Raises DataError for fewer groups of captions, or of descriptions,
    than folds.
    """
    from sklearn.model_selection import GroupKFold

    folds = np.empty(len(texts), np.int64)
    for label, name in ((True, "captions"), (False, "descriptions")):
        of_label = np.flatnonzero(texts.labels == label)
        count = len(np.unique(texts.groups[of_label]))
        if count < fitting.folds:
            origin = counted(count, "clip") if label else f"{count} groups (texts of one uploader, or equal texts)"
            raise DataError(
                f"the {name} come from only {origin}, too few for {fitting.folds} folds; give more {name}, or lower "
                "--folds"
            )
        dealing = GroupKFold(fitting.folds, shuffle=True, random_state=fitting.seed)
        for fold, (_, held_out) in enumerate(dealing.split(of_label, groups=texts.groups[of_label])):
            folds[of_label[held_out]] = fold
    return folds


def training_texts(texts: Texts, folds: np.ndarray, fold: int) -> np.ndarray:
    """Return the indices of the training texts for `fold`: texts of all other folds that equal no text of this fold.

    All texts of an uploader are in one fold, but two uploaders in different folds may have written the same text. Texts
    of other folds that also occur in `fold` are therefore omitted. Putting such uploaders into one fold is no
    alternative: short texts such as "rain" would put most of them together.
    Raises DataError if no caption or no description is left.
    """
    held_out = np.zeros(texts.rows.max() + 1, bool)
    held_out[texts.rows[folds == fold]] = True
    chosen = np.flatnonzero((folds != fold) & ~held_out[texts.rows])
    if len(np.unique(texts.labels[chosen])) < 2:
        raise DataError(
            "too few different texts: if one fold is left out, no caption or no description remains for training; "
            "give more texts"
        )
    return chosen


def class_weights(labels: np.ndarray, weighting: Weighting) -> np.ndarray:
    """Return texts' weights, (N,) float32, mean 1: all 1 if `natural`, equal sums for both classes if `balanced`."""
    if weighting == "natural":
        return np.ones(len(labels), np.float32)
    captions = labels.mean()
    result: np.ndarray = np.where(labels, 0.5 / captions, 0.5 / (1 - captions)).astype(np.float32)
    return result
