"""Hub models (AST, CLAP, Perception Encoder) against transformers and goldens of its 5.0.0; their download."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import filled
import numpy as np
import pytest
import tiny
import torch
import transformers
from errors_of import relative
from hub_models import hub_folder, pe_oracle
from outcomes import refused
from safetensors.torch import load_file, save_file
from threads import one_thread  # noqa: F401  a fixture

from data_tools.errors import KitError
from system.__main__ import main
from system.audio.hub import ClapAudio, HubNetwork, PeAudio, PeTexts, read_pe_config, reading
from system.models.audio.segments import Segments
from system.models.batch import Series
from system.models.text.joint import JointText

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = {"audio-spectrogram-transformer": "ast", "clap": "clap", "clap_fused": "clap", "clap_audio_model": "clap"}
KINDS |= dict.fromkeys(("pe_audio", "pe_audio_frame", "pe_audio_video"), "pe_audio")
CLASSES = {"ast": "ASTModel", "clap": "ClapAudioModelWithProjection", "pe_audio": "PeAudioModel"}
SECONDS = (1.3, 0.4, 0.05, 2.0)


def settings(model: str, **changes: Any) -> HubNetwork:
    values = {"kind": KINDS[model], "weights": str(hub_folder(model)), "output": "clip"} | changes
    return HubNetwork.model_validate(values)


def samples(rate: int, seconds: float, seed: int) -> np.ndarray:
    """(N,) float32 of noise that grows."""
    size = round(seconds * rate)
    noise = np.random.default_rng(seed).integers(-9000, 9000, size) * np.linspace(0.2, 1, size)
    return (noise.astype(np.int16) / 32_768).astype(np.float32)


@functools.cache
def library(model: str) -> tuple[Any, Any]:
    """The model of transformers, and its feature extractor."""
    folder = hub_folder("pe_audio" if model == "pe_audio_video" else model)  # the same weights
    network = getattr(transformers, CLASSES[KINDS[model]]).from_pretrained(folder).eval()
    return network, settings(model).extractor.from_pretrained(folder)


@torch.inference_mode()
def expected(model: str, wave: np.ndarray, rate: int) -> np.ndarray:
    """The vector of one wave by the classes of transformers."""
    wave = np.pad(wave, (0, max(0, rate // 10 - len(wave))))
    whole, extractor = library(model)
    inputs = extractor([wave], sampling_rate=rate, return_tensors="pt")
    if model == "clap_fused":  # of several it declares one, drawn at random, long: here none is
        inputs["is_longer"] = torch.tensor([[False]])
    if KINDS[model] == "pe_audio":
        return np.asarray(whole.get_audio_embeds(**inputs)[0])
    return np.asarray(whole(**inputs)["pooler_output" if KINDS[model] == "ast" else "audio_embeds"][0])


@pytest.mark.parametrize("model", KINDS)
@torch.inference_mode()
def test_vectors_match_transformers_in_batches_and_frames_begin_within_the_clip(model):
    chosen = settings(model)
    waves = [samples(chosen.rate, seconds, n) for n, seconds in enumerate(SECONDS)]
    together = [one[0] for one in chosen.load(torch.device("cpu"))(waves)]
    for row, wave in zip(together, waves, strict=True):
        own = expected(model, wave, chosen.rate)
        assert own.shape == (chosen.dim,)
        assert float(np.abs(own).max()) > 0.01
        assert relative(row, own) < 2e-5
    chosen = settings(model, output="frames", segment_seconds=2.0)
    (frames,) = chosen.load(torch.device("cpu"))([samples(chosen.rate, 5.0, 1)])
    assert frames.shape[1] == chosen.dim
    assert len(frames) == pytest.approx(5 * chosen.frames_per_second, abs=3)


@torch.inference_mode()
def test_frames_of_pe_a_frame_are_joined_and_written_for_another_machine(tmp_path):
    network = {"kind": "pe_audio", "weights": str(hub_folder("pe_audio_frame"))}
    network |= {"segment_seconds": 1, "output": "frames"}
    values = {"kind": "segments", "network": network, "trainable": False, "max_seconds": 30, "head": "none"}
    made = Segments.model_validate(values).build(12).eval()
    made.load_pretrained()
    wave = np.round(samples(48_000, 2.5, 3) * 32_768).astype(np.int16)
    audio = {"waveform": Series(torch.from_numpy(wave)[None, :, None], torch.tensor([len(wave)]))}
    found = made(audio)
    assert found.lengths.tolist() == [25 + 25 + 13]
    made.save_assets(tmp_path)
    again = settings("pe_audio_frame", weights=str(tmp_path / "audio")).layers()
    again.load_state_dict(made.network.state_dict())


def test_models_of_other_types_and_damaged_ones_are_refused(tmp_path):
    shutil.copytree(hub_folder("clap"), tmp_path / "rate")
    file = tmp_path / "rate/preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sampling_rate": 44_100}))
    (tmp_path / "config.json").write_text('{"model_type": "clap"}')
    damaged = {hub_folder("pe_audio"): "model_type", tmp_path: "read", tmp_path / "none": "folder"}
    for folder, word in (damaged | {tmp_path / "rate": "sample rate"}).items():
        with pytest.raises(KitError, match=word):
            settings("clap", weights=str(folder)).layers()


# Perception Encoder

CODER = {"encoder_hidden_size": 8, "downsampling_ratios": [2, 8, 10, 12], "codebook_dim": 16, "hidden_size": 128}
AUDIO = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32}
TEXT = {"model_type": "modernbert", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 2, "vocab_size": 100, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
TEXT |= {"bos_token_id": 1, "eos_token_id": 2, "global_attn_every_n_layers": 1}


@pytest.fixture(scope="module")
def golden(goldens):
    content = np.load(goldens / "modern_encoders.npz")
    return {name: content[name] for name in content.files if name.startswith("pe_")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with filled weights, saved as published ones are."""
    folder = tmp_path_factory.mktemp("pe")
    model = transformers.PeAudioModel(
        transformers.PeAudioConfig(audio_config=AUDIO | {"dac_config": CODER}, text_config=TEXT)
    )
    model.load_state_dict(filled.tensors("pe_tiny"))
    model.save_pretrained(folder)
    transformers.PeAudioFeatureExtractor().save_pretrained(folder)
    return folder


