"""Low-rank adapters and the moving average of weights: training, resumption, ranked and exported weights, the plan."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import augmented
import numpy as np
import pytest
import tiny
import torch
from hub_models import hub_folder, tokenizer
from outcomes import digest, refused
from plans import fact, plan
from safetensors.numpy import load_file
from threads import one_thread  # noqa: F401  a fixture
from torch import nn

from data_tools.manifest import read_manifest
from system.__main__ import main
from system.experiments.summary import parameters_of
from system.models.low_rank import adapted_layers, count_adapter_parameters
from system.plan.content import Content
from system.plan.estimates import Estimates
from system.recipe.load import load_recipe
from system.recipe.tuning import Lora
from system.runs.open import build_model, open_trained
from system.training.average import WeightAverage
from system.training.lora import Adapters

pytestmark = pytest.mark.usefixtures("one_thread")

LORA = {"networks": ["text"], "rank": 2, "alpha": 4, "layers": ["query", "value"]}
AVERAGE = {"average": {"decay": 0.9}}
TOGETHER = {"lora": LORA, **AVERAGE}


def bert(folder: Path) -> Path:
    """A BERT of random weights with a tokenizer."""
    import transformers as hf

    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    hf.BertModel(hf.BertConfig(**sizes, vocab_size=300, max_position_embeddings=64)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of tones, next to a text model. Returns: The manifest."""
    folder = tmp_path_factory.mktemp("world")
    bert(folder / "bert")
    return tiny.make_world(folder / "world", {"development": 16, "validation": 8, "evaluation": 12})


def recipe(world: Path, folder: Path, **stage: Any) -> Path:
    """A recipe that trains the text model. stage: Changes of its stage."""
    folder.mkdir(exist_ok=True)
    content = tiny.recipe(world, folder, only=tiny.stage(epochs=2, steps_per_epoch=3, **stage))
    dim = content["model"]["text"]["dim"]
    content["model"]["text"] = {"kind": "mean_tokens", "model": str(world.parent.parent / "bert"), "trainable": True}
    content["model"]["text"] |= {"removed": "", "dropout": None, "hidden": None, "dim": dim}
    return tiny.write_recipe(folder / "recipe.yaml", content)


def trained(path: Path, run: Path) -> dict[str, np.ndarray]:
    """Train a recipe. Returns: The weights of its last checkpoint."""
    assert main(["train", str(path), "--out", str(run)]) == 0
    state = torch.load(run / "only/last.pt", weights_only=True)
    return {name: value.numpy() for name, value in state["model"].items()}


