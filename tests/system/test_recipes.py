"""Recipes: all shipped ones are valid, all mistakes are reported with their lines, and settings never leak."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from outcomes import refused
from quick import first_quick

from data_tools.manifest import read_manifest
from data_tools.settings import parse
from system.__main__ import main
from system.check.check import Found, trainable_parameters
from system.experiments.studies import load_study
from system.recipe.data import input_paths
from system.recipe.load import RecipeError, as_change, load_recipe
from system.runs.folder import Run
from system.runs.open import build_model

SHIPPED = sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))
assert SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_recipe_is_valid_with_plain_addresses_and_begins_with_its_command(path):
    """Addresses are URLs without blanks; any other says in words where the file is, and is fetched by hand."""
    if path.name.endswith(".study.yaml"):
        study, cells = load_study(path, [])
        assert len(cells) == len(study.cells) * len(study.seeds)
        recipes = [cell.recipe for (_, seed), cell in cells.items() if seed == study.seeds[0]]
    else:
        recipes = [load_recipe(path).recipe]
    for need in (need for recipe in recipes for part in recipe.model.parts.values() for need in part.needs()):
        if need.address.startswith("http"):
            assert re.fullmatch(r"https?://[\w.-]+/[\w./%=&?+~-]+", need.address, re.ASCII), need.address
    assert "lbar" in "".join(path.read_text().splitlines(keepends=True)[:8]), "a command that runs it"


BROKEN = """\
name: Broken
seed: 1
banks: banks
data:
  train: {manifest: a.jsonl, split: development}
  test: {manifest: a.jsonl, split: evaluation}
  test: {manifest: b.jsonl, split: evaluation}
model:
  audio:
    kind: expert_heads
    experts:
      logmel: {kind: logmell, sample_rate: 16000}
    width: 256
    layers: 2
    heads: 3
    ffn_dim: 512
    max_positions: 1024
    dropout: 1.5
  text: {kind: transformer, dim: 256, layers: 2, heads: 4, ffn_dim: 512, max_words: 64, dropout: 0.1}
  score: {kind: cosine}
stages:
  pretrain:
    start_from: {kind: stage, stage: nowhere, checkpoint: last}
    train: {data: [train, test], mix: equal}
    unit: clip
    batch_size: 9.5
    grad_cache_chunk: null
    epochs: yes
    steps_per_epoch: 16
    losses:
      - {kind: ranking, weight: 1, margin: 0.2, relax: none}
      - {kind: matching, wieght: 3}
    optimizer: {kind: adamw, lr: -1e-4, weight_decay: 0.01}
    schedule: {kind: constant, warmup_steps: 0}
    max_grad_norm: 1.0
    precision: float32
    monitor: {data: [test], metrics: [loss, mAP@7], keep: 3}
rank:
  evaluation: {kind: checkpoint, data: tset, stage: pretrain, checkpoint: m1, edition: 1999, csv: true}
