"""c_ij of a batch, the factor on margins, stored percentiles, and `lbar relevance`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from data_tools.errors import KitError
from system.losses.cider import Cider, CiderAmong, CiderD, PercentileFactor, Relevance, regex_tokens

WORDS = ["a", "dog", "barks", "rain", "falls", "on", "the", "roof", "bird", "sings"]


def corpus(seed: int = 0, clips: int = 12) -> list[list[str]]:
    """Clips with 1 to 5 captions."""
    random = np.random.default_rng(seed)
    return [
        [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(random.integers(1, 6))]
        for _ in range(clips)
    ]


def settings(**changes: Any) -> Cider:
    return Cider.model_validate(tiny.relevance(tiny.PAPERS_POINTS, **changes))


def plain_scores(documents: list[list[str]], captions: list[str]) -> np.ndarray:
    cider = CiderD([[regex_tokens(caption) for caption in captions] for captions in documents])
    features = cider.features([regex_tokens(caption) for caption in captions])
    return CiderAmong(features, np.arange(len(captions)), np.float64).scores(0, len(captions))


def between(relevance: Relevance, captions: list[str]) -> np.ndarray:
    return relevance.among(captions).scores(0, len(captions))


def test_cider_relevance_between_captions_matches_a_slow_reference() -> None:
    clips = corpus()
    relevance = Relevance(settings(), clips)
    relevance.prepare(caption for captions in clips[:4] for caption in captions)
    captions = [clips[0][0], "a zebra barks", clips[7][0], "zebra barks on", clips[0][0], "!!!"]
    found = between(relevance, captions)
    counted = [[caption] for captions in clips for caption in captions]
    assert found.dtype == np.float32
    assert found == pytest.approx(plain_scores(counted, captions), rel=1e-5, abs=1e-6)
    assert found[1, 3] > 1  # a new word is shared by new captions
    assert not np.array_equal(found, found.T)
    assert np.array_equal(between(relevance, captions[::-1]), found[::-1, ::-1])
    assert between(relevance, []).shape == (0, 0)


@pytest.mark.parametrize("shuffled", [False, True])
def test_cider_of_items_matches_loops(shuffled: bool) -> None:
    items = corpus(3, 9)
    assert {len(captions) for captions in items} == {1, 2, 3, 4, 5}
    row_of = np.repeat(np.arange(9), [len(captions) for captions in items])
    captions = [caption for own in items for caption in own]
    if shuffled:
        order = np.random.default_rng(0).permutation(len(captions))
        row_of, captions = row_of[order], [captions[n] for n in order]
    relevance = Relevance(settings(), corpus())
    each = between(relevance, captions)
    blocks = [[each[row_of == i][:, row_of == j] for j in range(9)] for i in range(9)]
    mean = np.array([[block.mean() for block in row] for row in blocks])
    found = relevance.cider_of_items(captions, row_of)
    assert found.dtype == np.float32
    assert found == pytest.approx(mean, rel=1e-5, abs=1e-7)
    assert not np.allclose(mean, mean.T)


def margin_factor(scores: np.ndarray, thresholds: list[float], factors: list[float]) -> np.ndarray:
    """Return factors as if `thresholds` were the percentiles of a corpus."""
    relax = [PercentileFactor(percentile=float(n), factor=factor) for n, factor in enumerate(factors)]
    relevance = Relevance(settings(relax=relax), corpus())
    relevance.percentiles = thresholds
    return relevance.margin_factor(scores)


def test_margin_factor_matches_hand_values() -> None:
    points = [0.05, 0.1, 0.5], [1.0, 0.7, 0.4]
    scores = np.array([[0.0, 0.05, 0.075], [0.1, 0.3, 0.5], [0.9, 10.0, 0.2]], np.float32)
    assert margin_factor(scores, *points).dtype == np.float32
    assert margin_factor(scores, *points) == pytest.approx(
        np.array([[1, 1, 0.85], [0.7, 0.55, 0.4], [0.4, 0.4, 0.625]]), abs=1e-6
    )


def test_margin_factor_with_equal_thresholds_matches_hand_values() -> None:
    scores = np.array([0.0, 1e-6, 0.25, 0.5, 1.0])
    found = margin_factor(scores, [0.0, 0.0, 0.5], [1.0, 0.7, 0.4])
    assert found == pytest.approx([1.0, 0.7, 0.55, 0.4, 0.4], abs=1e-5)
    assert margin_factor(np.array([0.0, 0.1]), [0.0] * 3, [1.0, 0.7, 0.4]) == pytest.approx([1.0, 0.4])
    assert margin_factor(np.array([0.1, 0.2, 0.3]), [0.2, 0.2, 0.2], [1.0, 0.7, 0.4]) == pytest.approx([1.0, 1.0, 0.4])
    assert margin_factor(np.array([0.0, 5.0]), [0.3], [0.6]) == pytest.approx([0.6, 0.6])


def test_relax_thresholds_are_percentiles_of_the_corpus() -> None:
    clips = corpus(5, 20)
    relevance = Relevance(settings(), clips)
    each = between(relevance, [caption for captions in clips for caption in captions])
    scores = np.sort(each, axis=None)
    expected = [float(scores[int(q * (len(scores) - 1) // 100)]) for q in (80, 90, 99)]
    assert relevance.percentiles == pytest.approx(expected, rel=1.3e-4)
    factors = relevance.margin_factor(np.array(relevance.percentiles, np.float32))
    assert factors == pytest.approx([1.0, 0.7, 0.4], abs=1e-6)


@pytest.mark.parametrize("clips", [[], [[], []], [["a dog"]], [["a dog"], []]])
def test_relevance_corpora_with_fewer_than_two_captions_are_refused(clips: list[list[str]]) -> None:
    with pytest.raises(KitError, match="captions"):
        Relevance(settings(), clips)


def test_corpus_of_two_captions_is_enough() -> None:
    relax = [PercentileFactor(percentile=q, factor=1.0) for q in (50.0, 100.0)]
    found = Relevance(settings(relax=relax), [["a dog barks"], ["rain falls"]])
    assert found.percentiles == pytest.approx([0, 7.5], rel=2e-4), "three words have n-grams of three of four orders"


def test_one_point_is_enough_and_lowers_all_margins() -> None:
    relax = [PercentileFactor(percentile=50.0, factor=0.6)]
    found = Relevance(settings(relax=relax), [["a dog barks"], ["rain falls"]])
    assert found.margin_factor(np.array([0.0, 7.5])) == pytest.approx([0.6, 0.6])


def test_captions_without_words_have_cider_0(tmp_path: Path) -> None:
    relevance = Relevance(settings(), [["!!!", "?"], ["..."]])
    assert relevance.percentiles == [0.0, 0.0, 0.0]
    found = relevance.cider_of_items(["!!!", "...", "a dog"], np.array([0, 1, 2]))
    assert not found[:2].any()
    assert relevance.margin_factor(found)[:2] == pytest.approx(1.0)
    assert relevance.margin_factor(found)[2, 2] == pytest.approx(0.4)
