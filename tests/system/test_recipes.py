"""Recipes: all shipped ones are valid, all mistakes are reported with their lines, and settings never leak."""

import doctest
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import tiny
import yaml
from pydantic import Field, ValidationError

from data_tools.documents.strict import Strict, faults_of
from data_tools.documents.yaml12 import parse
from data_tools.manifest import read_manifest
from system.__main__ import main
from system.experiments.study import load_study
from system.plan.data import find_data
from system.plan.estimates import Estimates
from system.recipe import suggest
from system.recipe.load import RecipeError, as_change, load_recipe
from system.verbs.download import published_files

SHIPPED = sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))
assert SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_recipes_are_valid_and_their_first_lines_show_a_command_that_runs_them(path: Path) -> None:
    if path.name.endswith(".study.yaml"):
        study, cells = load_study(path, [])
        assert len(cells) == len(study.cells) * len(study.seeds)
    else:
        load_recipe(path)
    head = "".join(path.read_text().splitlines(keepends=True)[:8])
    assert "lbar" in head, f"{path} does not begin with the commands that run it"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_download_addresses_are_plain_urls(path: Path) -> None:
    """Without blanks; any other says in words where the file is, and is fetched by hand."""
    study = path.name.endswith(".study.yaml")
    recipes = [cell.recipe for cell in load_study(path, [])[1].values()] if study else [load_recipe(path).recipe]
    for recipe in recipes:
        for file in published_files(recipe.model):
            if file.address.startswith("http"):
                assert re.fullmatch(r"https?://[\w.-]+/[\w./%=&?+~-]+", file.address, re.ASCII), file.address


