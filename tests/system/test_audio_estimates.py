"""Estimates of `check` for encoders of all kinds: compared with the models and with hand values."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from plans import fact, plan

from system.models.audio import Crnn, Gru, Panns, PooledMlp
from system.models.costs import count_parameters, measure_cost, skip_weight_init
from system.models.text import FirstToken, SentenceTransformers, WordVectors
from system.plan.content import Content
from system.plan.estimates import Estimates
from system.recipe import schema
from system.recipe.load import RecipeError, load_recipe

PANNS = tiny.panns(weights="data/weights/ResNet38_mAP=0.434.pth", hidden=2048)
FROZEN = {"cnn": {"kind": "panns_cnn14_16k", "weights": "a"}}
LOGMEL = {"kind": "logmel_slaney", "sample_rate": 44_100, "bands": 128, "window_seconds": 0.04, "hop_seconds": 0.02}
AUDIO: list[tuple[dict[str, Any], int]] = [
    (PANNS, 1024),
    (PANNS | {"network": "cnn14"}, 1024),
    (PANNS | {"trainable": False}, 1024),
    ({"kind": "pooled_mlp", "experts": FROZEN, "pooling": "mean", "hidden": 99, "dropout": 0.1}, 300),
    (
        {
            "kind": "crnn",
            "experts": {"logmel": LOGMEL | {"lowest": 12, "highest": 8_000}},
            "hidden": 150,
            "dropout": 0.3,
            "embedding": "frames",
            "padding": "counted",
        },
        300,
    ),
    ({"kind": "gru", "experts": FROZEN, "width": 70, "hidden": 150, "dropout": 0.1, "embedding": "mean"}, 300),
]
BERT = 108_891_648  # parameters of bert-base-uncased without its pooler
BERT_BASE = {
    "kind": "first_token",
    "model": "bert-base-uncased",
    "trainable": True,
    "removed": ",",
    "dropout": 0.2,
    "hidden": 2048,
    "dim": 1024,
}


def audio_settings(content: dict[str, Any]) -> Any:
    kinds = {"panns": Panns, "pooled_mlp": PooledMlp, "crnn": Crnn, "gru": Gru}
    return kinds[content["kind"]].model_validate(content)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("content", "out"), AUDIO)
def test_trained_model_parts_in_the_settings_match_those_of_the_built_encoder(
    content: dict[str, Any], out: int
) -> None:
    settings = audio_settings(content)
    with skip_weight_init():
        encoder = settings.build_without_files(out)
    counted = {name: count_parameters(part, trainable=True) > 0 for name, part in encoder.parts().items()}
    assert settings.trained_parts == counted


@pytest.mark.slow
def test_estimated_passt_cost_matches_hand_values() -> None:
    costs = {}
    for name, changes in {"whole": {}, "frozen": {"trainable": False}}.items():
        settings = audio_settings(PANNS | changes)
        with skip_weight_init():
            encoder = settings.build_without_files(1024).train()
        costs[name] = [settings.cost(encoder, 3.0, seconds, half=False) for seconds in (20.0, 5.0)]
    # 10 of 20 seconds: 1,000 columns of 64 bands. The two largest outputs are the first ones, of 64 channels. The
    # backward pass begins at the smallest ones, when all others are kept.
    (whole, shorter), (frozen, _) = costs["whole"], costs["frozen"]
    first = 4 * 64 * 1000 * 64
    assert whole.kept > 4 * first > frozen.kept
    assert whole.kept < whole.peak < 1.1 * whole.kept
    assert whole.flops == pytest.approx(142e9, rel=0.05)  # 23.6e9 multiplications of ten seconds, by six
    assert whole.flops == pytest.approx(3 * frozen.flops, rel=0.05)
    assert shorter.kept == pytest.approx(whole.kept / 2, rel=0.02)
    settings = audio_settings(AUDIO[-1][0])
    with skip_weight_init():
        encoder = settings.build_without_files(300).train()
    positions = 16 * 3.125  # a linear layer, then both directions of three gates
    gru = 6 * 2 * 3 * 150 * (70 + 150)
    expected = positions * (6 * 2048 * 70 + gru)
    assert settings.cost(encoder, 16.0, 16.0, half=False).flops == pytest.approx(expected, rel=0.03)


def text_parameters(settings: FirstToken | SentenceTransformers | WordVectors) -> tuple[int, int]:
    """Trainable, and frozen."""
    network, _ = settings.network_for_costs([])
    return count_parameters(network, trainable=True), count_parameters(network, trainable=False)


def first_token(**changes: Any) -> FirstToken:
    return FirstToken.model_validate(BERT_BASE | changes)


def test_estimated_text_parameters_match_hand_values(tmp_path: Path) -> None:
    mlp = 769 * 2048 + 2049 * 1024
    assert text_parameters(first_token()) == (BERT + mlp, 0) == (112_564_736, 0)
    assert text_parameters(first_token(trainable=False)) == (mlp, BERT)
    network, run = first_token(trainable=False).network_for_costs([])
    assert measure_cost(network, run, half=False).flops == 4 * 768 * 2048 + 6 * 2048 * 1024
    words = {"kind": "word_vectors", "vectors": "v.bin", "dim": 300, "unknown": "one", "embedding": "words"}
    vectors = WordVectors.model_validate(words | {"padding": "masked"})
    assert text_parameters(vectors) == (0, 0)
    assert measure_cost(*vectors.network_for_costs([]), half=False).flops == 0
    sentence = {"kind": "sentence_transformers", "dim": 384, "trainable": False, "projection": "linear"}
    known, unknown = (SentenceTransformers.model_validate(sentence | {"model": m}) for m in ("all-MiniLM-L6-v2", "x"))
    assert text_parameters(known) == (385 * 384, 22_713_216)
    assert text_parameters(unknown) == (385 * 384, 0)


def test_estimated_parameters_match_a_real_transformer(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    model = BertModel(config, add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    found, _ = text_parameters(first_token(model=str(tmp_path), hidden=None, dim=8))
    assert found == sum(p.numel() for p in model.parameters()) + 17 * 8


def content_of(folder: Path, audio: dict[str, Any], text: dict[str, Any], **stage: Any) -> dict[str, Any]:
    settings = tiny.stage(unit="pair", captions_per_clip=None, batch_size=32) | stage
    content = tiny.recipe(folder / "m.jsonl", folder, only=settings)
    content["model"] |= {"audio": audio, "text": text}
    for source in content["data"].values():
        source["expected"] = {"clips": 100, "captions": 500, "hours": 100 * 10 / 3600}
    return content


def made(folder: Path, audio: dict[str, Any], text: dict[str, Any], **stage: Any) -> schema.Recipe:
    return load_recipe(tiny.write_recipe(folder / "r.yaml", content_of(folder, audio, text, **stage))).recipe


@pytest.mark.slow
def test_plan_reports_missing_files_of_the_panns_bert_model(tmp_path: Path) -> None:
    weights = tmp_path / "ResNet38_mAP=0.434.pth"
    recipe = made(tmp_path, PANNS | {"weights": str(weights)}, BERT_BASE)
    text = plan(recipe, gpu_bytes=8 * 2**30)
    published = "published at https://zenodo.org/record/3987831/files/ResNet38_mAP%3D0.434.pth"
    assert fact(text, "audio") == f"resnet38, trained, from {weights}"
    assert f"MISSING  {weights}: {published}" in text
    output, model = recipe.model.missing_files()  # before anything is made
    assert "text model bert-base-uncased: not a folder, not in the cache" in model
    address = published.removeprefix("published at ")
    assert output == (
        f"panns: the weight file {weights} is missing; download it to this path from {address}, or change the setting "
        "with --set model.audio.weights=..."
    )
    assert "MISSING" in text
    parameters = "network 68,507,072, mlp 6,294,528, text 112,564,736; 187,366,336 trainable in total"
    assert fact(text, "parameters") == parameters
    assert text.endswith("\n3 MISSING, 1 WARNING")
    assert (
        "batch_size 32 does not fit into the GPU's 8.0 GiB of memory: lower batch_size" in text
    )  # batch norms see the whole batch
    assert "batch_size 32 does not fit into the GPU's 10.0 GiB of memory: set precision to bf16" in plan(
        recipe, gpu_bytes=10 * 2**30
    )
    weights.write_bytes(b"there")
    assert f"MISSING  {weights}" not in plan(recipe)
    still = made(tmp_path, PANNS | {"weights": str(weights), "trainable": False}, BERT_BASE | {"trainable": False})
    assert fact(plan(still), "audio") == f"resnet38, frozen, from {weights}"
    scratch = made(tmp_path, PANNS | {"weights": None}, BERT_BASE)
    assert fact(plan(scratch), "audio") == "resnet38, trained, from scratch"
    with pytest.raises(RecipeError, match="without"):
        made(tmp_path, PANNS | {"weights": None, "trainable": False}, BERT_BASE)


@pytest.mark.slow
def test_memory_estimate_includes_trained_and_frozen_model_parts(tmp_path: Path) -> None:
    recipe = made(tmp_path, PANNS, BERT_BASE)
    stage = recipe.stages["only"]
    found = {name: Content([], source.expected) for name, source in recipe.data.items()}
    estimates = Estimates(recipe, found)
    load = estimates.load(stage)
    assert load.longest == 20
    waves = 32 * 10 * 32_000 * 2  # cut to max_seconds
    costs = estimates.audio_cost(load), estimates.text_cost()
    peak = 32 * costs[0].peak + load.captions * costs[1].peak
    assert estimates.memory(stage, "float32") == pytest.approx(16 * 187_366_336 + waves + peak)
    still = made(tmp_path, PANNS | {"weights": "w.pth", "trainable": False}, BERT_BASE | {"trainable": False})
    held = Estimates(still, found)
    trained = 6_294_528 + 769 * 2048 + 2049 * 1024
    costs = held.audio_cost(load), held.text_cost()
    peak = 32 * costs[0].peak + load.captions * costs[1].peak
    expected = 16 * trained + 4 * (68_507_072 + BERT) + waves + peak
    assert held.memory(still.stages["only"], "float32") == pytest.approx(expected)
    assert held.step_flops(stage) < estimates.step_flops(stage) / 2.5
    assert estimates.bytes_of_frames(stage) == pytest.approx(100 * 10 * 32_000 * 2)


def test_missing_word_vectors_are_reported_in_the_plan(tmp_path: Path) -> None:
    words = {"kind": "word_vectors", "vectors": str(tmp_path / "v.bin"), "dim": 300, "unknown": "one"}
    crnn = AUDIO[4][0]
    content = content_of(tmp_path, crnn, words | {"embedding": "words", "padding": "masked"})
    content["model"]["score"] = {"kind": "frame_word", "reduce": "mean"}
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe
    assert f"MISSING  {tmp_path}/v.bin: published at" in plan(recipe)
    assert "128-d, 50.00 frames/s at 44100 Hz, 0.07 GiB" in fact(plan(recipe), "logmel"), "of float32"
    (tmp_path / "v.bin").write_bytes(b"there")
    assert "v.bin: published at" not in plan(recipe)


def test_check_of_a_wrong_recipe_imports_no_torch(root: Path, tmp_path: Path) -> None:
    content = content_of(tmp_path, PANNS | {"hidden": 0}, BERT_BASE)
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    code = (
        "import sys; from system.__main__ import main; "
        f"assert main(['check', {str(path)!r}]) == 1; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)


def test_plan_without_torch_shows_all_but_parameters_memory_and_time(root: Path, tmp_path: Path) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", content_of(tmp_path, PANNS, BERT_BASE))
    code = f"import sys; sys.modules['torch'] = None; from system.__main__ import main; main(['check', {str(path)!r}])"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert "the numbers, and the memory and time of a step, are unknown: the package torch" in done.stdout
    assert "\n  only  " in done.stdout
    assert "  memory: about" not in done.stdout
