"""Training data that is changed at random: captions that are replaced by alternatives."""

import json
import shutil
from pathlib import Path
from typing import Any

import augmented
import numpy as np
import pytest
from augmented import ALTERNATIVES, clip, table
from outcomes import digest, lines, refused

from data_tools.errors import KitError
from data_tools.manifest import read_manifest
from data_tools.tables import read_table
from system.__main__ import main
from system.batches.augment import Augment, Augmentation
from system.batches.items import Item, Sampler, caption_key, make_items
from system.batches.loader import Taught
from system.losses.cider import Cider, Relevance
from system.recipe.data import load_data
from system.recipe.load import load_recipe

DOGS = clip("dogs.wav", "Dogs bark.", "Two dogs are barking.")
RAIN = clip("rain.wav", "It rains.")
HEADER = ",".join(ALTERNATIVES) + "\n"


def replacing(path: Path, probability: float = 0.5) -> Augment:
    return Augment.model_validate({"captions": {"file": str(path), "probability": probability}})


def small(folder: Path) -> Path:
    rows = [("own/train/dogs.wav", 1, "a pair of dogs"), ("dogs.wav", 1, "dogs, two of them"), ("rain.wav", 0, "Rain")]
    return table(folder / "alternatives.csv", ALTERNATIVES, *rows)


@pytest.mark.parametrize(
    ("seed", "draws", "expected"),
    [
        (2, [0.89, 0.85, 0.21, 0.97, 0.04, 0.48], [("Dogs bark.", "dogs, two of them"), ("Rain",)]),
        (4, [0.98, 0.43, 0.15, 0.06, 0.73, 0.04], [("Dogs bark.", "a pair of dogs"), ("It rains.",)]),
        (9, [0.83, 0.37, 0.93, 0.36, 0.48, 0.86], [("Dogs bark.", "Two dogs are barking."), ("Rain",)]),
    ],
)
def test_replaced_captions_match_hand_computed_random_draws(tmp_path, seed, draws, expected):
    """Two draws per caption: whether it is replaced (below 0.5), and the choice of its alternative."""
    assert np.random.default_rng([seed, 1]).random(6).round(2).tolist() == draws
    augmentation = Augmentation(replacing(small(tmp_path)), [DOGS, RAIN])
    items = [Item(DOGS, tuple(DOGS.captions), (0, 1)), Item(RAIN, tuple(RAIN.captions), (0,))]
    found = augmentation(items, [seed])
    assert [item.captions for item in found] == expected
    assert [item.numbers for item in found] == [(0, 1), (0,)]
    assert augmentation.new_texts() == ["a pair of dogs", "dogs, two of them", "Rain"]


def test_caption_is_replaced_only_by_alternatives_listed_for_its_clip_and_index(tmp_path):
    rows = [("dogs.wav", 0, "x"), ("dogs.wav", 1, "y")]
    augmentation = Augmentation(replacing(table(tmp_path / "a.csv", ALTERNATIVES, *rows), 1), [DOGS, RAIN])
    items = [Item(DOGS, (DOGS.captions[1],), (1,)), Item(RAIN, ("",), (0,)), Item(DOGS, ("", ""), (1, 0))]
    for step in range(20):
        assert [item.captions for item in augmentation(items, [step])] == [("y",), ("It rains.",), ("y", "x")]


def test_replacing_captions_does_not_alter_the_draws_of_clips_and_captions(world, tmp_path):
    clips = [one for one in read_manifest(world) if one.split == "development"]
    augmentation = Augmentation(replacing(augmented.alternatives(world, tmp_path / "a.csv")), clips)
    items = make_items(clips, "clip")
    plain, changed = (Sampler([items], "size", 8, 2, (1, 0), augment) for augment in (None, augmentation))
    for step in (5, 0, 3):
        pairs = list(zip(plain.batch(step), changed.batch(step), strict=True))
        assert all(before.clip == after.clip and before.numbers == after.numbers for before, after in pairs)
        assert any(before.captions != after.captions for before, after in pairs)
        assert any(set(before.captions) & set(after.captions) for before, after in pairs)
    again = Sampler([items], "size", 8, 2, (1, 0), augmentation)
    assert again.batch(3) == changed.batch(3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{HEADER}dogs.wav,one,x\n", "line 2"),
        (f"{HEADER}dogs.wav,-1,x\n", "line 2"),
        (f"{HEADER}rain.wav,0,x\ndogs.wav,2,x\n", "line 3"),
        (f"{HEADER}mute.wav,0,x\n", "line 2"),
        (f"{HEADER}dogs.wav,0, \n", "line 2: the caption"),
        (f"{HEADER}twin.wav,0,x\n", "line 2"),
        (f"{HEADER}dogs.wav,0,x,y\n", "line 2"),
        (f"{HEADER}cats.wav,0,x\n", "training"),
        ("clip,alternative\ndogs.wav,x\n", "a.csv: no column caption"),
        ("", "empty"),
        (None, "correct"),
    ],
)
def test_alternatives_files_with_mistakes_are_refused(tmp_path, text, said):
    clips = [DOGS, RAIN, clip("mute.wav"), clip("twin.wav", "a"), clip("twin.wav", "b", source="b")]
    if text is not None:
        (tmp_path / "a.csv").write_text(text)
    with pytest.raises(KitError, match=said):
        Augmentation(replacing(tmp_path / "a.csv"), clips)


