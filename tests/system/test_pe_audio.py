"""The audio and text sides of PE-AV and PE-A-Frame: goldens of transformers 5.0.0, and the library's logits."""

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from errors_of import relative
from hub_models import hub_folder
from threads import one_thread  # noqa: F401  a fixture

from data_tools.errors import KitError
from system.audio.hub import HubLayers, PeAudio, PeTexts, read_pe_config, reading
from system.models.text.joint import JointText

pytestmark = pytest.mark.usefixtures("one_thread")

CODER = {"encoder_hidden_size": 8, "downsampling_ratios": [2, 8, 10, 12], "codebook_dim": 16, "hidden_size": 128}
AUDIO = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32}
TEXT = {"model_type": "modernbert", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 2, "vocab_size": 100, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
TEXT |= {"bos_token_id": 1, "eos_token_id": 2, "global_attn_every_n_layers": 1}


def filled(key: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor of a key, from a generator seeded by the key."""
    part = key.rpartition(".")[2]
    noise = np.random.Generator(np.random.PCG64(zlib.crc32(key.encode()))).standard_normal(shape)
    if key.startswith("text_audio_logit"):
        return torch.full(shape, 4.0 if part.endswith("scale") else -1.5)
    if part in ("class_embedding", "alpha"):
        return torch.from_numpy((0.5 * noise if part == "class_embedding" else 1 + 0.1 * noise).astype(np.float32))
    if len(shape) == 1:
        return torch.from_numpy(((part == "weight") + 0.1 * noise).astype(np.float32))
    return torch.from_numpy((math.sqrt(2 / math.prod(shape[1:])) * noise).astype(np.float32))


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
    model.load_state_dict({key: filled(key, tuple(value.shape)) for key, value in model.state_dict().items()})
    model.save_pretrained(folder)
    transformers.PeAudioFeatureExtractor().save_pretrained(folder)
    return folder


def sounds(folder: Path) -> HubLayers:
    settings = PeAudio(kind="pe_audio", weights=str(folder))
    made = settings.layers()
    settings.load_into(made)
    return made.eval()


@torch.inference_mode()
def test_pe_audio_clip_and_frame_embeddings_match_transformers_5_0(folder, golden):
    wave = torch.from_numpy(golden["pe_wave_int16"].astype(np.float32) / 32_768)[None]
    lengths = torch.tensor([wave.shape[1]])
    made = sounds(folder)
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


def oracle(kind: str, text: str) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The library's model with its text state before the final norm, and the ids and mask of a text."""
    folder = hub_folder(kind)
    model = getattr(transformers, "PeAudioFrameLevelModel" if kind == "pe_audio_frame" else "PeAudioModel")
    made = model.from_pretrained(folder).eval()
    made.text_model.final_norm = torch.nn.Identity()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)([text], return_tensors="pt")
    return made, tokens["input_ids"], tokens["attention_mask"]


@pytest.mark.parametrize("kind", ["pe_audio", "pe_audio_video", "pe_audio_frame"])
def test_pe_text_encoder_matches_the_library_and_is_exported(kind, tmp_path):
    values = {"kind": "pe_audio", "model": str(hub_folder(kind)), "dim": 12, "trainable": False, "head": "none"}
    settings = JointText.model_validate(values)
    encoder = settings.build([], tmp_path / "banks")
    assert encoder.logit_numbers == (2.0, -1.0)
    texts = ["a dog barks", "rain", "a deep tone sounds " * 200]
    model, ids, mask = oracle("pe_audio" if kind == "pe_audio_video" else kind, texts[0])
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
    import shutil

    from safetensors.torch import load_file, save_file

    values = {"kind": "pe_audio", "dim": 12, "trainable": False, "head": "none"}
    other = JointText.model_validate(values | {"model": str(hub_folder("clap"))})
    with pytest.raises(KitError, match="model_type"):
        other.build([], tmp_path)
    folder = tmp_path / "model"
    shutil.copytree(hub_folder("pe_audio"), folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["text_audio_head.proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(KitError, match="download"):
        JointText.model_validate(values | {"model": str(folder)}).build([], tmp_path)
    wrong = JointText.model_validate(values | {"model": str(hub_folder("pe_audio")), "dim": 13})
    with pytest.raises(KitError, match="returns"):
        wrong.build([], tmp_path)
