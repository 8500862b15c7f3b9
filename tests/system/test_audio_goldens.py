"""Trainable networks with filled weights: outputs of the original code, and mistakes that must be noticed."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filled
import numpy as np
import pytest
import tiny
import torch
from filled import fill, rule
from loaded import largest, loaded, relative, weights

from system.experts import LogMelSlaney, PannsCnn14
from system.models.audio import Crnn, Panns
from system.models.audio.crnn import CrnnEncoder
from system.models.audio.panns_encoder import PannsEncoder
from system.models.batch import Series
from system.networks.frontend import LogMelFrontEnd, mel_basis, published_log_mel
from system.networks.panns import Cnn14, load_published
from system.networks.weights import Weights

CPU = torch.device("cpu")
BASELINE = {
    "kind": "logmel_slaney",
    "sample_rate": 44_100,
    "bands": 64,
    "window_seconds": 0.04,
    "hop_seconds": 0.02,
    "lowest": 12,
    "highest": 8_000,
}
Golden = Callable[[str], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def golden(goldens: Path) -> Golden:
    return functools.cache(lambda name: dict(np.load(goldens / f"{name}.npz")))


def wave(content: dict[str, np.ndarray], letter: str) -> np.ndarray:
    return (content[f"{letter}_wave_int16"] / 32768).astype(np.float32)


# ResNet-38


def resnet38(**changes: Any) -> PannsEncoder:
    return Panns.model_validate(tiny.panns(**changes)).build(4)


@pytest.fixture(scope="module")
def encoder() -> PannsEncoder:
    made = resnet38(weights=filled.files("panns_resnet38")["weights"])
    made.load_pretrained()
    return made.eval()


def pooled(encoder: PannsEncoder, samples: np.ndarray) -> torch.Tensor:
    """(2048,) of 16-bit samples."""
    waves = torch.from_numpy(samples)[None]
    with torch.inference_mode():
        return encoder._compute_pooled(waves, torch.tensor([len(samples)]))[0]


@pytest.mark.parametrize("letter", "ABS")
def test_log_mel_at_32_khz_matches_panns(golden: Golden, letter: str) -> None:
    content = golden("panns_resnet38")
    found = LogMelFrontEnd()(torch.from_numpy(wave(content, letter))[None])[0]
    assert largest(found, content[f"{letter}_logmel"]) < 2e-3
    assert largest(mel_basis(), content["melW"]) < 1e-7


def test_log_mel_with_symmetric_window_exceeds_the_test_tolerance(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = golden("panns_resnet38")
    monkeypatch.setattr(torch, "hann_window", functools.partial(torch.hann_window, periodic=False))
    assert largest(LogMelFrontEnd()(torch.from_numpy(wave(content, "A"))[None])[0], content["A_logmel"]) > 0.05


@pytest.mark.parametrize("letter", "BS")
def test_resnet38_encoder_matches_original_pooling_and_logits(
    golden: Golden, encoder: PannsEncoder, letter: str
) -> None:
    content = golden("panns_resnet38")
    found = pooled(encoder, content[f"{letter}_wave_int16"])
    assert relative(found, content[f"{letter}_pooled"]) < 2e-5
    embedding = weights("panns_resnet38").linear("fc1", 2048, 2048)(found).relu()
    logits = weights("panns_resnet38").linear("fc_audioset", 2048, 527)(embedding).detach()
    assert relative(embedding.detach(), content[f"{letter}_embedding"]) < 2e-5
    assert relative(logits, content[f"{letter}_logits"]) < 2e-5
    assert largest(logits.sigmoid(), content[f"{letter}_clipwise"]) < 1e-4  # 2.1e-5 without AVX


def test_all_poolings_of_resnet38_match_original_code(
    golden: Golden, encoder: PannsEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames of the original are means over frequency; its maps are known by their statistics."""
    content = golden("panns_resnet38")
    waves = torch.from_numpy(wave(content, "A"))[None]
    with torch.inference_mode():
        maps = encoder._compute_maps(waves)
    mean, deviation, highest, *shape = json.loads(str(content["A_stages"]))["conv_block_after1"]
    assert list(maps.shape) == shape
    found = [float(maps.double().mean()), float(maps.double().std()), float(maps.max())]
    assert found == pytest.approx([mean, deviation, highest], rel=2e-5)
    monkeypatch.setattr(encoder, "_compute_maps", lambda _: maps)
    frames, both = maps[0].mean(2), maps[0].amax(2) + maps[0].mean(2)
    assert relative(frames.T, content["A_frames"]) < 2e-5
    for how, series in (("mean", frames), ("max_mean", both)):
        monkeypatch.setattr(encoder, "frequency_pooling", how)
        for over_time, expected in (
            ("mean", series.mean(1)),
            ("max", series.amax(1)),
            ("max_mean", series.mean(1) + series.amax(1)),
        ):
            monkeypatch.setattr(encoder, "time_pooling", over_time)
            assert relative(pooled(encoder, content["A_wave_int16"]), expected.numpy()) < 2e-6, (how, over_time)