def test_teacher_embeds_original_captions_instead_of_alternatives(tmp_path):
    augmentation = Augmentation(replacing(small(tmp_path), 1), [DOGS, RAIN])
    draw = np.random.default_rng(0)
    captions = [caption_key(one, number) for one in (DOGS, RAIN) for number in range(len(one.captions))]
    taught = Taught({key: draw.normal(size=3) for key in "dr"}, {key: draw.normal(size=3) for key in captions})
    items = [Item(DOGS, (DOGS.captions[1],), (1,)), Item(RAIN, tuple(RAIN.captions), (0,))]
    changed = augmentation(items, [0])
    assert all(before.captions != after.captions for before, after in zip(items, changed, strict=True))
    keys = [[caption_key(one.clip, n) for one in some for n in one.numbers] for some in (items, changed)]
    assert np.array_equal(*(taught.cosines(["d", "r"], each) for each in keys))


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """The folder of a recipe with alternatives, and of its run."""
    folder = tmp_path_factory.mktemp("alternatives")
    file = augmented.alternatives(world, folder / "alternatives.csv")
    path = augmented.recipe(world, folder, {"captions": {"file": str(file), "probability": 0.5}})
    assert main(["run", "--until=training", str(path), "--out", str(folder / "run")]) == 0
    return folder


def test_killed_and_resumed_augmented_run_matches_uninterrupted_run(trained, tmp_path, monkeypatch):
    augmented.killed_and_resumed(trained / "augmented.yaml", tmp_path / "again", 5, monkeypatch)
    assert digest(tmp_path / "again") == digest(trained / "run")
    assert lines(tmp_path / "again") == lines(trained / "run")


def test_augmentation_changes_metrics_vocabulary_and_relevance(trained, world, tmp_path):
    plain = augmented.recipe(world, tmp_path, None)
    assert main(["run", "--until=training", str(plain), "--out", str(tmp_path / "run")]) == 0
    assert lines(tmp_path / "run") != lines(trained / "run")
    words = json.loads((trained / "run/vocabulary.json").read_text())
    assert {"seems", "apparently", "deep"} <= set(words)
    data = load_data(load_recipe(trained / "augmented.yaml").recipe)
    texts, captions = data.new_texts(), [one.captions for one in data.readable_clips("train")]
    assert len(texts) == 480
    relevance = Relevance(Cider.model_validate(augmented.tiny.relevance()), captions)
    found = relevance.among([texts[0], captions[0][0], texts[-1]]).of_items([1, 1, 1])
    assert found[0, 1] > found[2, 1]


def test_frozen_text_encoder_embeds_alternatives_before_training(trained, tmp_path, monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr("system.models.text.TextEncoder.prepare", lambda _, texts: seen.extend(texts))
    assert main(["run", "--until=training", str(trained / "augmented.yaml"), "--out", str(tmp_path / "run")]) == 0
    texts = {row["alternative"] for _, row in read_table(trained / "alternatives.csv", ["alternative"])}
    assert len(texts) == 480
    assert texts < set(seen)


def test_resuming_with_a_changed_alternatives_file_is_refused(trained, tmp_path, capsys):
    file, run = trained / "alternatives.csv", shutil.copytree(trained / "run", tmp_path / "run")
    (run / "only/done.json").unlink()
    text = file.read_text()
    file.write_text(text.replace("apparently", "perhaps"))
    said = refused(capsys, "run", "--until=training", trained / "augmented.yaml", "--out", run)
    assert f"{file} changed since this run began" in said
    file.write_text(text)


def test_check_reports_augmentation_and_missing_files(trained, world, tmp_path, capsys):
    def checked(captions: dict[str, Any], manifest: Path = world) -> str:
        path = augmented.recipe(manifest, tmp_path, {"captions": {"probability": 0.5} | captions})
        assert main(["check", str(path)]) == 1
        return "".join(capsys.readouterr())

    assert main(["check", str(trained / "augmented.yaml")]) == 0
    assert "gone.csv" in checked({"file": "gone.csv"})
    own = ("--set", f"banks={tmp_path / 'banks'}")
    assert "such" in refused(capsys, "run", tmp_path / "augmented.yaml", "--out", tmp_path / "run", *own)
    assert not list(tmp_path.rglob("*.frames")), "it is found before frames are computed"
    wrong = table(tmp_path / "wrong.csv", ALTERNATIVES, ("x", 0, "y"))
    assert f"{wrong}: no line names a training clip" in checked({"file": str(wrong)})
    said = checked({"file": str(wrong)}, tmp_path / "later.jsonl")
    assert "no line names" not in said, "the clips are not known yet"
    said = checked({"file": "a.csv", "probability": 1.5, "other": 1})
    assert "stages.only.augment.captions.probability" in said
    assert "stages.only.augment.captions.other" in said
