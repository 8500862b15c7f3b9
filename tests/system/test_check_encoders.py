"""Facts of `check` for encoders of several kinds."""

import re
from pathlib import Path
from typing import Any

import pytest
import tiny
from plans import fact, plan

from data_tools.errors import KitError
from system.models.audio import Crnn, Gru, PooledMlp, Segments
from system.recipe import schema
from system.recipe.load import RecipeError, load_recipe

NETWORK = {"kind": "panns", "network": "resnet38", "weights": "data/weights/ResNet38_mAP=0.434.pth", "output": "clip"}
PANNS = {"kind": "segments", "network": NETWORK, "trainable": True, "max_seconds": 30, "hidden": 2048}
FROZEN = {"cnn": {"kind": "panns", "network": "cnn14_16k", "weights": "a"}}
LOGMEL = {"kind": "logmel_slaney", "sample_rate": 44_100, "bands": 128, "window_seconds": 0.04, "hop_seconds": 0.02}
AUDIO: list[tuple[dict[str, Any], int]] = [
    (PANNS, 1024),
    (PANNS | {"network": NETWORK | {"network": "cnn14"}}, 1024),
    (PANNS | {"trainable": False}, 1024),
    ({"kind": "pooled_mlp", "experts": FROZEN, "pooling": "mean", "hidden": 99, "dropout": 0.1}, 300),
    (
        {
            "kind": "crnn",
            "experts": {"logmel": LOGMEL | {"lowest": 12, "highest": 8_000}},
            "hidden": 150,
            "dropout": 0.3,
            "embedding": "frames",
        },
        300,
    ),
    ({"kind": "gru", "experts": FROZEN, "width": 70, "hidden": 150, "dropout": 0.1, "embedding": "mean"}, 300),
]


BERT_BASE = {"kind": "published", "pooling": "first", "model": "bert-base-uncased", "trainable": True}
BERT_BASE |= {"removed": ",", "dropout": 0.2, "hidden": 2048, "dim": 1024}


def panns(weights: str | None) -> dict[str, Any]:
    return PANNS | {"network": NETWORK | {"weights": weights}}


def audio_settings(content: dict[str, Any]) -> Any:
    kinds = {"segments": Segments, "pooled_mlp": PooledMlp, "crnn": Crnn, "gru": Gru}
    return kinds[content["kind"]].model_validate(content)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("content", "out"), AUDIO)
def test_trained_model_parts_in_the_settings_match_those_of_the_built_encoder(
    content: dict[str, Any], out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.narrowed(monkeypatch)
    settings = audio_settings(content)
    encoder = settings.build(out)
    counted = {
        name: sum(p.numel() for p in part.parameters() if p.requires_grad) > 0 for name, part in encoder.parts().items()
    }
    assert settings.trained_parts == counted


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
    recipe = made(tmp_path, panns(str(weights)), BERT_BASE)
    text = plan(recipe)
    published = "published at https://zenodo.org/record/3987831/files/ResNet38_mAP%3D0.434.pth"
    assert fact(text, "model audio") == f"panns, trained, from {weights}"
    assert f"MISSING {weights}: {published}" in text
    with pytest.raises(KitError, match=re.escape(f"model.audio: {weights}: is missing; {published}")):
        recipe.model.require_files()
    assert fact(text, "parameters").startswith("network 68,507,072, head 6,294,528, text unknown")
    weights.write_bytes(b"there")
    assert f"MISSING {weights}" not in plan(recipe)
    with pytest.raises(KitError, match="text model bert-base-uncased"):
        recipe.model.require_files()
    still = made(tmp_path, panns(str(weights)) | {"trainable": False}, BERT_BASE | {"trainable": False})
    assert fact(plan(still), "model audio") == f"panns, frozen, from {weights}"
    scratch = made(tmp_path, panns(None), BERT_BASE)
    assert fact(plan(scratch), "model audio") == "panns, trained, from scratch"
    with pytest.raises(RecipeError, match="trainable"):
        made(tmp_path, panns(None) | {"trainable": False}, BERT_BASE)


def test_missing_word_vectors_are_reported_in_the_plan(tmp_path: Path) -> None:
    words = {"kind": "word_vectors", "vectors": str(tmp_path / "v.bin"), "dim": 300}
    crnn = AUDIO[4][0]
    content = content_of(tmp_path, crnn, words | {"embedding": "words"})
    content["model"]["score"] = {"kind": "frame_word"}
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe
    assert f"MISSING {tmp_path}/v.bin: published at" in plan(recipe)
    assert "128-d, 50.00 frames/s at 44100 Hz, 76.8 MB" in fact(plan(recipe), "expert logmel"), "of float32"
    (tmp_path / "v.bin").write_bytes(b"there")
    assert "v.bin: published at" not in plan(recipe)
