"""CIDEr-D: by hand, against a slow oracle, against the package that published scores come from, on real captions."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from quick import first_quick

from data_tools.errors import KitError
from data_tools.tables import read_table
from system.losses.cider import (
    Cider,
    CiderAmong,
    CiderD,
    Features,
    PercentileFactor,
    Relevance,
    percentiles,
    regex_tokens,
    tokenize,
)

Tokens = list[str]
NEEDS_JAVA = pytest.mark.skipif(shutil.which("java") is None, reason="PTBTokenizer needs Java")


def clotho(shared: Path, *splits: str) -> list[str]:
    paths = [shared / f"data/clotho/clotho_captions_{split}.csv" for split in splits]
    return [row[f"caption_{n}"] for path in paths for _, row in read_table(path, ["file_name"]) for n in range(1, 6)]


def between_members(features: Features, members: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    return CiderAmong(features, members, dtype).of_items([1] * len(members))


def scores(documents: list[list[Tokens]], captions: list[Tokens], dtype: Any = np.float64) -> np.ndarray:
    features = CiderD(documents).features(captions)
    return between_members(features, np.arange(len(captions)), dtype)


def each(captions: list[Tokens]) -> list[list[Tokens]]:
    return [[caption] for caption in captions]


def oracle(documents: list[list[Tokens]], candidate: Tokens, reference: Tokens) -> float:
    """CIDEr-D as defined in the paper, with dictionaries."""

    def grams(words: Tokens, n: int) -> Counter[tuple[str, ...]]:
        return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))

    total = 0.0
    for n in range(1, 5):
        df = Counter(gram for captions in documents for gram in {g for words in captions for g in grams(words, n)})
        own, other = (
            {gram: tf * math.log(len(documents) / max(1, df[gram])) for gram, tf in grams(words, n).items()}
            for words in (candidate, reference)
        )
        norms = math.hypot(*own.values()) * math.hypot(*other.values())
        total += sum(min(own[g], other[g]) * other[g] for g in own if g in other) / norms if norms else 0.0
    bigrams = grams(candidate, 2).total() - grams(reference, 2).total()
    return 10 / 4 * total * math.exp(-(bigrams**2) / 72)


def random_captions(random: np.random.Generator, count: int, words: int = 6, longest: int = 14) -> list[Tokens]:
    """Few words, so that n-grams repeat; lengths from none to many."""
    return [random.choice([*"abcdefgh"][:words], random.integers(0, longest)).tolist() for _ in range(count)]


def test_cider_of_three_captions_matches_hand_values():
    captions = [["a", "dog", "a"], ["a", "dog"], ["rain"]]
    found = scores(each(captions), captions)
    # idf: a, dog, "a dog": log 3/2 = i; "dog a", "a dog a", rain: log 3 = r.
    i, r = math.log(3 / 2), math.log(3)
    # 1 against 2, unigrams: a: min(2i, i) i, dog: i i; norms sqrt(5) i, sqrt(2) i. Bigrams: "a dog": i i over
    # sqrt(i^2 + r^2) and i. One bigram more: penalty exp(-1/72).
    unigrams, bigrams = 2 / math.sqrt(10), i / math.hypot(i, r)
    assert found[0, 1] == pytest.approx(2.5 * (unigrams + bigrams) * math.exp(-1 / 72), abs=1e-12)
    # 2 against 1, unigrams: a: min(i, 2i) 2i, dog: i i.
    assert found[1, 0] == pytest.approx(2.5 * (3 / math.sqrt(10) + bigrams) * math.exp(-1 / 72), abs=1e-12)
    assert np.diagonal(found) == pytest.approx([7.5, 5.0, 2.5], abs=1e-12)
    assert not found[2, :2].any()
    assert not found[:2, 2].any()


@pytest.mark.parametrize("seed", range(4))
def test_cider_matches_slow_reference(seed):
    random = np.random.default_rng(seed)
    corpus = random_captions(random, 23, words=5)
    documents = each(corpus) if seed % 2 else [corpus[:9], corpus[9:10], corpus[10:]]
    captions = [*random_captions(random, 17), corpus[3], [], ["unseen"], ["unseen", "words", "unseen", "words"]]
    expected = [[oracle(documents, a, b) for b in captions] for a in captions]
    assert np.abs(scores(documents, captions) - expected).max() < 1e-12
    assert scores(documents, captions, np.float32) == pytest.approx(np.array(expected), rel=2e-6, abs=1e-6)


def test_cider_is_zero_without_common_words_and_independent_of_other_calls():
    random = np.random.default_rng(0)
    captions = random_captions(random, 60)
    whole = scores(each(captions), captions)
    members = random.integers(1, 60, 45)  # without the first one
    found = between_members(CiderD(each(captions)).features(captions), members, np.float64)
    assert found == pytest.approx(whole[members][:, members], abs=1e-12)
    # Joined captions are new in every batch: a training's memory must not grow by them.
    cider = CiderD(each([["a", "dog"], ["rain"]]))
    sizes = [cider.features([["new", f"words{n}"], ["rain"]]).candidate.shape for n in range(3)]
    assert sizes[0] == sizes[1] == sizes[2]
    assert not scores([[["a", "dog"]]], [["a", "dog"], ["a"]]).any()  # one document: log 1 = 0
    assert not scores([[["a"]], [[]], [["a"]], [[]]], [[], []]).any()  # no words
    assert scores([[["a"]], [[]]], [["a"]])[0, 0] == pytest.approx(2.5)  # a document without words counts
    assert scores([[["a"]], [["b"]]], []).shape == (0, 0)


def official(documents: list[list[Tokens]], pairs: Sequence[tuple[Tokens, Tokens]]) -> np.ndarray:
    """Scores of single pairs by pycocoevalcap, with the document frequencies of these documents."""
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    class Counted(list[Any]):
        """compute_cider takes the number of its pairs for the number of documents."""

        def __len__(self) -> int:
            return len(documents)

    corpus, scorer = CiderScorer(), CiderScorer()
    for captions in documents:
        corpus += ("", [" ".join(words) for words in captions])
    corpus.compute_doc_freq()
    for candidate, reference in pairs:
        scorer += (" ".join(candidate), [" ".join(reference)])
    scorer.document_frequency, scorer.crefs = corpus.document_frequency, Counted(scorer.crefs)
    return np.array(scorer.compute_cider())


@pytest.mark.parametrize(("per_document", "pairs"), first_quick([(5, 1_000), (1, 20_000)], 1))
def test_cider_matches_pycocoevalcap_on_clotho(shared, pairs, per_document):
    captions = tokenize(clotho(shared, "development")[: 2 * pairs], "regex")
    documents = [captions[i : i + per_document] for i in range(0, len(captions), per_document)]
    random = np.random.default_rng(pairs)
    repeated = [n for n, words in enumerate(captions) if len(words) - len(set(words)) > 2]
    chosen = np.concatenate([random.choice(repeated, 100), random.choice(len(captions), 100)])
    features = CiderD(documents).features([captions[n] for n in chosen])
    found = between_members(features, np.arange(200), np.float64)
    a, b = np.divmod(random.choice(200 * 200, pairs, replace=False), 200)
    same = [(captions[chosen[i]], captions[chosen[j]]) for i, j in zip(a, b, strict=True)]
    assert np.abs(official(documents, same) - found[a, b]).max() < 1e-9


@pytest.mark.parametrize("kind", ["ptb", "simple"])
def test_cider_matches_stored_scores(goldens, kind):
    golden = json.loads((goldens / "cider.json").read_text())
    captions = [text.split() for text in golden[f"tokens_{kind}"]]
    scenes = [captions[k : k + 4] for k in range(0, 60, 4)]
    corpora = {name: corpus for name, corpus in golden["corpora"].items() if name.endswith(f"/{kind}")}
    assert len(corpora) == 8
    for name, corpus in corpora.items():
        if items := corpus.get("items_hyp_refs"):
            found = scores([[captions[k] for k in refs] for _, refs in items], captions)
            found, expected = np.array([found[hyp, refs].mean() for hyp, refs in items]), corpus["ciderD_pycocoevalcap"]
        elif name.startswith("pairwise"):
            found, expected = scores(scenes, captions), corpus["ciderD_matrix_hyp_row_ref_col"]
        else:
            found = scores(scenes, captions).reshape(60, 15, 4).mean(2)
            expected = corpus["ciderD_matrix_hyp_row_scene_col"]
        assert np.abs(found - expected).max() < 1e-8, name


TOKENS = {
    "A dog's bark, far-off.": "a dog 's bark far-off",
    "The dogs' barks - loud": "the dogs barks loud",
    "They're here; it’s raining and we'll go": "they 're here it 's raining and we 'll go",
    "Doesn't, can't, won't; cannot": "does n't ca n't wo n't can not",
    "She's gonna sing, gotta go": "she 's gon na sing got ta go",
    "A madonna began; toucans": "a madonna began toucans",
    "3.5 seconds, 1,000 birds at 3:30": "3.5 seconds 1,000 birds at 3:30",
    "growling/whining, o'clock": "growling/whining o'clock",
    "mother-in-law's voice": "mother-in-law 's voice",
    "\"quoted\" and 'single' -- one- two": "quoted and single one two",
    "word,word word;word a:b": "word word word word a b",
    "Café in Zürich": "café in zürich",
    "!!!  ...": "",
    "": "",
}


def test_regex_tokens_match_hand_values_and_stored_ptb_tokens(goldens):
    assert {caption: " ".join(regex_tokens(caption)) for caption in TOKENS} == TOKENS
    golden = json.loads((goldens / "cider.json").read_text())
    assert [" ".join(regex_tokens(text)) for text in golden["raw"]] == golden["tokens_ptb"]


@NEEDS_JAVA
def test_ptb_tokens_match_hand_values():
    by_hand = {caption: text for caption, text in TOKENS.items() if "!" not in caption}  # PTBTokenizer keeps "!!!"
    more = ["a\rb", "", "c\n\nd", "e\u2028f", ""]
    found = [" ".join(tokens) for tokens in tokenize([*by_hand, *more], "ptb")]
    assert found == [*by_hand.values(), "a b", "", "c d", "e f", ""]
    assert tokenize([], "ptb") == []


@NEEDS_JAVA
@pytest.mark.slow
def test_regex_tokens_match_ptb_on_clotho_and_nearly_on_audiocaps(shared):
    captions = clotho(shared, "development", "validation", "evaluation")
    assert len(captions) == 29_645
    assert tokenize(captions, "regex") == tokenize(captions, "ptb")
    tables = [read_table(shared / f"data/audiocaps/{split}.csv", ["caption"]) for split in ("train", "val", "test")]
    captions = [row["caption"] for table in tables for _, row in table]
    both = zip(tokenize(captions, "regex"), tokenize(captions, "ptb"), strict=True)
    assert sum(ours != theirs for ours, theirs in both) == 20


def test_ptb_without_or_with_failing_java_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KitError, match="tokenizer"):
        tokenize(["a dog"], "ptb")
    fake = tmp_path / "java"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(KitError, match="lines"):
        tokenize(["a dog", "a cat"], "ptb")


PERCENTS = [0.0, 12.5, 50.0, 80.0, 90.0, 99.0, 99.9, 100.0]


@pytest.mark.parametrize(("seed", "longest"), [(0, 14), (1, 3), (3, 2), (4, 1)])
def test_cider_score_distribution_matches_one_computed_from_all_sorted_scores(seed, longest):
    """Short captions of few words give many ties; the last corpus has no words at all."""
    random = np.random.default_rng(seed)
    captions = random_captions(random, 50, words=3 if longest < 4 else 8, longest=longest)
    expected = np.sort(scores(each(captions), captions, np.float32), axis=None)
    found = percentiles(CiderD(each(captions)).features(captions), PERCENTS)
    ranks = [math.floor(q * (len(expected) - 1) / 100) for q in PERCENTS]
    assert found == pytest.approx(expected[ranks].tolist(), rel=1.3e-4, abs=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("per_document", "expected"), [(1, [0.04975, 0.10717, 0.46608]), (5, [0.01509, 0.06118, 0.41389])]
)
def test_cider_percentiles_of_clotho_development_match_stored_values(shared, per_document, expected):
    development = tokenize(clotho(shared, "development"), "regex")
    assert len(development) == 19_195
    documents = [development[i : i + per_document] for i in range(0, len(development), per_document)]
    found = percentiles(CiderD(documents).features(development), [80, 90, 99])
    assert found == pytest.approx(expected, abs=3.5e-5)


def corpus(seed: int = 0, clips: int = 12) -> list[list[str]]:
    """Clips with 1 to 5 captions."""
    random = np.random.default_rng(seed)
    return [[" ".join(one) for one in random_captions(random, random.integers(1, 6), 8, 9)] for _ in range(clips)]


def settings(**changes: Any) -> Cider:
    return Cider.model_validate(tiny.relevance(tiny.PAPERS_POINTS, **changes))


def between(relevance: Relevance, captions: list[str]) -> np.ndarray:
    return relevance.among(captions).of_items([1] * len(captions))


def test_cider_relevance_between_captions_matches_a_slow_reference():
    clips = corpus()
    relevance = Relevance(settings(), clips)
    relevance.prepare(caption for captions in clips[:4] for caption in captions)
    captions = [clips[0][0], "a zebra barks", clips[7][0], "zebra barks on", clips[0][0], "!!!"]
    found = between(relevance, captions)
    counted = each([regex_tokens(caption) for captions in clips for caption in captions])
    assert found.dtype == np.float32
    assert found == pytest.approx(scores(counted, [*map(regex_tokens, captions)]), rel=1e-5, abs=1e-6)
    assert found[1, 3] > 1  # a new word is shared by new captions
    assert not np.array_equal(found, found.T)
    assert np.array_equal(between(relevance, captions[::-1]), found[::-1, ::-1])
    assert between(relevance, []).shape == (0, 0)


def test_cider_of_items_matches_loops():
    items = corpus(6, 9)
    assert {len(captions) for captions in items} == {1, 2, 3, 4, 5}
    counts = [len(captions) for captions in items]
    rows, captions = np.repeat(np.arange(9), counts), [caption for own in items for caption in own]
    relevance = Relevance(settings(), corpus())
    scores = between(relevance, captions)
    mean = np.array([[scores[rows == i][:, rows == j].mean() for j in range(9)] for i in range(9)])
    found = relevance.among(captions).of_items(counts)
    assert found.dtype == np.float32
    assert found == pytest.approx(mean, rel=1e-5, abs=1e-7)
    assert not np.allclose(mean, mean.T)


def margin_factor(scores: Any, thresholds: list[float], factors: list[float]) -> np.ndarray:
    """Return factors as if `thresholds` were the percentiles of a corpus."""
    relax = [PercentileFactor(percentile=float(n), factor=factor) for n, factor in enumerate(factors)]
    relevance = Relevance(settings(relax=relax), [["a"], ["b"]])
    relevance.percentiles = thresholds
    return relevance.margin_factor(np.array(scores, np.float32))


@pytest.mark.parametrize(
    ("thresholds", "factors", "scores", "expected"),
    [
        (
            [0.05, 0.1, 0.5],
            [1.0, 0.7, 0.4],
            [0.0, 0.05, 0.075, 0.1, 0.3, 0.5, 0.9, 10],
            [1, 1, 0.85, 0.7, 0.55, *[0.4] * 3],
        ),
        ([0.0, 0.0, 0.5], [1.0, 0.7, 0.4], [0.0, 1e-6, 0.25, 0.5, 1.0], [1.0, 0.7, 0.55, 0.4, 0.4]),
        ([0.0] * 3, [1.0, 0.7, 0.4], [0.0, 0.1], [1.0, 0.4]),
        ([0.25] * 3, [1.0, 0.7, 0.4], [0.1, 0.25, 0.3], [1.0, 1.0, 0.4]),
        ([0.3], [0.6], [0.0, 5.0], [0.6, 0.6]),
    ],
)
def test_margin_factors_match_hand_values(thresholds, factors, scores, expected):
    found = margin_factor([scores, scores[::-1]], thresholds, factors)
    assert found.dtype == np.float32
    assert found == pytest.approx(np.array([expected, expected[::-1]]), abs=1e-5)


def test_relax_thresholds_are_percentiles_of_the_corpus():
    clips = corpus(5, 20)
    relevance = Relevance(settings(), clips)
    scores = np.sort(between(relevance, [caption for captions in clips for caption in captions]), axis=None)
    expected = [float(scores[int(q * (len(scores) - 1) // 100)]) for q in (80, 90, 99)]
    assert relevance.percentiles == pytest.approx(expected, rel=1.3e-4)
    factors = relevance.margin_factor(np.array(relevance.percentiles, np.float32))
    assert factors == pytest.approx([1.0, 0.7, 0.4], abs=1e-6)
    relax = [PercentileFactor(percentile=q, factor=1.0) for q in (50.0, 100.0)]
    found = Relevance(settings(relax=relax), [["a dog barks"], ["rain falls"]])
    assert found.percentiles == pytest.approx([0, 7.5], rel=2e-4), "three words have n-grams of three of four orders"


@pytest.mark.parametrize("clips", [[], [[], []], [["a dog"]], [["a dog"], []]])
def test_relevance_corpora_with_fewer_than_two_captions_are_refused(clips):
    with pytest.raises(KitError, match="captions"):
        Relevance(settings(), clips)


def test_captions_without_words_have_cider_0():
    relevance = Relevance(settings(), [["!!!", "?"], ["..."]])
    assert relevance.percentiles == [0.0, 0.0, 0.0]
    found = relevance.among(["!!!", "...", "a dog"]).of_items([1, 1, 1])
    assert not found[:2].any()
    assert relevance.margin_factor(found)[:2] == pytest.approx(1.0)
    assert relevance.margin_factor(found)[2, 2] == pytest.approx(0.4)
