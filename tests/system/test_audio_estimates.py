"""What `check` says of the encoders of all kinds: against the models it speaks of, and worked by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from system.models.audio import Crnn, Gru, Panns, PooledMlp
from system.models.text import FirstToken, SentenceTransformers, WordVectors
from system.models.text.pretrained import BERT, MINILM
from system.networks.published import CONVOLUTIONS
from system.plan.estimates import Content, Estimates
from system.plan.plan import plan
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


@pytest.fixture(autouse=True)
def without_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no parameters, and cannot be made without its numbers."""
    monkeypatch.setattr("system.models.audio.panns_encoder.LogMelFrontEnd", torch.nn.Identity)


@pytest.mark.parametrize(("content", "out"), AUDIO)
def test_planned_parameters_are_the_encoders(content: dict[str, Any], out: int) -> None:
    settings = audio_settings(content)
    with torch.device("meta"):
        encoder = settings.build(out)
    size = settings.cost(out, 10.0, 20.0)
    counted = {
        name: sum(p.numel() for p in part.parameters() if p.requires_grad) for name, part in encoder.parts().items()
    }
    assert size.trainable == counted
    assert size.frozen == sum(p.numel() for p in encoder.parameters() if not p.requires_grad)
    assert size.flops > 0


@pytest.mark.parametrize("network", ["resnet38", "cnn14"])
def test_the_convolutions_are_counted_where_they_are(network: str) -> None:
    """Operations and outputs of every convolution as torch runs them, on ten seconds without a rest."""
    with torch.device("meta"):
        encoder = audio_settings(PANNS | {"network": network}).build(8)
        seen: list[tuple[int, int, int, int]] = []

        def note(module: torch.nn.Conv2d, _: object, output: torch.Tensor) -> None:
            positions = output.shape[2] * output.shape[3]
            seen.append((module.in_channels, module.out_channels, module.kernel_size[0], positions))

        for module in encoder.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.register_forward_hook(note)
        encoder.network(torch.empty(1, 1, 1024, 64))
    planned = [(c.inputs, c.outputs, c.size, 1024 * 64 // c.scale**2) for c in CONVOLUTIONS[network]]  # type: ignore[index]
    assert sorted(seen) == sorted(planned)


def test_sizes_by_hand() -> None:
    whole = audio_settings(PANNS).cost(1024, 3.0, 20.0)
    frozen = audio_settings(PANNS | {"trainable": False}).cost(1024, 3.0, 20.0)
    # 10 of 20 seconds: 1,000 columns of 64 bands. The two largest outputs are the first ones, of 64 channels.
    mlp = 2049 * 2048 + 2049 * 1024
    first = 2 * 64 * 1000 * 64
    assert whole.activations > 2 * first
    assert frozen.activations == 3 * first / 2
    assert whole.flops - 6 * mlp == pytest.approx(3 * (frozen.flops - 6 * mlp))
    assert whole.flops == pytest.approx(142e9 + 6 * mlp, rel=0.02)  # 23.6e9 multiplications of ten seconds, by six
    shorter = audio_settings(PANNS).cost(1024, 3.0, 5.0)
    assert shorter.activations == pytest.approx(whole.activations / 2)
    gru = audio_settings(AUDIO[-1][0]).cost(300, 3.0, 16.0)
    positions = 16 * 3.125
    assert gru.flops == pytest.approx(6 * positions * (2049 * 70 + 2 * 3 * 150 * (70 + 150 + 2)))


def first_token(**changes: Any) -> FirstToken:
    return FirstToken.model_validate(BERT_BASE | changes)


def test_sizes_of_texts(tmp_path: Path) -> None:
    mlp = 769 * 2048 + 2049 * 1024
    assert first_token().cost(0).trainable == {"text": BERT.parameters + mlp} == {"text": 112_564_736}
    still = first_token(trainable=False).cost(0)
    assert (still.trainable, still.activations, still.frozen) == ({"text": mlp}, 0.0, BERT.parameters)
    config = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config |= {"vocab_size": 30, "max_position_embeddings": 10, "type_vocab_size": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = 4 * 9 * 8 + 9 * 16 + 17 * 8 + 4 * 8
    assert first_token(model=str(tmp_path)).size().parameters == (30 + 10 + 2 + 2) * 8 + 2 * layer
    (tmp_path / "config.json").write_text("{}")
    assert first_token(model=str(tmp_path)).size() == BERT
    words = {"kind": "word_vectors", "vectors": "v.bin", "dim": 300, "unknown": "one", "embedding": "words"}
    size = WordVectors.model_validate(words | {"padding": "masked"}).cost(0)
    assert (size.trainable, size.flops) == ({"text": 0}, 0.0)
    sentence = SentenceTransformers(
        kind="sentence_transformers", model="x", dim=384, trainable=False, projection="linear"
    )
    assert sentence.cost(0).trainable == {"text": 385 * 384}
    assert sentence.cost(0).frozen == MINILM.parameters


def test_the_size_of_a_real_transformer(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    model = BertModel(config, add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    assert first_token(model=str(tmp_path)).size().parameters == sum(p.numel() for p in model.parameters())


def content_of(folder: Path, audio: dict[str, Any], text: dict[str, Any], **stage: Any) -> dict[str, Any]:
    settings = tiny.stage(unit="pair", captions_per_clip=None, batch_size=32) | stage
    content = tiny.recipe(folder / "m.jsonl", folder, only=settings)
    content["model"] |= {"audio": audio, "text": text}
    for source in content["data"].values():
        source["expected"] = {"clips": 100, "captions": 500, "hours": 100 * 10 / 3600}
    return content


def made(folder: Path, audio: dict[str, Any], text: dict[str, Any], **stage: Any) -> schema.Recipe:
    return load_recipe(tiny.write_recipe(folder / "r.yaml", content_of(folder, audio, text, **stage))).recipe


def test_the_plan_of_the_papers_model(tmp_path: Path) -> None:
    weights = tmp_path / "ResNet38_mAP=0.434.pth"
    recipe = made(tmp_path, PANNS | {"weights": str(weights)}, BERT_BASE)
    text = plan(recipe, gpu_bytes=8 * 2**30)
    published = "published at https://zenodo.org/record/3987831/files/ResNet38_mAP%3D0.434.pth"
    assert f"audio network resnet38: trained, from {weights} MISSING; {published}" in text
    output, model = recipe.model.missing_files()  # before anything is made
    assert "text model bert-base-uncased: it is no folder, nor in the cache" in model
    assert output == f"panns: no file {weights}; {published}; put it there, or --set model.audio.weights"
    assert "text model bert-base-uncased: MISSING: no such folder, nor in the hub's cache" in text
    assert "parameters: network 68,507,072, mlp 6,294,528, text 112,564,736; in all 187,366,336\n" in text
    assert "5 of these lines say MISSING" in text
    assert "batch_size 32 will not fit the GPU's 8.0 GiB: lower batch_size" in text  # batch norms see the whole batch
    weights.write_bytes(b"there")
    assert f"resnet38: trained, from {weights}\n" in plan(recipe)
    still = made(tmp_path, PANNS | {"weights": str(weights), "trainable": False}, BERT_BASE | {"trainable": False})
    assert f"audio network resnet38: frozen, from {weights}\n" in plan(still)
    assert "resnet38: trained, from scratch\n" in plan(made(tmp_path, PANNS | {"weights": None}, BERT_BASE))
    with pytest.raises(RecipeError, match="a network without published weights that is not trained says nothing"):
        made(tmp_path, PANNS | {"weights": None, "trainable": False}, BERT_BASE)


def test_memory_counts_what_is_trained_and_what_is_only_held(tmp_path: Path) -> None:
    recipe = made(tmp_path, PANNS, BERT_BASE)
    stage = recipe.stages["only"]
    found = {name: Content([], source.expected) for name, source in recipe.data.items()}
    estimates = Estimates(recipe, found)
    load = estimates.load(stage)
    assert load.longest == 20
    waves = 32 * 10 * 32_000 * 2  # cut to max_seconds
    activations = 32 * estimates.audio_cost(load).activations * 4 + load.captions * estimates.text_cost.activations * 4
    assert estimates.memory(stage, "float32") == pytest.approx(16 * 187_366_336 + waves + 2 * activations)
    still = made(tmp_path, PANNS | {"weights": "w.pth", "trainable": False}, BERT_BASE | {"trainable": False})
    held = Estimates(still, found)
    trained = 6_294_528 + 769 * 2048 + 2049 * 1024
    expected = (
        16 * trained + 4 * (68_507_072 + BERT.parameters) + waves + 2 * 32 * held.audio_cost(load).activations * 4
    )
    assert held.memory(still.stages["only"], "float32") == pytest.approx(expected)
    assert held.step_flops(stage) < estimates.step_flops(stage) / 2.5
    assert estimates.frame_bytes(stage) == pytest.approx(100 * 10 * 32_000 * 2)


def test_word_vectors_that_are_not_there_are_told(tmp_path: Path) -> None:
    words = {"kind": "word_vectors", "vectors": str(tmp_path / "v.bin"), "dim": 300, "unknown": "one"}
    crnn = AUDIO[4][0]
    content = content_of(tmp_path, crnn, words | {"embedding": "words", "padding": "masked"})
    content["model"]["score"] = {"kind": "frame_word", "reduce": "mean"}
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe
    assert f"text vectors {tmp_path}/v.bin: MISSING" in plan(recipe)
    assert "expert logmel: 128-d, 50.00 frames/s at 44100 Hz, 0.07 GiB" in plan(recipe), "of float32"
    (tmp_path / "v.bin").write_bytes(b"there")
    assert f"text vectors {tmp_path}/v.bin: a file that is there" in plan(recipe)


def test_the_plan_imports_no_torch(root: Path, tmp_path: Path) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", content_of(tmp_path, PANNS, BERT_BASE))
    code = (
        "import sys; from system.__main__ import main; "
        f"assert main(['check', {str(path)!r}]) == 1; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)
