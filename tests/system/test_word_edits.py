"""Captions whose words are edited at random: synonyms, deletions, swaps, insertions."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import augmented
import numpy as np
import pytest
from augmented import clip, table
from outcomes import digest, lines

from data_tools.errors import DataError
from data_tools.manifest import read_manifest
from data_tools.words import words_of
from system.__main__ import main
from system.batches.augment import Augmentation
from system.batches.augment_settings import Augment
from system.batches.sampler import Item, Sampler, make_items
from system.batches.word_edits import delete_words, edit_caption, insert_synonyms, replace_by_synonyms, swap_words
from system.losses.relevance.relax import Cider, Relevance

DOGS = clip("dogs.wav", "Two dogs bark, loudly!")
SYNONYMS = {"dogs": ["hounds", "puppies"], "bark": ["yap"]}
WORDS = ["two", "dogs", "bark", "loudly"]


class Script:
    """Random draws that are written down beforehand; every one must be asked for in order, and be possible."""

    def __init__(self, *draws: Any) -> None:
        self.draws = list(draws)

    def integers(self, high: int) -> int:
        found: int = self.draws.pop(0)
        assert 0 <= found < high
        return found

    def choice(self, of: Any, size: int, replace: bool) -> np.ndarray:
        found = self.draws.pop(0)
        allowed = range(of) if isinstance(of, int) else of
        assert not replace
        assert len(found) == size
        assert set(found) <= set(allowed)
        return np.array(found, int)

    def binomial(self, n: int, p: float) -> int:
        found, expected = self.draws.pop(0), self.draws.pop(0)
        assert (n, p) == expected
        return int(found)


@pytest.mark.parametrize(
    ("way", "n", "draws", "expected"),
    [
        (delete_words, 2, [[3, 1]], "two bark"),
        (delete_words, 0, [[]], "two dogs bark loudly"),
        (delete_words, 4, [[0, 1, 3]], "bark"),
        (swap_words, 1, [[0, 3]], "loudly dogs bark two"),
        (swap_words, 2, [[0, 1], [1, 2]], "dogs bark two loudly"),
        (swap_words, 0, [], "two dogs bark loudly"),
        (replace_by_synonyms, 1, [[1], 1], "two puppies bark loudly"),
        (replace_by_synonyms, 9, [[2, 1], 0, 0], "two hounds yap loudly"),
        (replace_by_synonyms, 0, [[]], "two dogs bark loudly"),
        (insert_synonyms, 1, [1, 0, 0], "yap two dogs bark loudly"),
        (insert_synonyms, 2, [0, 4, 1, 0, 5, 0], "two dogs bark loudly puppies hounds"),
    ],
)
def test_word_edits_match_hand_values(way: Any, n: int, draws: list[Any], expected: str) -> None:
    script = Script(*draws)
    assert " ".join(way(WORDS, n, SYNONYMS, script)) == expected
    assert not script.draws
    assert WORDS == ["two", "dogs", "bark", "loudly"], "the caption's own words stay"


def test_edited_caption_is_lower_case_without_punctuation() -> None:
    text = "Two dogs bark, loudly!"
    assert edit_caption(text, 0.25, None, Script(1, 1, (4, 0.25), [0, 1])) == "dogs two bark loudly"  # type: ignore[arg-type]
    assert edit_caption(text, 0.25, SYNONYMS, Script(3, 0, (4, 0.25))) == "two dogs bark loudly"  # type: ignore[arg-type]
    assert edit_caption("A dog's bark", 1.0, None, Script(0, 2, (3, 1.0), [0, 2])) == "dog's"  # type: ignore[arg-type]


def exact(words: Sequence[str], rate: float, synonyms: Mapping[str, list[str]] | None) -> dict[str, float]:
    """All texts that an edit may give, and how likely each is: every draw written out."""
    found: Counter[str] = Counter()
    known = [n for n, word in enumerate(words) if word in (synonyms or {})]
    for n in range(len(words) + 1):
        chance = math.comb(len(words), n) * rate**n * (1 - rate) ** (len(words) - n) / (2 if synonyms is None else 4)

        kept = [list(k) for k in itertools.combinations(words, max(1, len(words) - n))]
        for one in kept:
            found[" ".join(one)] += chance / len(kept)

        states = {tuple(words): 1.0}
        for _ in range(n if len(words) > 1 else 0):
            after: Counter[tuple[str, ...]] = Counter()
            pairs = list(itertools.permutations(range(len(words)), 2))
            for state, weight in states.items():
                for i, j in pairs:
                    changed = list(state)
                    changed[i], changed[j] = state[j], state[i]
                    after[tuple(changed)] += weight / len(pairs)
            states = dict(after)
        for state, weight in states.items():
            found[" ".join(state)] += chance * weight

        if synonyms is None:
            continue
        groups = list(itertools.combinations(known, min(n, len(known))))
        for group in groups:
            texts = list(itertools.product(*(synonyms[w] if k in group else [w] for k, w in enumerate(words))))
            for text in texts:
                found[" ".join(text)] += chance / len(groups) / len(texts)

        states = {tuple(words): 1.0}
        for _ in range(n if known else 0):
            after = Counter()
            for state, weight in states.items():
                for position in known:
                    for synonym in synonyms[words[position]]:
                        for place in range(len(state) + 1):
                            share = 1 / len(known) / len(synonyms[words[position]]) / (len(state) + 1)
                            after[*state[:place], synonym, *state[place:]] += weight * share
            states = dict(after)
        for state, weight in states.items():
            found[" ".join(state)] += chance * weight
    return dict(found)


@pytest.mark.parametrize("synonyms", [None, {"b": ["x", "y"]}, {"a": ["x"], "c": ["y"]}, {"other": ["x"]}])
@pytest.mark.parametrize("text", ["A, b. C", "b"])
@pytest.mark.parametrize("rate", [pytest.param(0.4, marks=pytest.mark.slow), 1.0])
def test_each_edited_text_occurs_with_its_exact_probability(
    text: str, rate: float, synonyms: dict[str, list[str]] | None
) -> None:
    draws, draw = 20_000, np.random.default_rng(3)
    seen = Counter(edit_caption(text, rate, synonyms, draw) for _ in range(draws))
    expected = exact(words_of(text), rate, synonyms)
    assert sum(expected.values()) == pytest.approx(1)
    assert seen.keys() <= expected.keys()
    for one, share in expected.items():
        assert seen[one] / draws == pytest.approx(share, abs=5 * math.sqrt(share / draws)), one


def test_word_edits_never_remove_all_words_of_a_caption() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        assert edit_caption("Rain!", 1.0, None, draw) == "rain"
        assert words_of(edit_caption("Heavy rain", 1.0, {"rain": ["drizzle"]}, draw))
        assert edit_caption("...", 1.0, SYNONYMS, draw) == "..."


def editing(probability: float, rate: float, synonyms: Path | None = None, **parts: Any) -> Augment:
    edits = {"probability": probability, "rate": rate, "synonyms": None if synonyms is None else str(synonyms)}
    return Augment.model_validate({"edits": edits} | parts)


def test_captions_are_edited_with_the_given_probability() -> None:
    augmentation = Augmentation(editing(0.3, 0.01), [DOGS])
    items = [Item(DOGS, tuple(DOGS.captions), (0,))] * 100
    found = [item for step in range(100) for item in augmentation(items, [step])]
    share = sum(item.captions != tuple(DOGS.captions) for item in found) / len(found)
    assert share == pytest.approx(0.3, abs=0.02)
    assert all(item.clip is DOGS and item.numbers == (0,) for item in found)


def test_synonyms_are_read_from_a_file(tmp_path: Path) -> None:
    file = table(tmp_path / "s.csv", ("word", "synonym"), ("Dogs", "Guide-dogs!"), ("dogs", "the hounds"), ("cat", "x"))
    augmentation = Augmentation(editing(1, 1, file), [DOGS])
    assert augmentation.notes == [f"{file}: 3 lines; 1 of these lines names no word of a training caption"]
    assert augmentation.texts_with_new_words() == ["guide-dogs", "the hounds"]
    items = [Item(DOGS, tuple(DOGS.captions), (0,))]
    seen = {augmentation(items, [step])[0].captions[0] for step in range(200)}
    assert {"two guide-dogs bark loudly", "two the hounds bark loudly"} <= seen


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("two dogs", "x"), "line 2"),
        (("", "x"), "line 2"),
        (("dogs", "!"), "line 2"),
        (("cat", "x"), "training"),
    ],
)
def test_bad_lines_of_a_synonym_file_are_refused(tmp_path: Path, row: tuple[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Augmentation(editing(1, 1, table(tmp_path / "s.csv", ("word", "synonym"), row)), [DOGS])


def test_word_edits_do_not_alter_the_random_draws_of_alternatives(world: Path, tmp_path: Path) -> None:
    clips = [one for one in read_manifest(world) if one.split == "development"]
    captions = {"file": str(augmented.alternatives(world, tmp_path / "a.csv")), "probability": 0.5}
    parts = Augment.model_validate({"captions": captions}), editing(1, 0.01, captions=captions)
    samplers = [Sampler([make_items(clips, "clip")], "size", 8, 2, (1, 0), Augmentation(part, clips)) for part in parts]
    for step in range(5):
        for before, after in zip(*(sampler.batch(step) for sampler in samplers), strict=True):
            plain, changed = (Counter(words_of(" ".join(item.captions))) for item in (before, after))
            assert (plain - changed).total() <= 3, "only replaced words differ"
            assert before.numbers == after.numbers


def test_alternative_captions_do_not_alter_the_random_draws_of_word_edits(tmp_path: Path) -> None:
    file = table(tmp_path / "same.csv", augmented.ALTERNATIVES, ("dogs.wav", 0, DOGS.captions[0]))
    captions = {"file": str(file), "probability": 0.5}
    one, other = (Augmentation(part, [DOGS]) for part in (editing(0.5, 0.5), editing(0.5, 0.5, captions=captions)))
    items = [Item(DOGS, tuple(DOGS.captions), (0,))] * 8
    assert [one(items, [step]) for step in range(20)] == [other(items, [step]) for step in range(20)]


def test_validation_uses_unedited_captions(world: Path, tmp_path: Path) -> None:
    edits = {"probability": 1, "rate": 0.5, "synonyms": None}
    found = []
    for name, augment in (("with", {"edits": edits}), ("without", None)):
        (tmp_path / name).mkdir()
        optimizer = {"kind": "adamw", "lr": 1e-30, "weight_decay": 0}
        path = augmented.recipe(world, tmp_path / name, augment, optimizer=optimizer)
        assert main(["train", str(path), "--out", str(tmp_path / name / "run")]) == 0
        found.append(lines(tmp_path / name / "run"))
    for one, other in zip(*found, strict=True):
        assert one["validation"] == other["validation"]
        assert one["loss"] != other["loss"]


def test_margin_factors_use_edited_captions_without_storing_them(tmp_path: Path) -> None:
    captions = [["A dog barks loudly", "some rain falls"], ["a cat meows", "the cat sleeps on a mat"]]
    settings = Cider.model_validate(augmented.tiny.relevance())
    one, other = (Relevance(settings, captions, tmp_path) for _ in range(2))
    one.prepare(text for own in captions for text in own)
    batch = ["barks dog a loudly", "a cat meows", "barks dog a loudly", "quite new words"]
    found = one.cider_between(batch)
    assert len(one._rows) == 4
    other.prepare(batch)
    assert np.array_equal(found, other.cider_between(batch))
    assert np.array_equal(one.cider_between(["a cat meows"]), found[1:2, 1:2])


@pytest.fixture(scope="module")
def trained(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recipe with alternatives and edits, and of its run."""
    folder = tmp_path_factory.mktemp("edits")
    synonyms = table(
        folder / "s.csv", ("word", "synonym"), ("tone", "pitch"), ("sounds", "rings out"), ("beep", "blip")
    )
    captions = {"file": str(augmented.alternatives(world, folder / "a.csv")), "probability": 0.5}
    edits = {"probability": 0.7, "rate": 0.3, "synonyms": str(synonyms)}
    path = augmented.recipe(world, folder, {"captions": captions, "edits": edits})
    assert main(["train", str(path), "--out", str(folder / "run")]) == 0
    return folder


def test_killed_and_resumed_run_with_word_edits_matches_uninterrupted_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    augmented.killed_and_resumed(trained / "augmented.yaml", tmp_path / "again", 5, monkeypatch)
    assert digest(tmp_path / "again") == digest(trained / "run")
    assert lines(tmp_path / "again") == lines(trained / "run")


def test_vocabulary_and_check_include_synonyms(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (trained / "run/vocabulary.json").read_text()
    assert all(f'"{word}"' in words for word in ("pitch", "rings", "blip", "apparently"))
    assert main(["check", str(trained / "augmented.yaml")]) == 0
    said = f"; 70% of captions edited, 30% of their words, with synonyms of {trained / 's.csv'}; "
    assert said in capsys.readouterr().out