def test_weights_on_google_drive_must_be_downloaded_by_hand(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, recipe = tmp_path / "atst.ckpt", str(root / "recipes/salsa2024/atst.yaml")
    changes = [f"model.audio.weights={weights}", f"model.text.model={tmp_path}"]
    assert main(["download", recipe, *(word for change in changes for word in ("--set", change))]) == 1
    said = capsys.readouterr().err
    assert f"{weights}: the file cannot be fetched automatically; get it from Google Drive, id 1bGJSZWlAIIJ6GL5" in said
    assert "audiossl and put it at this path\n" in said


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
"""
PLANTED = [  # line, key, words
    (1, "name", "small letters, digits and _"),
    (7, "data.test", "given twice (first on line 6)"),
    (12, "model.audio.experts.logmel", "'logmell'"),
    (15, "model.audio.heads", "width 256 is not a multiple of heads 3"),
    (18, "model.audio.dropout", "must be below 1, not 1.5"),
    (23, "stages.pretrain.start_from.stage", "no earlier stage 'nowhere'"),
    (24, "stages.pretrain.train.data.1", "is a test split (evaluation); train on another split"),
    (22, "stages.pretrain.captions_per_clip", "missing"),
    (26, "stages.pretrain.batch_size", "whole number"),
    (28, "stages.pretrain.epochs", "whole number, not 'yes'"),
    (32, "stages.pretrain.losses.1.weight", "missing"),
    (32, "stages.pretrain.losses.1.wieght", "did you mean weight?"),
    (33, "stages.pretrain.optimizer.lr", "must be above 0, not -0.0001"),
    (37, "stages.pretrain.monitor.data.0", "set monitor.test_split to acknowledged"),
    (37, "stages.pretrain.monitor.metrics.1", "'mAP@7'"),
    (39, "rank.evaluation.data", "no data source 'tset'"),
    (39, "rank.evaluation.checkpoint", "does not monitor 'm1'"),
    (39, "rank.evaluation.edition", "edition 1999 is not known"),
]


def test_all_recipe_mistakes_are_reported_with_line_and_key(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(BROKEN)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    problems = caught.value.problems
    for line, key, words in PLANTED:
        assert any(p.startswith(f"{path}:{line}: {key}:") and words in p for p in problems), (line, key, problems)
    assert len(problems) == len(PLANTED), "\n".join(problems)

    code = (
        "import sys; from system.__main__ import main; status = main(sys.argv[1:]); "
        "assert status == 1, status; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, "check", path], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [f"error: {problem}" for problem in problems]


def valid(tmp_path: Path) -> dict[str, Any]:
    return tiny.recipe(tmp_path / "manifest.jsonl", tmp_path)


def load(tmp_path: Path, content: dict[str, Any], changes: list[str] | None = None) -> Any:
    return load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content), changes)


def test_resolved_json_loads_as_the_same_recipe(tmp_path: Path) -> None:
    changes = ["stages.only.optimizer.lr=3e-5", "stages.only.captions_per_clip=all"]
    changes += [as_change("banks", "klänge 😀\x85\u2028\x7f")]
    loaded = load(tmp_path, valid(tmp_path), changes)
    (tmp_path / "resolved.json").write_text(loaded.resolved())
    again = load_recipe(tmp_path / "resolved.json")
    assert again.recipe == loaded.recipe
    assert again.resolved() == loaded.resolved()
    assert loaded.recipe.stages["only"].optimizer.lr == 3e-5


def test_set_option_does_not_change_other_uses_of_a_yaml_anchor(tmp_path: Path) -> None:
    content = valid(tmp_path)
    content["stages"] = {"first": tiny.stage(), "second": tiny.stage()}
    content["rank"] = {}
    text = yaml.safe_dump(content, sort_keys=False)
    shared = "{kind: adamw, lr: 1e-3, weight_decay: 0.01}"
    lines = text.splitlines()
    for written in (f"&o {shared}", "*o"):
        at = lines.index("    optimizer:")
        lines[at : at + 4] = [f"    optimizer: {written}"]
    (tmp_path / "anchored.yaml").write_text("\n".join(lines))
    stages = load_recipe(tmp_path / "anchored.yaml", ["stages.second.optimizer.lr=5e-5"]).recipe.stages
    assert (stages["first"].optimizer.lr, stages["second"].optimizer.lr) == (1e-3, 5e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("stages.only.batchsize=4", "unknown key; did you mean batch_size"),
        ("stages.other.batch_size=4", "the recipe has no such key; stages has only$"),
        ("stages.onyl.batch_size=4", r"no such key; did you mean stages\.only\.batch_size\?"),
        ("stages.only.optimiser.lr=1", r"no such key; did you mean stages\.only\.optimizer\.lr\?"),
        ("stage.only.batch_size=4", r"no such key; did you mean stages\.only\.batch_size\?"),
        (
            "batch_size=4",
            r"--set batch_size: .* this key at the top level; did you mean stages\.only\.batch_size\?",
        ),
        ("stages.only.batch_size.x=4", r"no such key; stages\.only\.batch_size has no keys"),
        ("stages.only.grad_cache_chunk.x=4", "no such key; stages.only.grad_cache_chunk is null"),
        ("data.train.-1=4", "unknown key"),
        ("rank={", "not YAML"),
        ("stages={scores: {}}", "give the stage another name"),
        ("data.train.split=[evaluation]", "data.train.split"),
        ("model.audio.experts.logmel.kind=yamnet", "bands: settings of this kind do not have this key"),
        ("stages.only.losses.7.margin=1", r"no such key; stages\.only\.losses has 2 entries, the first is stages\.o"),
        ("rank.evaluation.x.y=1", "no such key; rank.evaluation has kind, "),
        ("seed", "this text is not a setting; write a setting as key.key=value"),
        ("seed=yes", "whole number"),
        ("stages.only.unit=pair", "remove it"),
    ],
)
def test_set_option_with_unknown_keys_is_refused(tmp_path: Path, change: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        load(tmp_path, valid(tmp_path), [change])


def test_recipe_messages_use_the_singular_for_one_entry() -> None:
    assert doctest.testmod(suggest).attempted == 2
    losses = {"stages": {"only": {"losses": [{"kind": "ranking"}]}}}
    said = suggest.unknown_path(losses, ("stages", "only", "losses", 1, "margin"))
    assert said.endswith("; stages.only.losses has 1 entry, the first is stages.only.losses.0")

    class Few(Strict):
        one: Annotated[list[int], Field(max_length=1)]
        two: Annotated[list[int], Field(max_length=2)]

    with pytest.raises(ValidationError) as error:
        Few(one=[1, 2], two=[1, 2, 3])
    assert faults_of(error.value) == [
        "one: must have at most 1 entry, but has 2",
        "two: must have at most 2 entries, but has 3",
    ]


def test_test_split_may_be_monitored_but_not_trained_on(tmp_path: Path) -> None:
    watched = ["stages.only.monitor.data=[evaluation]"]
    with pytest.raises(RecipeError, match="acknowledged"):
        load(tmp_path, valid(tmp_path), watched)
    load(tmp_path, valid(tmp_path), [*watched, "stages.only.monitor.test_split=acknowledged"])
    with pytest.raises(RecipeError, match="train on another split"):
        load(
            tmp_path,
            valid(tmp_path),
            ["stages.only.train.data=[evaluation]", "stages.only.monitor.test_split=acknowledged"],
        )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "missing"),
        (b"- 1\n- 2\n", "must be a mapping of keys to values"),
        (b"a: [1", "not YAML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"just text", "must be a mapping of keys to values"),
        (b"stages: {a: 3}\nmodel: []\ndata: 7\nrank: {x: 1}\n", "stages.a"),
    ],
)
def test_files_that_are_no_recipe_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=words):
        load_recipe(path)


def test_null_character_is_reported_with_its_key(tmp_path: Path) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(tmp_path / "m.jsonl", tmp_path))
    for change, at in (('banks="a\\0b"', "banks"), ('data.train.manifest="\\0"', "data.train.manifest")):
        with pytest.raises(RecipeError, match=f"{at}: the value contains a null character"):
            load_recipe(path, [change])


def test_invalid_yaml_is_reported_as_one_mistake(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("a: {")
    with pytest.raises(RecipeError) as error:
        load_recipe(tmp_path / "r.yaml")
    assert len(error.value.problems) == 1, error.value.problems


@pytest.mark.parametrize("kind", [["checkpoint"], {"kind": "checkpoint"}])
def test_rank_entry_whose_kind_is_not_text_is_reported_with_its_key(tmp_path: Path, kind: Any) -> None:
    content = valid(tmp_path)
    content["rank"] = {
        "first": content["rank"]["evaluation"] | {"kind": kind},
        "both": {"kind": "mean", "of": ["first", "first"], "edition": 2022, "csv": False},
    }
    with pytest.raises(RecipeError) as found:
        load(tmp_path, content)
    said = str(found.value)
    assert "rank.first" in said
    assert "rank.both.of.0: 'first' is no earlier entry that a mean can use; such entries: none" in said


def test_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="shipped"):
        load_recipe(tmp_path / "none.yaml")


def test_yaml_numbers_and_words_are_parsed_as_in_yaml_1_2() -> None:
    value = parse("{a: 1e-4, b: yes, c: 12, d: -.5, e: '3', f: ~, g: true, h: 0x10, i: 1.}").value
    assert value == {
        "a": 1e-4,
        "b": "yes",
        "c": 12,
        "d": -0.5,
        "e": "3",
        "f": None,
        "g": True,
        "h": "0x10",
        "i": 1.0,
    }
    assert isinstance(value["c"], int)


def test_changing_a_yaml_alias_does_not_change_its_anchor() -> None:
    value = parse("a: &x {k: 1}\nb: *x\n").value
    value["a"]["k"] = 2
    assert value["b"]["k"] == 1


def test_check_prints_the_plan_of_a_valid_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from system.__main__ import main

    manifest = tiny.make_world(tmp_path / "world", {"development": 16, "validation": 8})
    content = tiny.recipe(manifest, tmp_path)
    content["data"]["evaluation"]["manifest"] = "absent.jsonl"
    content["data"]["evaluation"]["make"] = "lbar data clotho somewhere --out absent.jsonl"
    assert main(["check", str(tiny.write_recipe(tmp_path / "r.yaml", content))]) == 1
    text = capsys.readouterr().out
    assert "\n  train " in text
    assert "16 clips, 80 captions" in text
    assert "MISSING  absent.jsonl: make the manifest with: lbar data clotho somewhere --out absent.jsonl" in text
    assert "6 updates of 8 clips, 2 captions per clip, 48 clips in total" in text


def test_check_reports_too_few_clips_for_batches_validation_and_ranking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from system.__main__ import main

    manifest = tiny.make_world(tmp_path / "world", {"development": 6, "validation": 1, "evaluation": 9})
    assert main(["check", str(tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path)))]) == 1
    text = capsys.readouterr().out
    assert "MISTAKE  stage only: batch_size 8 is more than the 6 items of the stage's data" in text
    assert "validation needs two clips with captions, but has 1; name other sources in monitor.data" in text
    assert "MISTAKE  rank evaluation: a ranked CSV needs 10 clips, but evaluation has 9" in text


def test_planned_parameters_match_the_model(tmp_path: Path) -> None:

    from system.plan.content import Content
    from system.plan.estimates import Estimates
    from system.runs.open import build_model

    recipe = load(tmp_path, valid(tmp_path)).recipe
    model = build_model(recipe, ["a", "dog", "barks"])
    own = tiny.make_world(tmp_path / "words", {"development": 1})
    clip = replace(read_manifest(own)[0], captions=["a dog barks"])
    planned = Estimates(recipe, {name: Content([clip] if name == "train" else []) for name in recipe.data})
    assert planned.parameters_by_part == model.parameters_by_part()


def test_expert_head_of_the_recipe_named_take_it_easy_has_the_published_parameter_count() -> None:
    """2 layers of width 256, ffn_dim 512, 1,024 positions: BART's encoder without the linear layers around it."""
    from system.networks.layers import SeriesEncoder

    encoder = SeriesEncoder(256, 2, 4, 512, 1024, 0.1)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 1_317_376


def test_incompatible_encoders_are_reported_with_line_and_key(tmp_path: Path) -> None:
    content = valid(tmp_path)
    frozen = content["model"]["audio"]["experts"]
    content["model"]["audio"] = {"kind": "gru", "experts": frozen, "width": 4, "hidden": 7, "dropout": 0}
    content["model"]["audio"]["embedding"] = "frames"
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    lines = path.read_text().splitlines()
    hidden, embedding = (lines.index(f"    {line}") + 1 for line in ("hidden: 7", "embedding: frames"))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert caught.value.problems == [
        f"{path}:{hidden}: model.audio.hidden: the GRU returns 2 x 7 values, but text embeddings have 32; "
        "set hidden to 16",
        f"{path}:{embedding}: model.audio.embedding: score cosine needs one embedding, not frames; set embedding: mean",
    ]
    with pytest.raises(RecipeError, match="multiple"):
        load(tmp_path, valid(tmp_path), ["model.text.heads=5"])


def test_set_option_accepts_json_values(tmp_path: Path) -> None:
    loaded = load(tmp_path, valid(tmp_path), ['stages.only.losses=[{"kind": "matching", "weight": 2}]'])
    assert [loss.kind for loss in loaded.recipe.stages["only"].losses] == ["matching"]
    assert json.loads(loaded.resolved())["stages"]["only"]["losses"][0]["weight"] == 2


@pytest.mark.parametrize("name", ["scores", "submission", "figures"])
def test_training_stage_named_like_a_folder_of_a_run_is_refused(tmp_path: Path, name: str) -> None:
    content = valid(tmp_path) | {"stages": {name: tiny.stage()}, "rank": {}}
    with pytest.raises(RecipeError, match=f"stages.{name}: every run already has a folder named {name}"):
        load(tmp_path, content)


def test_margin_factors_may_be_equal_but_may_not_increase_with_the_percentile(tmp_path: Path) -> None:
    content = valid(tmp_path)
    content["stages"]["only"]["losses"] = tiny.RELAXED
    load(tmp_path, content | {"relevance": tiny.relevance({60: 0.7, 80: 0.7, 95: 0.4})})
    for points in ({60: 0.4, 80: 0.7}, {80: 1.0, 60: 0.7}, {80: 1.0}):
        settings = tiny.relevance(points)
        settings["relax"] += settings["relax"][-1:] if len(points) == 1 else []
        with pytest.raises(RecipeError, match="higher"):
            load(tmp_path, content | {"relevance": settings})


def test_crnn_with_fewer_than_64_bands_is_refused(tmp_path: Path) -> None:
    slaney = {"kind": "logmel_slaney", "sample_rate": 44_100, "window_seconds": 0.04, "hop_seconds": 0.02}
    slaney |= {"lowest": 0.0, "highest": 22_050.0}
    for bands, fine in ((48, False), (63, False), (64, True)):
        content = valid(tmp_path)
        crnn = {"kind": "crnn", "hidden": 16, "dropout": 0.1, "embedding": "mean", "padding": "masked"}
        content["model"]["audio"] = crnn | {"experts": {"logmel": slaney | {"bands": bands}}}
        if fine:
            load(tmp_path, content)
            continue
        with pytest.raises(RecipeError, match=f"logmel.bands: crnn needs at least 64 mel bands, not {bands}"):
            load(tmp_path, content)


@pytest.mark.parametrize("part", ["train", "monitor"])
def test_data_source_named_twice_in_a_recipe_is_refused(tmp_path: Path, part: str) -> None:
    content = valid(tmp_path)
    content["stages"]["only"][part]["data"] *= 2
    with pytest.raises(RecipeError, match=f"stages.only.{part}.data.1: .* occurs twice; name it once"):
        load(tmp_path, content)


@pytest.mark.parametrize("split", ["evaluation", "test", "blind"])
def test_training_on_a_test_split_is_refused(tmp_path: Path, split: str) -> None:
    with pytest.raises(RecipeError, match=rf"'train' is a test split \({split}\); train on another split"):
        load(tmp_path, valid(tmp_path), [f"data.train.split={split}"])


def test_stage_starts_only_from_an_existing_checkpoint_of_an_earlier_stage(tmp_path: Path) -> None:
    def content(stage: str, checkpoint: str, metrics: list[str]) -> dict[str, Any]:
        start = {"kind": "stage", "stage": stage, "checkpoint": checkpoint}
        first, last = tiny.stage(), tiny.stage()
        first["monitor"] = first["monitor"] | {"metrics": metrics}
        return valid(tmp_path) | {"stages": {"a": first, "b": tiny.stage(start_from=start), "c": last}, "rank": {}}

    load(tmp_path, content("a", "m1", ["m1"]))
    load(tmp_path, content("a", "last", ["m1"]))
    for stage in ("c", "b"):
        with pytest.raises(RecipeError, match=f"no earlier stage '{stage}'; its earlier stages: a"):
            load(tmp_path, content(stage, "last", ["m1"]))
    with pytest.raises(RecipeError, match="stage 'a' does not monitor 'loss'"):
        load(tmp_path, content("a", "loss", ["m1"]))


def test_unknown_kind_is_reported_with_known_kinds(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"model.score: unknown kind 'cosin'; did you mean cosine\? kinds: cosine, "):
        load(tmp_path, valid(tmp_path), ["model.score.kind=cosin"])


def test_plan_says_if_the_vocabulary_size_is_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from system.__main__ import main

    manifest = tiny.make_world(tmp_path / "world", {"development": 8, "validation": 4, "evaluation": 4})
    content = tiny.recipe(manifest, tmp_path)
    main(["check", str(tiny.write_recipe(tmp_path / "there.yaml", content))])
    assert "words assumed" not in capsys.readouterr().out
    for source in content["data"].values():
        source["manifest"] = str(tmp_path / "gone.jsonl")
    main(["check", str(tiny.write_recipe(tmp_path / "gone.yaml", content))])
    assert "(4,000 words assumed, since the captions are missing)" in capsys.readouterr().out


MODERN = [
    path for path in SHIPPED if path.parent.name in ("dcase2025_baseline", "salsa2024", "aistat2025", "zero_shot")
]


QUICK = ("zero_shot/clap", "zero_shot/pe_av", "zero_shot/m2d_clap")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if f"{path.parent.name}/{path.stem}" in QUICK else pytest.mark.slow)
        for path in MODERN
    ],
    ids=lambda path: f"{path.parent.name}_{path.stem}",
)
def test_check_on_an_empty_machine_lists_files_and_addresses(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert main(["check", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    missing = [line for line in lines if line.startswith("  MISSING")]
    assert len(missing) >= 3
    known = ("published at ", "make the manifest with: ", "lbar download", "no trained model is in")
    assert [line for line in missing if not any(said in line for said in known)] == []
    recipe = load_recipe(path).recipe
    named = getattr(recipe.model.audio, "weights", None)
    places = ("https://", "Google Drive, id ")
    assert named is None or any(named in line and any(place in line for place in places) for line in missing)
    assert any("text model " in line for line in missing)
    whole = "\n".join(lines)
    assert len(re.findall(" memory  +[0-9]", whole)) == whole.count(" TFLOP, ") == len(recipe.stages)
    assert not recipe.stages or re.search("  total +about ", whole)
    assert not recipe.stages or ("RTX 3090 " in whole and "GiB on a GPU in fp16" in whole)


@pytest.mark.slow
def test_plan_of_2025_baseline_matches_published_sizes() -> None:
    """Parameters equal those of the authors' code; operations and memory of a step are worked out from the layers."""
    recipe = load_recipe(next(path for path in MODERN if path.parent.name == "dcase2025_baseline")).recipe
    estimates = Estimates(recipe, find_data(recipe))
    assert sum(estimates.parameters_by_part.values()) == 441_457_408
    stage = recipe.stages["train"]
    assert estimates.step_flops(stage) == pytest.approx(33e12, rel=0.1)
    # Weights, gradients and two moments have 4 bytes, copies of weights 2. A place of a block keeps inputs of two norms
    # in float32; in 16 bits those of four linear layers and of GELU, the last two four times as wide, and of attention.
    weights = 441_457_408 * (4 * 4 + 2)
    value = 2 * 4 + 2 * (1 + 1 + 1 + 4 + 4 + 3)
    passt = 64 * 3 * 12 * (2 + 6 * 47) * 768 * value
    roberta = 64 * 16 * 24 * 1024 * value
    assert estimates.memory(stage, "fp16") == pytest.approx(weights + passt + roberta, rel=0.15)
