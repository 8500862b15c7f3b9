"""Hub models (AST, CLAP, Perception Encoder) against the classes of transformers."""

import functools
import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from errors_of import relative
from hub_models import hub_folder
from threads import one_thread  # noqa: F401  a fixture

from data_tools.errors import KitError
from system.audio import kind_class
from system.audio.hub import HubNetwork
from system.models.audio.segments import Segments
from system.models.batch import Series

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = {"audio-spectrogram-transformer": "ast", "clap": "clap", "clap_fused": "clap", "clap_audio_model": "clap"}
KINDS |= dict.fromkeys(("pe_audio", "pe_audio_frame", "pe_audio_video"), "pe_audio")
CLASSES = {"ast": "ASTModel", "clap": "ClapAudioModelWithProjection", "pe_audio": "PeAudioModel"}
SECONDS = (1.3, 0.4, 0.05, 2.0)


def settings(model: str, **changes: Any) -> HubNetwork:
    values = {"kind": KINDS[model], "weights": str(hub_folder(model)), "output": "clip"} | changes
    return kind_class(KINDS[model]).model_validate(values)


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
def test_vectors_match_transformers_alone_and_in_batches(model):
    chosen = settings(model, output="clip")
    waves = [samples(chosen.rate, seconds, n) for n, seconds in enumerate(SECONDS)]
    together = [one[0] for one in chosen.load(torch.device("cpu"))(waves)]
    for row, wave in zip(together, waves, strict=True):
        own = expected(model, wave, chosen.rate)
        assert own.shape == (chosen.dim,)
        assert float(np.abs(own).max()) > 0.01
        assert relative(row, own) < 2e-5


@pytest.mark.parametrize("model", KINDS)
def test_extracted_frames_begin_within_the_clip(model):
    chosen = settings(model, output="frames", segment_seconds=2.0)
    (frames,) = chosen.load(torch.device("cpu"))([samples(chosen.rate, 5.0, 1)])
    assert frames.shape[1] == chosen.dim
    assert len(frames) == pytest.approx(5 * chosen.frames_per_second, abs=3)


@torch.inference_mode()
def test_frames_of_pe_a_frame_are_joined_and_written_for_another_machine(tmp_path):
    network = {
        "kind": "pe_audio",
        "weights": str(hub_folder("pe_audio_frame")),
        "segment_seconds": 1,
        "output": "frames",
    }
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
    with pytest.raises(KitError, match="model_type"):
        settings("clap", weights=str(hub_folder("pe_audio"))).layers()
    (tmp_path / "config.json").write_text('{"model_type": "clap"}')
    with pytest.raises(KitError, match="read"):
        settings("clap", weights=str(tmp_path)).layers()
    with pytest.raises(KitError, match="folder"):
        settings("clap", weights=str(tmp_path / "none")).layers()


def test_feature_extractor_of_another_sample_rate_is_refused(tmp_path):
    shutil.copytree(hub_folder("clap"), tmp_path / "clap")
    file = tmp_path / "clap/preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sampling_rate": 44_100}))
    with pytest.raises(KitError, match="sample rate"):
        settings("clap", weights=str(tmp_path / "clap")).layers()