def test_moving_average_of_weights_matches_hand_values() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 0.0)
    average = WeightAverage(layer, 0.5)
    expected = 0.0
    for number, weight in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]):
        nn.init.constant_(layer.weight, weight)
        average.update(number)
        decay = min(0.5, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * weight
    assert decay == 0.5
    with average.use_average():
        assert layer.weight.item() == pytest.approx(expected)
    assert layer.weight.item() == 512.0


def test_moving_average_of_weights_includes_statistics_of_batch_norms() -> None:
    norm = nn.BatchNorm1d(2)
    average = WeightAverage(norm, 0.9)
    norm(torch.randn(64, 2) * 3 + 5)
    after = norm.running_mean.clone()  # type: ignore[union-attr]
    average.update(0)
    with average.use_average():
        assert torch.allclose(norm.running_mean, 0.9 * after)  # type: ignore[arg-type]
        assert norm.num_batches_tracked == 1
    assert torch.equal(norm.running_mean, after)  # type: ignore[arg-type]


def test_averaged_weights_are_validated_ranked_and_exported(world: Path, tmp_path: Path) -> None:
    plain = trained(recipe(world, tmp_path / "plain"), tmp_path / "one")
    path = recipe(world, tmp_path / "averaged", average={"decay": 0.9})
    averaged = trained(path, tmp_path / "two")
    state = torch.load(tmp_path / "two/only/last.pt", weights_only=True)
    assert all(np.array_equal(plain[name], value.numpy()) for name, value in state["training"].items())
    assert any(not np.array_equal(plain[name], averaged[name]) for name in plain)
    best = load_file(tmp_path / "two/only/e0002.safetensors")
    assert all(np.array_equal(best[name], averaged[name]) for name in best)
    lines = [json.loads(line) for line in (tmp_path / "two/metrics.jsonl").read_text().splitlines()]
    others = [json.loads(line) for line in (tmp_path / "one/metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [line["loss"] for line in others], "the same updates"
    assert lines[-1]["validation"] != others[-1]["validation"]
    opened = open_trained(tmp_path / "two", "only", "last").model.state_dict()
    assert all(np.array_equal(opened[name].numpy(), averaged[name]) for name in averaged)


@pytest.mark.parametrize("stop", [4, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "settings", [{"average": {"decay": 0.9}}, {"lora": LORA}, {"lora": LORA, "average": {"decay": 0.9}}]
)
def test_killed_and_resumed_stage_with_adapters_or_average_matches_an_uninterrupted_one(
    world: Path, tmp_path: Path, settings: dict[str, Any], stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recipe(world, tmp_path / "recipe", **settings)
    trained(path, tmp_path / "run")
    augmented.killed_and_resumed(path, tmp_path / "again", stop, monkeypatch)
    assert digest(tmp_path / "again") == digest(tmp_path / "run")


def test_lora_adapters_train_only_low_rank_matrices_and_are_added_to_the_weights(world: Path, tmp_path: Path) -> None:
    start = trained(recipe(world, tmp_path / "zero", lora=LORA | {"alpha": 1e-30}), tmp_path / "zero_run")
    path = recipe(world, tmp_path / "lora", lora=LORA)
    found = trained(path, tmp_path / "run")
    published = load_file(world.parent.parent / "bert/model.safetensors")
    changed = []
    for name, value in found.items():
        inner = name.removeprefix("text.trained.")
        if inner != name and not np.array_equal(value, published[inner]):
            changed.append(inner)
            assert np.linalg.matrix_rank(value - published[inner], tol=1e-6) <= 2
    assert len(changed) == 4
    assert all(name.endswith(("query.weight", "value.weight")) for name in changed)
    assert not np.array_equal(found["text.mlp.weight"], start["text.mlp.weight"]), "other layers are trained too"
    state = torch.load(tmp_path / "run/only/last.pt", weights_only=True)
    moments = [one for entry in state["optimizer"]["state"].values() for one in entry.values()]
    in_adapters = sum(value.numel() for name, value in state["training"].items() if ".lora_" in name)
    outside = sum(v.size for name, v in found.items() if not name.startswith("text.trained."))
    assert sum(one.numel() for one in moments if one.numel() > 1) <= 2 * (in_adapters + outside)
    model = open_trained(tmp_path / "run", "only", "last").model
    assert all(np.array_equal(model.state_dict()[name].numpy(), found[name]) for name in found)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "exported")]) == 0
    exported = load_file(tmp_path / "exported/model.safetensors")
    assert set(exported) == set(found)


def with_audio(
    world: Path, folder: Path, model: str, kind: str, layers: Sequence[str] | None = ("q_proj", "v_proj")
) -> Path:
    """A recipe with adapters of an audio network of the hub."""
    import yaml

    path = recipe(world, folder, lora=LORA | {"networks": ["audio"], "layers": layers and list(layers)})
    content = yaml.safe_load(path.read_text())
    audio: dict[str, Any] = {"kind": "hugging_face", "model": str(hub_folder(model)), "type": kind}
    audio |= {"trainable": True, "segment_seconds": 2.0, "hop_seconds": 2.0, "max_seconds": 30, "hidden": None}
    content["model"]["audio"] = audio | {"segment_pooling": "mean"}
    return tiny.write_recipe(path, content)


def test_lora_adapters_of_the_audio_network_train_only_low_rank_matrices(world: Path, tmp_path: Path) -> None:
    path = with_audio(world, tmp_path / "recipe", "wav2vec2_normed", "wav2vec2")
    found = trained(path, tmp_path / "run")
    published = load_file(hub_folder("wav2vec2_normed") / "model.safetensors")
    changed = []
    for name, value in found.items():
        inner = name.removeprefix("audio.network.model.")
        if inner in published and not np.array_equal(value, published[inner]):
            changed.append(inner)
            assert np.linalg.matrix_rank(value - published[inner], tol=1e-6) <= 2
    assert changed
    assert all(name.endswith(("q_proj.weight", "v_proj.weight")) for name in changed)


def test_lora_adapters_of_layers_that_the_network_never_calls_are_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """WavLM of transformers reads the weights of the layers of its attention itself."""
    path = with_audio(world, tmp_path / "recipe", "wavlm", "wavlm")
    text = refused(capsys, "train", path, "--out", tmp_path / "run")
    assert (
        "the network never calls its layers q_proj, v_proj, so their adapters have no effect; set lora.layers" in text
    )
    trained(with_audio(world, tmp_path / "all", "wavlm", "wavlm", None), tmp_path / "other")
    assert "the network never calls its layers k_proj, out_proj, q_proj, v_proj, so their adapters" in caplog.text


def test_networks_with_adapters_in_all_stages_count_as_frozen(world: Path, tmp_path: Path) -> None:
    loaded = load_recipe(recipe(world, tmp_path / "lora", lora=LORA)).recipe
    model = build_model(loaded, [])
    weights = load_file(world.parent.parent / "bert/model.safetensors")
    published = sum(value.size for name, value in weights.items() if not name.startswith("pooler."))
    counted = parameters_of(loaded, model)
    assert counted.frozen["text"] == published
    assert counted.trained["text adapters"] == 4 * 2 * (16 + 16), "4 layers from 16 to 16 values, rank 2"
    assert counted.trained["text"] == sum(p.numel() for p in model.text.mlp.parameters())  # type: ignore[union-attr]
    whole = loaded.stages["only"].model_copy(update={"lora": None})
    plain = parameters_of(loaded.model_copy(update={"stages": loaded.stages | {"whole": whole}}), model)
    assert plain.trained["text"] == counted.trained["text"] + published
    assert plain.total == counted.total == sum(plain.trained.values()) + sum(plain.frozen.values())


def test_output_with_adapters_equals_that_of_the_summed_weights(world: Path, tmp_path: Path) -> None:
    loaded = load_recipe(recipe(world, tmp_path / "lora")).recipe
    plain, adapted = (build_model(loaded, []).eval() for _ in range(2))
    adapters = Adapters(adapted, Lora.model_validate(LORA), 7)
    texts = ["a low tone", "a high tone, then a deep tone"]
    plain.load_state_dict(adapters.merge_adapters(adapted.state_dict()))
    with torch.no_grad():
        before = plain.text(texts).values
        assert torch.allclose(adapted.text(texts).values, before, atol=1e-6), "the product is zero at first"
        for name, value in adapted.named_parameters():
            if ".lora_" in name:
                nn.init.normal_(value)
        plain.load_state_dict(adapters.merge_adapters(adapted.state_dict()))
        assert torch.allclose(plain.text(texts).values, adapted.text(texts).values, atol=1e-5)
        assert not torch.allclose(plain.text(texts).values, before, atol=1e-2)
        names = [name for name, value in adapted.named_parameters() if value.requires_grad]
        assert not any(name.startswith("text.trained.") and ".lora_" not in name for name in names)
        adapters.remove()
        assert set(adapted.state_dict()) == set(plain.state_dict())
        assert torch.allclose(adapted.text(texts).values, before, atol=1e-6), "without the adapters"
    assert all(value.requires_grad for value in adapted.parameters())


def test_checkpoint_of_averaged_adapters_has_their_average(world: Path, tmp_path: Path) -> None:
    found = trained(recipe(world, tmp_path / "recipe", **TOGETHER), tmp_path / "run")
    state = torch.load(tmp_path / "run/only/last.pt", weights_only=True)
    average, checked = state["average"], 0
    for name in found:
        base = name.removesuffix(".weight") + ".base_layer.weight"
        if base in average:
            ends = (f"{name.removesuffix('.weight')}.lora_{letter}.kit.weight" for letter in "BA")
            thin = [average[end] for end in ends]
            assert np.allclose(found[name], average[base] + 2 * thin[0] @ thin[1], atol=1e-7), name
            checked += 1
    assert checked == 4
    assert np.allclose(found["text.mlp.weight"], average["text.mlp.weight"])


def test_stage_after_adapters_trains_all_layers_again(world: Path, tmp_path: Path) -> None:
    content = load_recipe(recipe(world, tmp_path / "base", lora=LORA)).recipe.model_dump(mode="json")
    second = {"start_from": {"kind": "stage", "stage": "only", "checkpoint": "last"}, "lora": None}
    content["stages"]["second"] = content["stages"]["only"] | second
    path = tiny.write_recipe(tmp_path / "two.yaml", content)
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    states = [torch.load(tmp_path / f"run/{one}/last.pt", weights_only=True)["model"] for one in ("only", "second")]
    name = "text.trained.embeddings.word_embeddings.weight"
    assert not torch.equal(states[0][name], states[1][name])
    assert set(states[0]) == set(states[1])


def test_adapter_layers_are_chosen_by_the_ends_of_their_names() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 5)))
    assert list(adapted_layers(network, None)) == ["0", "2.0"]
    assert count_adapter_parameters(network, 2, None) == 2 * (3 + 4) + 2 * (4 + 5)
    assert list(adapted_layers(network, ["2.0"])) == ["2.0"]