@torch.inference_mode()
def test_pe_audio_clip_and_frame_embeddings_match_transformers_5_0(folder, golden):
    wave = torch.from_numpy(golden["pe_wave_int16"].astype(np.float32) / 32_768)[None]
    lengths = torch.tensor([wave.shape[1]])
    settings = PeAudio(kind="pe_audio", weights=str(folder))
    made = settings.layers()
    settings.load_into(made.eval())
    # Samples moved by one unit in the last place move both by up to 1.0e-4, AVX2 in place of AVX-512 by 1.3e-4.
    assert relative(made(wave, lengths)[0], golden["pe_clip"]) < 5e-4
    frames, counts = made.frames(wave, lengths)
    assert counts.tolist() == [12]
    assert relative(frames[0], golden["pe_frames"]) < 5e-4


@torch.inference_mode()
def test_pe_audio_text_embedding_matches_transformers_5_0_before_the_final_norm(folder, golden):
    with reading(folder):
        made = PeTexts.from_pretrained(folder, config=read_pe_config(folder)).eval()
    ids, mask = (torch.from_numpy(golden[f"pe_{name}"]).long() for name in ("ids", "attention_mask"))
    found = made(ids, mask).numpy()
    assert relative(found, golden["pe_text"]) < 2e-5
    assert relative(found, golden["pe_text_after_final_norm"]) > 0.05
    scale, bias = float(made.text_audio_logit_scale), float(made.text_audio_logit_bias)
    assert relative(scale * found @ golden["pe_clip"] + bias, golden["pe_clip_logits"]) < 2e-5
    assert relative(scale * found @ golden["pe_frames"].T + bias, golden["pe_frame_logits"]) < 2e-5


