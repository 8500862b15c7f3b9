"""CIDEr-D: by hand, against a slow oracle, against the package that published scores come from, on real captions."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import first_quick

from data_tools.errors import KitError
from data_tools.tables import read_table
from system.losses import cider as cider_pairs
from system.losses.cider import CiderAmong, CiderD, percentiles, regex_tokens, tokenize

Tokens = list[str]


def clotho(shared: Path, *splits: str) -> list[str]:
    paths = [shared / f"data/clotho/clotho_captions_{split}.csv" for split in splits]
    return [row[f"caption_{n}"] for path in paths for _, row in read_table(path, ["file_name"]) for n in range(1, 6)]


def audiocaps(shared: Path, *splits: str) -> list[str]:
    return [row["caption"] for s in splits for _, row in read_table(shared / f"data/audiocaps/{s}.csv", ["caption"])]


def scores(documents: list[list[Tokens]], captions: list[Tokens], dtype: Any = np.float64) -> np.ndarray:
    features = CiderD(documents).features(captions)
    return CiderAmong(features, np.arange(len(captions)), dtype).scores(0, len(captions))


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


def test_cider_of_three_captions_matches_hand_values() -> None:
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


@pytest.mark.parametrize("seed", range(6))
def test_cider_matches_slow_reference(seed: int) -> None:
    random = np.random.default_rng(seed)
    corpus = random_captions(random, 23, words=5)
    documents = each(corpus) if seed % 2 else [corpus[:9], corpus[9:10], corpus[10:]]
    captions = [*random_captions(random, 17), corpus[3], [], ["unseen"], ["unseen", "words", "unseen", "words"]]
    expected = [[oracle(documents, a, b) for b in captions] for a in captions]
    assert np.abs(scores(documents, captions) - expected).max() < 1e-12
    assert scores(documents, captions, np.float32) == pytest.approx(np.array(expected), rel=2e-6, abs=1e-6)


def test_cider_of_selected_captions_equals_that_of_all_captions_in_any_order() -> None:
    random = np.random.default_rng(0)
    captions = random_captions(random, 60)
    whole = scores(each(captions), captions)
    members = random.integers(1, 60, 45)  # without the first one
    among = CiderAmong(CiderD(each(captions)).features(captions), members, np.float64)
    assert among.scores(7, 30) == pytest.approx(whole[members[7:30]][:, members], abs=1e-12)
    assert among.scores(5, 5).shape == (0, 45)


def test_new_ngrams_of_captions_are_forgotten_after_a_call() -> None:
    """Joined captions are new in every batch: a training's memory must not grow by them."""
    cider = CiderD(each([["a", "dog"], ["rain"]]))
    first = cider.features([["new", "words"], ["rain"]])
    cider.features([["other", "new", "words", "of", "a", "dog"]])
    again = cider.features([["new", "words"], ["rain"]])
    assert first.candidate.shape == again.candidate.shape
    assert (first.candidate != again.candidate).nnz == 0


def test_cider_is_zero_for_captions_without_words_and_for_words_in_every_caption() -> None:
    assert not scores([[["a", "dog"]]], [["a", "dog"], ["a"]]).any()  # one document: log 1 = 0
    assert not scores([[["a"]], [[]], [["a"]], [[]]], [[], []]).any()  # no words
    assert scores([[["a"]], [[]]], [["a"]])[0, 0] == pytest.approx(2.5)  # a document without words counts
    assert scores([[["a"]], [["b"]]], []).shape == (0, 0)


class Counted(list[Any]):
    """A list that gives another length: compute_cider takes the number of its pairs for the number of documents."""

    def __init__(self, items: Iterable[Any], length: int) -> None:
        super().__init__(items)
        self.length = length

    def __len__(self) -> int:
        return self.length


def official(documents: list[list[Tokens]], pairs: Sequence[tuple[Tokens, Tokens]]) -> np.ndarray:
    """Scores of single pairs by pycocoevalcap, with the document frequencies of these documents."""
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    corpus, scorer = CiderScorer(), CiderScorer()
    for captions in documents:
        corpus += ("", [" ".join(words) for words in captions])
    corpus.compute_doc_freq()
    for candidate, reference in pairs:
        scorer += (" ".join(candidate), [" ".join(reference)])
    scorer.document_frequency = corpus.document_frequency
    scorer.crefs = Counted(scorer.crefs, len(documents))
    return np.array(scorer.compute_cider())


@pytest.mark.parametrize(("per_document", "pairs"), first_quick([(5, 2_000), (1, 20_000), (5, 20_000)], 1))
def test_cider_matches_pycocoevalcap_on_clotho(shared: Path, pairs: int, per_document: int) -> None:
    captions = tokenize(clotho(shared, "development")[: 2 * pairs], "regex")
    documents = [captions[i : i + per_document] for i in range(0, len(captions), per_document)]
    random = np.random.default_rng(pairs)
    repeated = [n for n, words in enumerate(captions) if len(words) - len(set(words)) > 2]
    chosen = np.concatenate([random.choice(repeated, 100), random.choice(len(captions), 100)])
    features = CiderD(documents).features([captions[n] for n in chosen])
    found = CiderAmong(features, np.arange(200), np.float64).scores(0, 200)
    a, b = np.divmod(random.choice(200 * 200, pairs, replace=False), 200)
    same = [(captions[chosen[i]], captions[chosen[j]]) for i, j in zip(a, b, strict=True)]
    assert np.abs(official(documents, same) - found[a, b]).max() < 1e-9