@pytest.mark.slow
def test_resnet38_expert_frames_match_original_code(golden: Golden) -> None:
    content = golden("panns_resnet38")
    found = loaded("panns_resnet38")([wave(content, letter) for letter in "BS"])
    for letter, frames in zip("BS", found, strict=True):
        assert relative(frames, content[f"{letter}_frames"]) < 2e-5


@pytest.mark.parametrize(("mistake", "least"), [("batch norm eps", 2e-3), ("constant padding", 2e-4)])
def test_planted_mistakes_in_resnet38_exceed_the_test_tolerance(
    golden: Golden, encoder: PannsEncoder, monkeypatch: pytest.MonkeyPatch, mistake: str, least: float
) -> None:
    content = golden("panns_resnet38")
    if mistake == "batch norm eps":
        for module in encoder.network.modules():
            if hasattr(module, "eps"):
                monkeypatch.setattr(module, "eps", 1e-3)
    else:
        pad = torch.nn.functional.pad
        monkeypatch.setattr(torch.nn.functional, "pad", lambda x, sides, **_: pad(x, sides))
    assert relative(pooled(encoder, content["B_wave_int16"]), content["B_pooled"]) > least


def test_panns_network_keys_match_checkpoints(encoder: PannsEncoder) -> None:
    """Front-end and classifier are not compared; every value must be loaded under its name."""
    ignored = ("spectrogram_extractor.", "logmel_extractor.", "fc1.", "fc_audioset.")
    for network, shapes in ((encoder.network, filled.resnet38_shapes()), (Cnn14(), filled.panns_shapes())):
        own = {key: tuple(value.shape) for key, value in network.state_dict().items()}
        assert own == {key: shape for key, shape in shapes.items() if not key.startswith(ignored)}
    key = "resnet.layer3.0.downsample.2.running_mean"
    assert encoder.network.state_dict()[key].numpy() == pytest.approx(fill(key, filled.resnet38_shapes()))


@torch.inference_mode()
@pytest.mark.slow
def test_cnn14_frames_match_original_code(golden: Golden) -> None:
    """Cnn14 for 16 kHz is the same network with another front-end."""
    content = golden("panns_cnn14_16k")
    network = Cnn14(0.2).eval()
    load_published(network, weights("panns_cnn14_16k"))
    front_end = published_log_mel(weights("panns_cnn14_16k"), PannsCnn14.fft, PannsCnn14.hop)
    columns = front_end(torch.from_numpy(wave(content, "A"))[None])
    assert relative(network(network.normalise_bands(columns)).mean(3)[0].T, content["A_frames"]) < 2e-5


# CRNN


def crnn(embedding: str = "frames") -> CrnnEncoder:
    settings = {"kind": "crnn", "experts": {"logmel": BASELINE}, "hidden": 150, "dropout": 0.3}
    made = Crnn.model_validate({**settings, "embedding": embedding}).build(0)
    shapes = filled.crnn_shapes()
    tensors = {
        key.removeprefix("audio_enc.").replace("features.", ""): torch.from_numpy(fill(key, shapes)) for key in shapes
    }
    load_published(made, Weights(Path("filled"), tensors))
    return made.eval()


def test_synthetic_crnn_weights_have_the_stored_names_shapes_and_sums(goldens: Path) -> None:
    described = json.loads((goldens / "keys.json").read_text())["xieh97_dcase2022_crnn"]["keys"]
    described = {key: one for key, one in described.items() if key.startswith("audio_enc")}
    shapes = filled.crnn_shapes()
    assert {key: list(shape) for key, shape in shapes.items()} == {key: one["shape"] for key, one in described.items()}
    for key, one in described.items():
        assert rule(key, shapes) == one["rule"], key
        if one["rule"] != "left":
            assert fill(key, shapes).astype(np.float64).sum() == pytest.approx(one["sum"], rel=1e-9, abs=1e-6)
    assert sum(parameter.numel() for parameter in crnn().parameters()) == 732_354


@pytest.mark.parametrize("letter", "AB")
def test_logmel_slaney_matches_dcase2022_baseline(golden: Golden, letter: str) -> None:
    content = golden("xieh97_dcase2022_crnn")
    found = LogMelSlaney.model_validate(BASELINE).load(CPU)([wave(content, letter)])[0]
    assert found.dtype == np.float32
    assert largest(found, content[f"{letter}_logmel_reflect"]) < 1e-4
    edges = np.abs(np.r_[found[:4], found[-4:]] - content[f"{letter}_logmel_constant_edges"]).max(1)
    assert edges[[0, -1]].min() > 1.3, "the ends are reflected"
    assert edges[1:-1].max() < 1e-4
    assert largest(found.astype(np.float16), content[f"{letter}_logmel_reflect"]) > 1e-3, "16 bits would do"


