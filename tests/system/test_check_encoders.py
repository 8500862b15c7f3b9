"""Facts of `check` for encoders of several kinds."""

from pathlib import Path
from typing import Any

import pytest
import tiny
from plans import fact, plan

from system.models.audio import Crnn, Gru, PooledMlp, Segments
from system.recipe import schema
from system.recipe.load import load_recipe

NETWORK = {"kind": "panns", "network": "cnn14", "weights": "data/weights/Cnn14_mAP=0.431.pth", "output": "clip"}
PANNS = {"kind": "segments", "network": NETWORK, "trainable": True, "max_seconds": 30, "hidden": 2048}
FROZEN = {"cnn": {"kind": "panns", "network": "cnn14_16k", "weights": "a"}}
LOGMEL = {"kind": "logmel_slaney", "sample_rate": 44_100, "bands": 128, "window_seconds": 0.04, "hop_seconds": 0.02}
AUDIO: list[tuple[dict[str, Any], int]] = [
    (PANNS, 1024),
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


def test_missing_word_vectors_are_reported_in_the_plan(tmp_path: Path) -> None:
    words = {"kind": "word_vectors", "vectors": str(tmp_path / "v.bin"), "dim": 300}
    crnn = AUDIO[3][0]
    content = content_of(tmp_path, crnn, words | {"embedding": "words"})
    content["model"]["score"] = {"kind": "frame_word"}
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe
    assert f"MISSING {tmp_path}/v.bin: published at" in plan(recipe)
    assert "128-d, 50.00 frames/s at 44100 Hz, 76.8 MB" in fact(plan(recipe), "expert logmel"), "of float32"
    (tmp_path / "v.bin").write_bytes(b"there")
    assert "v.bin: published at" not in plan(recipe)