def test_incompatible_adapter_settings_are_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recipe(world, tmp_path / "audio", lora=LORA | {"networks": ["text", "audio"]})
    assert "published" in refused(capsys, "train", path, "--out", tmp_path / "a")
    path = recipe(world, tmp_path / "layers", lora=LORA | {"layers": ["q_proj"]})
    text = refused(capsys, "train", path, "--out", tmp_path / "b")
    assert "lora.layers q_proj: no linear layer of the network has such a name; name some of its linear layers:" in text
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    path = recipe(world, tmp_path / "peft", lora=LORA)
    assert "package" in refused(capsys, "train", path, "--out", tmp_path / "c")


@pytest.mark.parametrize(
    "settings",
    [TOGETHER, *(pytest.param(one, marks=pytest.mark.slow) for one in ({}, {"lora": LORA}, AVERAGE))],
    ids=str,
)
def test_planned_size_of_the_last_checkpoint_is_that_of_the_file(
    world: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    path = recipe(world, tmp_path / "recipe", **settings)
    loaded = load_recipe(path).recipe
    contents = {name: Content(read_manifest(source.manifest)) for name, source in loaded.data.items()}
    estimates, stage = Estimates(loaded, contents), loaded.stages["only"]
    trained(path, tmp_path / "run")
    state = torch.load(tmp_path / "run/only/last.pt", weights_only=True)
    tensors = [state["model"], state["training"] or {}, state["average"] or {}]
    found = sum(value.nbytes for part in tensors for value in part.values() if value.is_floating_point())
    moments = [value for one in state["optimizer"]["state"].values() for value in one.values() if value.numel() > 1]
    found += sum(value.nbytes for value in moments)
    assert found == pytest.approx(estimates.state_bytes(stage), rel=0.02)
    assert sum(value.numel() for value in moments) == pytest.approx(2 * estimates.count_trainable(stage), rel=0.01)
    text = plan(loaded)
    if "lora" in settings:
        assert (
            fact(text, "only lora")
            == "rank 2: adapters of 4 layers have 256 parameters; 9,808 parameters of the networks are frozen"
        )
    assert ("only last.pt" in text) == bool(settings)
    plain = stage.model_copy(update={"lora": None, "average": None})
    more = estimates.memory(stage, "float32") - estimates.memory(plain, "float32")
    tuned = estimates.tuned(stage.lora) if stage.lora else None
    saved = 4 * (4 * tuned.adapters - 3 * tuned.frozen) if tuned else 0
    assert more == saved + (4 * estimates.count_trainable(stage) if stage.average else 0)