def stored(goldens: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((goldens / "cider.json").read_text())
    return loaded


@pytest.mark.parametrize("kind", ["ptb", "simple"])
def test_cider_matches_stored_scores(goldens: Path, kind: str) -> None:
    golden = stored(goldens)
    captions = [text.split() for text in golden[f"tokens_{kind}"]]
    checked = 0
    for name, corpus in golden["corpora"].items():
        if not name.endswith(f"/{kind}"):
            continue
        scenes = [captions[k : k + 4] for k in range(0, 60, 4)]
        if items := corpus.get("items_hyp_refs"):
            found = scores([[captions[k] for k in refs] for _, refs in items], captions)
            means = [found[hyp, refs].mean() for hyp, refs in items]
            assert means == pytest.approx(corpus["ciderD_pycocoevalcap"], abs=1e-8), name
        elif name.startswith("pairwise"):
            expected = corpus["ciderD_matrix_hyp_row_ref_col"]
            assert np.abs(scores(scenes, captions) - expected).max() < 1e-8, name
        else:
            of_scenes = scores(scenes, captions).reshape(60, 15, 4).mean(2)
            assert np.abs(of_scenes - corpus["ciderD_matrix_hyp_row_scene_col"]).max() < 1e-8, name
        checked += 1
    assert checked == 8


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


@pytest.mark.parametrize("caption", TOKENS)
def test_regex_tokens_match_hand_values(caption: str) -> None:
    assert " ".join(regex_tokens(caption)) == TOKENS[caption]


def test_regex_tokens_match_stored_ptb_tokens(goldens: Path) -> None:
    golden = stored(goldens)
    assert [" ".join(regex_tokens(text)) for text in golden["raw"]] == golden["tokens_ptb"]


def java() -> None:
    if shutil.which("java") is None:
        pytest.skip("PTBTokenizer needs Java")


@pytest.mark.slow
def test_regex_tokens_match_ptb_on_clotho_and_nearly_on_audiocaps(shared: Path) -> None:
    java()
    captions = clotho(shared, "development", "validation", "evaluation")
    assert len(captions) == 29_645
    assert tokenize(captions, "regex") == tokenize(captions, "ptb")
    captions = audiocaps(shared, "train", "val", "test")
    both = zip(tokenize(captions, "regex"), tokenize(captions, "ptb"), strict=True)
    assert sum(ours != theirs for ours, theirs in both) == 20


def test_ptb_tokens_of_unusual_lines_match_hand_values() -> None:
    java()
    by_hand = {caption: text for caption, text in TOKENS.items() if "!" not in caption}  # PTBTokenizer keeps "!!!"
    assert [" ".join(found) for found in tokenize(list(by_hand), "ptb")] == list(by_hand.values())
    assert tokenize(["a\rb", "", "c\n\nd", "e\u2028f", ""], "ptb") == [["a", "b"], [], ["c", "d"], ["e", "f"], []]
    assert tokenize([], "ptb") == []


def test_ptb_without_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KitError, match="tokenizer"):
        tokenize(["a dog"], "ptb")


def test_ptb_with_failing_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "java"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(KitError, match="lines"):
        tokenize(["a dog", "a cat"], "ptb")


PERCENTS = [0.0, 12.5, 50.0, 80.0, 90.0, 99.0, 99.9, 100.0]


@pytest.fixture(params=[False, True])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also many blocks."""
    if request.param:
        monkeypatch.setattr(cider_pairs, "_BLOCK", 160)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("seed", "longest"), [(0, 14), (1, 14), (2, 3), (3, 2), (4, 1)])
def test_cider_score_distribution_matches_one_computed_from_all_sorted_scores(seed: int, longest: int) -> None:
    """Short captions of few words give many ties; the last corpus has no words at all."""
    random = np.random.default_rng(seed)
    captions = random_captions(random, 50, words=3 if longest < 4 else 8, longest=longest)
    expected = np.sort(scores(each(captions), captions, np.float32), axis=None)
    found = percentiles(CiderD(each(captions)).features(captions), PERCENTS)
    ranks = [math.floor(q * (len(expected) - 1) / 100) for q in PERCENTS]
    assert found == pytest.approx(expected[ranks].tolist(), rel=1.3e-4, abs=0)


@pytest.fixture(scope="module")
def development(shared: Path) -> list[Tokens]:
    return tokenize(clotho(shared, "development"), "regex")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("per_document", "expected"), [(1, [0.04975, 0.10717, 0.46608]), (5, [0.01509, 0.06118, 0.41389])]
)
def test_cider_percentiles_of_clotho_development_match_stored_values(
    development: list[Tokens], per_document: int, expected: list[float]
) -> None:
    assert len(development) == 19_195
    documents = [development[i : i + per_document] for i in range(0, len(development), per_document)]
    found = percentiles(CiderD(documents).features(development), [80, 90, 99])
    assert found == pytest.approx(expected, abs=3.5e-5)
