"""Audio models of the hub: transformers' own forward is the oracle, on tiny models that are saved to folders."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hub_models import hub_folder
from loaded import relative
from quick import first_quick
from threads import one_thread  # noqa: F401  a fixture

from data_tools.errors import KitError
from system.experts import HuggingFaceExpert
from system.models.audio import HubFrames, HuggingFace
from system.models.batch import Series
from system.networks.hugging_face import HubAudio, build_from_folder
from system.networks.hugging_face_types import ROWS

pytestmark = pytest.mark.usefixtures("one_thread")
LIBRARY = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # WavLM in transformers

# the folder, the row that it is opened by
KINDS = {
    "audio-spectrogram-transformer": "audio-spectrogram-transformer",
    "clap": "clap_audio_model",
    "clap_fused": "clap_audio_model",
    "clap_audio_model": "clap_audio_model",
    "whisper": "whisper",
    "wav2vec2": "wav2vec2",
    "wav2vec2_normed": "wav2vec2",
    "hubert": "hubert",
    "wavlm": "wavlm",
    "data2vec-audio": "data2vec-audio",
    "sew": "sew",
    "unispeech": "unispeech",
    "unispeech-sat": "unispeech-sat",
    "wav2vec2-bert": "wav2vec2-bert",
    "pe_audio": "pe_audio",
    "pe_audio_frame": "pe_audio",
    "pe_audio_video": "pe_audio",
    "embedding_gemma2": "embedding_gemma2",
}
SECONDS = (1.3, 0.4, 2.0)


def samples(kind: str, seconds: float, seed: int = 0) -> np.ndarray:
    """(N,) int16 of noise that grows."""
    rate = ROWS[KINDS[kind]].rate  # type: ignore[index]
    size = round(seconds * rate)
    noise = np.random.default_rng(seed).integers(-9000, 9000, size) * np.linspace(0.2, 1, size)
    return noise.astype(np.int16)


def network(kind: str) -> HubAudio:
    made = build_from_folder(KINDS[kind], hub_folder(kind))  # type: ignore[arg-type]
    made.load_published(hub_folder(kind))
    return made.eval()


@torch.inference_mode()
def expected(kind: str, wave: np.ndarray) -> np.ndarray:
    """Vector of one wave by the classes of transformers."""
    row = ROWS[KINDS[kind]]  # type: ignore[index]
    folder = hub_folder("pe_audio" if kind == "pe_audio_video" else kind)  # the same weights
    extractor = getattr(transformers, row.extractor).from_pretrained(folder)
    model = getattr(transformers, row.model).from_pretrained(folder).eval()
    inputs = extractor([wave.astype(np.float32) / 32_768], sampling_rate=row.rate, return_tensors="pt")
    if kind == "clap_fused":  # of several it declares one, drawn at random, long: here none is
        inputs["is_longer"] = torch.tensor([[False]])
    if kind == "whisper":
        tokens = model.encoder(inputs["input_features"]).last_hidden_state[0]
        return tokens[: int(np.ceil(50 * len(wave) / row.rate))].mean(0).numpy()  # type: ignore[no-any-return]
    if kind == "embedding_gemma2":  # special tokens of the tokenizer, begin, sound, end; the mean of all
        size = int(model.get_audio_features(**inputs, return_dict=True).attention_mask.sum())
        ids = torch.tensor([[0, 311, *[310] * size, 319, 2]])
        states = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).last_hidden_state
        return states[0].mean(0).numpy()  # type: ignore[no-any-return]
    if KINDS[kind] == "pe_audio":
        return model.get_audio_embeds(**inputs)[0].numpy()  # type: ignore[no-any-return]
    output = model(**inputs)
    if row.vector != "mean":
        return output[row.vector][0].numpy()  # type: ignore[no-any-return]
    return output.last_hidden_state[0].mean(0).numpy()  # type: ignore[no-any-return]


def batch(waves: list[np.ndarray], size: int) -> tuple[torch.Tensor, torch.Tensor]:
    filled = np.stack([np.pad(wave.astype(np.float32) / 32_768, (0, size - len(wave))) for wave in waves])
    return torch.from_numpy(filled), torch.tensor([len(wave) for wave in waves])


@LIBRARY
@pytest.mark.parametrize("kind", first_quick(KINDS, 7))
def test_hugging_face_audio_encoder_matches_transformers_for_single_clips_and_batches(kind: str) -> None:
    made, waves = network(kind), [samples(kind, seconds, n) for n, seconds in enumerate(SECONDS)]
    with torch.inference_mode():
        together = made(*batch(waves, max(map(len, waves)) + 999))
        for row, wave in zip(together, waves, strict=True):
            own = expected(kind, wave)
            assert own.shape == (made.dim,)
            assert float(np.abs(own).max()) > 0.01
            assert relative(row, own) < 2e-5
            alone = made(*batch([wave], len(wave)))[0]
            assert relative(alone, own) < 2e-5, "padding of a segment changes nothing"
        assert relative(made(*batch(waves, max(map(len, waves)) + 999)), together.numpy()) == 0, "nothing is drawn"


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_frames_are_tokens_that_begin_within_the_clip(kind: str) -> None:
    made, wave = network(kind), samples(kind, 1.0)
    with torch.inference_mode():
        frames, lengths = made.frames(*batch([wave], len(wave)))
    per_second = {"audio-spectrogram-transformer": 10, "clap_audio_model": 3.2, "pe_audio": 25, "embedding_gemma2": 25}
    row = KINDS[kind]
    assert frames.ndim == 3
    assert 1 <= int(lengths) <= frames.shape[1]
    assert int(lengths) == pytest.approx(per_second.get(row, 50), abs=1)
    if row in ("whisper", "wav2vec2", "wav2vec2-bert"):
        assert relative(frames[0, : int(lengths)].mean(0), expected(kind, wave)) < 2e-5


@LIBRARY
@pytest.mark.parametrize("kind", ["clap_audio_model", "wavlm", "pe_audio"])
def test_clip_under_a_tenth_of_a_second_is_padded_for_hub_models(kind: str) -> None:
    made, wave = network(kind), samples(kind, 0.01)
    with torch.inference_mode():
        found = made(*batch([wave], 48_000))[0]
    short = round(0.1 * ROWS[KINDS[kind]].rate)  # type: ignore[index]
    assert relative(found, expected(kind, np.pad(wave, (0, short - len(wave))))) < 2e-5


def settings(kind: str, **changes: Any) -> HuggingFace:
    row = KINDS[kind]
    longest = min(2.0, ROWS[row].max_seconds or 2.0)  # type: ignore[index]
    values = {"kind": "hugging_face", "model": str(hub_folder(kind)), "type": row, "trainable": True, "hidden": None}
    values |= {"segment_seconds": longest, "hop_seconds": longest, "max_seconds": 30, "segment_pooling": "mean"}
    return HuggingFace.model_validate(values | changes)


def clips(kind: str, *seconds: float) -> dict[str, Series]:
    waves = [samples(kind, one, n) for n, one in enumerate(seconds)]
    values = np.zeros((len(waves), max(map(len, waves)), 1), np.int16)
    for row, wave in zip(values, waves, strict=True):
        row[: len(wave), 0] = wave
    return {"waveform": Series(torch.from_numpy(values), torch.tensor([len(wave) for wave in waves]))}


@pytest.mark.parametrize("seconds", [1.16, 9.2, 10.04, 30.0])
def test_segment_seconds_of_hugging_face_frames_must_be_a_multiple_of_a_frame(seconds: float) -> None:
    """Some multiples have a rest as floating-point numbers."""
    values = {"segment_seconds": seconds, "hop_seconds": seconds, "trainable": False, "head": "none"}
    frames = HubFrames.model_validate(settings("pe_audio").model_dump() | values | {"kind": "hugging_face_frames"})
    assert dict(frames.setting_errors(16)).keys() <= {"head"}
    odd = frames.model_copy(update={"segment_seconds": seconds + 0.01, "hop_seconds": seconds + 0.01})
    assert "a multiple of 0.04 s" in dict(odd.setting_errors(16))["segment_seconds"]


@pytest.mark.parametrize("kind", ["clap_audio_model", "wavlm"])
def test_parameter_count_of_a_hub_expert_equals_that_of_its_model(kind: str) -> None:
    values = {"kind": "hugging_face", "model": str(hub_folder(kind)), "type": KINDS[kind], "output": "clip"}
    expert = HuggingFaceExpert.model_validate(values | {"size": 16, "segment_seconds": 1.0})
    row = ROWS[KINDS[kind]]  # type: ignore[index]
    whole = getattr(transformers, row.model).from_pretrained(hub_folder(kind))
    assert expert.count_parameters() == sum(parameter.numel() for parameter in whole.parameters())


@pytest.mark.parametrize("kind", ["clap", "wav2vec2_normed"])
def test_hugging_face_audio_encoder_averages_segments_of_a_clip(kind: str) -> None:
    """A clip of 5 s is the mean of three, the last of 1 s."""
    made = settings(kind, head="none").build(network(kind).dim)
    made.load_pretrained()
    made.eval()
    wave, rate = samples(kind, 5.0), ROWS[KINDS[kind]].rate  # type: ignore[index]
    with torch.inference_mode():
        found = made(clips(kind, 5.0, 0.5)).values[0]
    pieces = [expected(kind, wave[first : first + 2 * rate]) for first in (0, 2 * rate, 4 * rate)]
    assert relative(found, np.mean(pieces, 0)) < 2e-5


@pytest.mark.parametrize("kind", ["audio-spectrogram-transformer", "wavlm", "wav2vec2-bert"])
def test_hub_training_is_reproducible_with_torch_seed(kind: str) -> None:
    made = settings(kind).build(4)
    made.load_pretrained()
    made.train()
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        made.zero_grad()
        values = made(clips(kind, 1.0, 2.0)).values
        values.square().sum().backward()
        results.append(values.detach())
        assert sum(float(one.grad.abs().sum()) > 0 for one in made.network.parameters() if one.grad is not None) > 10
    assert torch.equal(*results)


def test_hub_model_of_another_type_is_refused(tmp_path: Path) -> None:
    folder = hub_folder("wavlm")
    with pytest.raises(KitError, match="model_type"):
        build_from_folder("hubert", folder)
    ((key, said),) = settings("wavlm", type="hubert").missing_files()
    assert (key, said.endswith("says model_type wavlm, not hubert; set type: wavlm")) == ("model", True)
    with pytest.raises(KitError, match="clap_audio_model"):
        build_from_folder("whisper", hub_folder("clap"))
    shutil.copytree(folder, tmp_path / "other")
    path = tmp_path / "other" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "dasheng"}))
    with pytest.raises(KitError, match="supported"):
        build_from_folder("wavlm", path.parent)
    (path.parent / "preprocessor_config.json").unlink()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "wavlm"}))
    with pytest.raises(KitError, match="extractor"):
        build_from_folder("wavlm", path.parent)
    path.unlink()
    with pytest.raises(KitError, match="Hugging"):
        build_from_folder("wavlm", path.parent)


def test_hub_model_with_wrong_sample_rate_or_missing_weights_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(hub_folder("wavlm"), folder)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sampling_rate": 8000}))
    with pytest.raises(KitError, match="extractor"):
        build_from_folder("wavlm", folder)
    shutil.copy(hub_folder("wavlm") / "preprocessor_config.json", path)
    made = build_from_folder("wavlm", folder)
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layers.1.feed_forward.output_dense.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(KitError, match="such"):
        made.load_published(folder)
    (folder / "model.safetensors").write_bytes(b"not a file of tensors")
    with pytest.raises(KitError, match="download"):
        made.load_published(folder)


def test_missing_hub_model_is_reported_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    away = settings("clap", model="laion/clap-htsat-unfused")
    ((_, said),) = away.missing_files()
    assert said.startswith("audio model laion/clap-htsat-unfused: not a folder, not in the cache ")
    assert "neither a folder nor in the hub's cache" in away.plan_facts()[1][0][1]


@pytest.mark.parametrize(
    "kind", ["audio-spectrogram-transformer", "clap", "whisper", "wav2vec2", "pe_audio", "embedding_gemma2"]
)
def test_sizes_of_hub_models_are_read_from_config_json(kind: str) -> None:
    of = settings(kind)
    assert of.vector_dim == network(kind).dim
    assert of.sample_rate == network(kind).extractor.sampling_rate
    encoder = of.build(8).train()
    counts = [sum(p.numel() for p in one.parameters()) for one in (encoder.parts()["network"], network(kind))]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"segment_seconds": 10.5},
            "segment_seconds: {} needs segments of 0.1 to 10.0 s, not 10.5 s; change segment_seconds",
        ),
        (
            {"head": "none"},
            "head: `head: none` needs vectors as long as text embeddings, but the vectors have 12 values and text "
            "embeddings 8; set head: linear",
        ),
        (
            {"head": "none", "hidden": 4},
            "head: `head: none` adds no layer, but `hidden` sets the size of a layer; set hidden: null, or "
            "head: linear",
        ),
    ],
)
def test_incompatible_hub_settings_are_reported(changes: dict[str, Any], said: str) -> None:
    of = settings("clap", **changes)
    assert said.format(of.model) in [f"{key}: {text}" for key, text in of.setting_errors(8)]


def test_clap_and_padded_hub_models_are_marked_as_dependent_on_the_whole_batch() -> None:
    """These take no cached gradients."""
    kinds = ("clap", "wavlm", "pe_audio", "audio-spectrogram-transformer", "whisper")
    assert [settings(kind).depends_on_batch for kind in kinds] == [True, True, True, False, False]
    assert not settings("clap", trainable=False).depends_on_batch


def test_changed_feature_extractor_of_a_hub_model_changes_its_checksums(tmp_path: Path) -> None:
    shutil.copytree(hub_folder("wavlm"), tmp_path / "m")
    before = settings("wavlm", model=str(tmp_path / "m")).file_checksums()
    assert before == settings("wavlm").file_checksums(), "wherever it lies"
    path = tmp_path / "m" / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_normalize": False}))
    assert settings("wavlm", model=str(tmp_path / "m")).file_checksums() != before
    assert "model.safetensors" in settings("wavlm", trainable=False).file_checksums()