imports: [null]
"""
PLANTED = [  # line, key
    (1, "name"), (7, "data.test"), (12, "model.audio.experts.logmel"), (15, "model.audio.heads"),
    (18, "model.audio.dropout"), (23, "stages.pretrain.start_from.stage"), (24, "stages.pretrain.train.data.1"),
    (26, "stages.pretrain.batch_size"), (28, "stages.pretrain.epochs"), (32, "stages.pretrain.losses.1.weight"),
    (32, "stages.pretrain.losses.1.wieght"), (33, "stages.pretrain.optimizer.lr"),
    (37, "stages.pretrain.monitor.data.0"), (37, "stages.pretrain.monitor.metrics.1"),
    (39, "rank.evaluation.checkpoint"), (39, "rank.evaluation.data"), (39, "rank.evaluation.edition"), (40, "imports"),
    (40, "imports.0"),
]  # fmt: skip


def test_all_recipe_mistakes_are_reported_with_line_and_key(tmp_path, capsys):
    path = tmp_path / "broken.yaml"
    path.write_text(BROKEN)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    problems = caught.value.problems
    found = [re.match(rf"{re.escape(str(path))}:(\d+): ([\w.]+):", problem) for problem in problems]
    assert sorted((int(one[1]), one[2]) for one in found if one) == PLANTED, "\n".join(problems)
    assert len(problems) == len(PLANTED)
    assert main(["check", str(path)]) == 1
    assert capsys.readouterr().err.splitlines() == [f"error: {problem}" for problem in problems]


def valid(tmp_path: Path) -> dict[str, Any]:
    return tiny.recipe(tmp_path / "manifest.jsonl", tmp_path)


def load(tmp_path: Path, content: dict[str, Any], changes: list[str] | None = None) -> Any:
    return load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content), changes)


def test_resolved_json_loads_as_the_same_recipe(tmp_path):
    changes = ["stages.only.optimizer.lr=3e-5", "stages.only.captions_per_clip=all"]
    changes += [as_change("banks", "klänge 😀")]
    loaded = load(tmp_path, valid(tmp_path), changes)
    run, other = Run(tmp_path / "run"), Run(tmp_path / "other")
    run.adopt(loaded)
    again = load_recipe(run.resolved)
    assert again.recipe == loaded.recipe
    other.adopt(again)
    assert other.resolved.read_bytes() == run.resolved.read_bytes()
    assert loaded.recipe.stages["only"].optimizer.lr == 3e-5


def test_yaml_values_and_set_options_are_parsed_and_aliases_change_alone(tmp_path):
    value = parse("{a: 1e-4, b: yes, c: 12, d: -.5, e: '3', f: ~, g: true, h: 0x10, i: 1.}").value
    assert value == {"a": 1e-4, "b": "yes", "c": 12, "d": -0.5, "e": "3", "f": None, "g": True, "h": "0x10", "i": 1.0}
    assert isinstance(value["c"], int)
    value = parse("a: &x {k: 1}\nb: *x\n").value
    value["a"]["k"] = 2
    assert value["b"]["k"] == 1
    loaded = load(tmp_path, valid(tmp_path), ['stages.only.losses=[{"kind": "matching", "weight": 2}]'])
    assert [(loss.kind, loss.weight) for loss in loaded.recipe.stages["only"].losses] == [("matching", 2)]


def test_planned_parameters_match_the_model(tmp_path):
    recipe = load(tmp_path, valid(tmp_path)).recipe
    model = build_model(recipe, ["a", "dog", "barks"])
    own = tiny.make_world(tmp_path / "words", {"development": 1})
    clip = replace(read_manifest(own)[0], captions=["a dog barks"])
    data = {name: Found([clip] if name == "train" else []) for name in recipe.data}
    assert trainable_parameters(recipe, data) == model.parameters_by_part()


def test_margin_factors_may_be_equal(tmp_path):
    content = valid(tmp_path) | {"relevance": tiny.relevance({60: 0.7, 80: 0.7, 95: 0.4})}
    content["stages"]["only"]["losses"] = tiny.RELAXED
    load(tmp_path, content)


EMPTY = ["zero_shot/clap", "zero_shot/pe_av", "zero_shot/m2d_clap"]
MODERN = ("dcase2025_baseline", "salsa2024", "aistat2025", "zero_shot")
EMPTY += sorted({f"{path.parent.name}/{path.stem}" for path in SHIPPED if path.parent.name in MODERN} - {*EMPTY})


@pytest.mark.parametrize("name", first_quick(EMPTY, 2))
def test_check_on_an_empty_machine_lists_files_and_addresses(name, root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = root / f"recipes/{name}.yaml"
    assert main(["check", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    missing = [line for line in lines if line.startswith("  MISSING")]
    assert len(missing) >= 2
    known = ("published", "lbar download", "neither a finished run nor an exported model")
    assert [line for line in missing if not any(said in line for said in known)] == []
    recipe = load_recipe(path).recipe
    named = getattr(recipe.model.audio, "weights", None)
    places = ("https://", "Google Drive, id ")
    assert named is None or any(named in line and any(place in line for place in places) for line in missing)
    assert any(str(getattr(recipe.model.text, "model", "")) in line for line in missing)


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main([*argv]) == 0
    return capsys.readouterr().out


def test_every_shipped_recipe_is_listed(root, capsys):
    lines = printed(capsys, "recipes").splitlines()
    names = {line.split()[0] for line in lines}
    shipped = {path for path in (root / "recipes").rglob("*.yaml") if not path.name.endswith(".study.yaml")}
    assert {root / "recipes" / f"{name}.yaml" for name in names} == shipped
    assert all(len(line.split()) > 3 for line in lines)


def test_make_commands_of_all_shipped_recipes_are_those_of_lbar_data(root):
    commands = set()
    for path in (root / "recipes").rglob("*.yaml"):
        if not path.name.endswith(".study.yaml"):
            sources = load_recipe(path).recipe.data.values()
            commands |= {(source.make, Path(source.manifest)) for source in sources if source.make}
    assert len(commands) > 10
    for command in commands:
        input_paths(*command)  # an error for what lbar data refuses


def test_recipe_is_copied_under_a_new_name_and_no_file_is_overwritten(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = printed(capsys, "recipes", "new", "mine")
    assert "lbar check mine.yaml" in said
    mine, clotho = load_recipe("mine.yaml").recipe, load_recipe(root / "recipes/clotho.yaml").recipe
    assert mine == clotho.model_copy(update={"name": "mine"})
    text = Path("mine.yaml").read_text()
    assert "lbar run mine.yaml" in text
    assert "recipes/clotho.yaml" not in text
    assert "exists" in refused(capsys, "recipes", "new", "mine")
    assert Path("mine.yaml").read_text() == text
    printed(capsys, "recipes", "new", "easy", "--from", "honest")
    assert load_recipe("easy.yaml").recipe.name == "easy", "the last part of a name is enough"
    assert "baseline2022" in refused(capsys, "recipes", "new", "b", "--from", "x")
    assert "small" in refused(capsys, "recipes", "new", "b", "--from", "small"), "several have this name"
    assert "letters" in refused(capsys, "recipes", "new", "../b")


def test_settings_are_printed_with_their_comments(capsys):
    for path, line in {
        "": "stages: ",
        "stages.optimizer": "lr: ",
        "stages.finetune.optimizer.lr": "lr: ",
        "stages.losses.0.same_clip": "same_clip: ",
        "model.audio.experts.NAME.weights": "weights: ",
        "rank.evaluation.edition": "edition: ",
    }.items():
        text = printed(capsys, "keys", path)
        assert [one for one in text.splitlines() if one.strip().startswith(line)], path
        assert "def " not in text


@pytest.mark.slow
def test_all_networks_are_printed_though_no_recipe_names_them(root):
    text = subprocess.check_output([sys.executable, "-m", "system", "keys", "model.audio.network"], cwd=root, text=True)
    assert all(f"class {name}(" in text for name in ("Passt", "Beats", "Ast", "VggSound"))


def test_unknown_key_is_refused_with_a_similar_one(capsys):
    assert "stages" in refused(capsys, "keys", "stagse.optimizer")
    assert "optimizer" in refused(capsys, "keys", "stages.finetune.optimiser")
    assert "optimizer" in refused(capsys, "keys", "stages.optimiser")
    assert "rank" in refused(capsys, "keys", "xyzzy.1.2")