@pytest.mark.parametrize("mistake", ["symmetric Hann", "no area norm", "highest frequency"])
def test_planted_mistakes_in_logmel_slaney_exceed_the_test_tolerance(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    settings = dict(BASELINE)
    if mistake == "symmetric Hann":
        monkeypatch.setattr(torch, "hann_window", functools.partial(torch.hann_window, periodic=False))
    elif mistake == "no area norm":
        power = LogMelSlaney.mel_power
        monkeypatch.setattr(
            LogMelSlaney, "mel_power", lambda *args, **settings: power(*args, **settings | {"norm": None})
        )
    else:
        settings["highest"] = 8_100
    content = golden("xieh97_dcase2022_crnn")
    found = LogMelSlaney.model_validate(settings).load(CPU)([wave(content, "A")])[0]
    assert largest(found, content["A_logmel_reflect"]) > 1e-2


@torch.inference_mode()
def test_crnn_layers_match_dcase2022_baseline(golden: Golden) -> None:
    content, made = golden("xieh97_dcase2022_crnn"), crnn()
    series = [torch.from_numpy(content[f"{letter}_logmel_reflect"]) for letter in "AB"]
    lengths = torch.tensor([len(one) for one in series])
    values = torch.nn.utils.rnn.pad_sequence(series, batch_first=True, padding_value=7.0)
    unit = made({"logmel": Series(values, lengths)})
    mean = crnn("mean")({"logmel": Series(values, lengths)})
    for row, letter in enumerate("AB"):
        maps = made.cnn(series[row][None, None])
        hidden, _ = made.gru(maps.transpose(1, 2).flatten(2))
        assert relative(maps.transpose(1, 2).flatten(2)[0], content[f"{letter}_cnn"]) < 2e-5
        assert relative(hidden[0], content[f"{letter}_gru"]) < 2e-5
        frames = made._frames(series[row][None])[0]
        assert relative(frames, content[f"{letter}_frames"]) < 2e-5
        assert relative(frames.mean(0), content[f"{letter}_clip"]) < 2e-5
        assert relative(mean.values[row], content[f"{letter}_clip_l2"]) < 2e-5
        expected = content[f"{letter}_frames"] / np.linalg.norm(content[f"{letter}_frames"], axis=1, keepdims=True)
        assert relative(unit.values[row, : len(frames)], expected) < 2e-5
    assert unit.lengths is not None
    assert unit.lengths.tolist() == lengths.tolist()
    assert mean.lengths is None


@torch.inference_mode()
@pytest.mark.parametrize("mistake", ["pooling", "slope", "direction"])
def test_planted_mistakes_in_crnn_exceed_the_test_tolerance(golden: Golden, mistake: str) -> None:
    content, made = golden("xieh97_dcase2022_crnn"), crnn("mean")
    if mistake == "pooling":
        made.cnn[3] = torch.nn.LPPool2d(2, (2, 4))
    elif mistake == "slope":
        for layer in made.cnn:
            if isinstance(layer, torch.nn.LeakyReLU):
                layer.negative_slope = 0.11
    else:
        made.gru.weight_ih_l0_reverse.copy_(made.gru.weight_ih_l0)
    values = torch.from_numpy(content["A_logmel_reflect"])[None]
    found = made({"logmel": Series(values, torch.tensor([values.shape[1]]))}).values[0]
    assert relative(found, content["A_clip_l2"]) > 1e-3


@torch.inference_mode()
def test_crnn_frames_match_xie2023(golden: Golden) -> None:
    """The same encoder, filled by the same pattern under other names, on the same clips cut to one length."""
    content, logmel = golden("xieh97_frameword"), golden("xieh97_dcase2022_crnn")
    made, shapes = crnn(), filled.crnn_shapes()
    names = {key: key.replace("features.", "") for key in shapes}
    both = {names[key]: shape for key, shape in shapes.items()}
    tensors = {name.removeprefix("audio_enc."): torch.from_numpy(fill(name, both)) for name in both}
    load_published(made, Weights(Path("filled"), tensors))
    length = int(content["model_T"])
    values = torch.from_numpy(np.stack([logmel[f"{letter}_logmel_reflect"][:length] for letter in "AB"]))
    found = made({"logmel": Series(values, torch.tensor([length, length]))}).values
    assert relative(found[:, ::4], content["model_audio_frames_l2"]) < 2e-5