@pytest.mark.parametrize("kind", ["pe_audio", "pe_audio_video", "pe_audio_frame"])
def test_pe_text_encoder_matches_the_library_and_is_exported(kind, tmp_path):
    values = {"kind": "pe_audio", "model": str(hub_folder(kind)), "dim": 12, "trainable": False, "head": "none"}
    settings = JointText.model_validate(values)
    encoder = settings.build([], tmp_path / "banks")
    assert encoder.logit_numbers == (2.0, -1.0)
    texts = ["a dog barks", "rain", "a deep tone sounds " * 200]
    model, ids, mask = pe_oracle("pe_audio" if kind == "pe_audio_video" else kind, texts[0])
    with torch.inference_mode():
        found = encoder(texts).values
        own = model(input_ids=ids, attention_mask=mask, input_values=torch.zeros(1, 1, 19_200)).text_audio_embeds[0]
    assert relative(found[0], own.numpy()) < 1e-5
    encoder.save_assets(tmp_path)
    again = settings.model_copy(update={"model": str(tmp_path / "text")}).build([], tmp_path / "banks")
    with torch.inference_mode():
        assert torch.equal(again(texts).values, found)
    assert again.logit_numbers == (2.0, -1.0)


def test_pe_audio_text_encoder_refuses_other_models_and_missing_weights(tmp_path):
    folder = Path(shutil.copytree(hub_folder("pe_audio"), tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["text_audio_head.proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for model, dim, word in (
        (hub_folder("clap"), 12, "model_type"),
        (folder, 12, "download"),
        (hub_folder("pe_audio"), 13, "returns"),
    ):
        values = {"kind": "pe_audio", "model": str(model), "dim": dim, "trainable": False, "head": "none"}
        with pytest.raises(KitError, match=word):
            JointText.model_validate(values).build([], tmp_path)


# Download

COMMIT = "0" * 40
EXPERT = {"kind": "clap", "weights": "owner/clap", "segment_seconds": 1.0, "output": "clip"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that has one model, whose downloads are noted, and an empty cache."""
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    asked: list[str] = []

    def fetched(owned: str, **_: object) -> str:
        asked.append(owned)
        if owned != "owner/clap":
            raise ValueError(f"404 for {owned}")
        folder = tmp_path / "hub/models--owner--clap"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs/main").write_text(COMMIT)
        shutil.copytree(hub_folder("clap"), folder / "snapshots" / COMMIT)
        return str(folder / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    return asked


def with_model(world: Path, tmp_path: Path, use: str, **changes: Any) -> Path:
    recipe = tiny.recipe(world, tmp_path)
    network = EXPERT | changes
    recipe["model"]["audio"] |= {"experts": {"heard": network}}
    if use == "encoder":
        recipe["model"]["audio"] = {"kind": "segments", "network": network, "trainable": False, "max_seconds": 30}
    return tiny.write_recipe(tmp_path / "r.yaml", recipe)


@pytest.mark.parametrize("use", ["expert", "encoder"])
def test_download_fetches_the_hub_model_of_an_expert_or_encoder(use, hub, world, tmp_path, capsys):
    path = str(with_model(world, tmp_path, use))
    assert main(["download", path, "--show"]) == 0
    assert "missing  owner/clap  audio model" in capsys.readouterr().out
    assert hub == []
    for state in ("fetched", "here"):
        assert main(["download", path]) == 0
        output = capsys.readouterr().out
        assert output.startswith(f"{state:8} owner/clap  audio model in {tmp_path}/hub/")
    assert hub == ["owner/clap"]
    said = refused(capsys, "download", with_model(world, tmp_path, use, weights="owner/other"))
    assert "404 for owner/other" in said
    (tmp_path / "empty").mkdir()
    said = refused(capsys, "download", with_model(world, tmp_path, use, weights=str(tmp_path / "empty")))
    assert f"{tmp_path}/empty" in said


def test_sharded_hub_model_of_an_expert_is_loaded_and_identified(tmp_path):
    shutil.copytree(hub_folder("clap"), tmp_path / "sharded")
    (tmp_path / "sharded/model.safetensors").unlink()
    model = transformers.ClapModel.from_pretrained(hub_folder("clap"), trust_remote_code=False)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    index = tmp_path / "sharded/model.safetensors.index.json"
    expert = ClapAudio.model_validate(EXPERT | {"weights": str(tmp_path / "sharded")})
    shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    assert len(shards) > 1
    settings = ["config.json", "preprocessor_config.json"]
    assert list(expert.checksums()) == [*settings, index.name, *shards]
    before = expert.bank_name()
    assert expert.dim == 12
    last = tmp_path / "sharded" / shards[-1]
    last.write_bytes(last.read_bytes()[:-4] + b"abcd")
    assert expert.bank_name() != before
