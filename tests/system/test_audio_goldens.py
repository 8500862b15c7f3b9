"""The CRNN of DCASE 2022 with filled weights: outputs of the original code, and mistakes that must be noticed."""

import functools
import json
from collections.abc import Callable

import filled
import numpy as np
import pytest
import torch
from errors_of import largest, relative
from filled import fill, rule

from system.audio import mel
from system.audio.logmel import LogMelSlaney
from system.models.audio.crnn import Crnn, CrnnEncoder
from system.models.batch import Series

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
def golden(goldens):
    return functools.cache(lambda name: dict(np.load(goldens / f"{name}.npz")))


def wave(content: dict[str, np.ndarray], letter: str) -> np.ndarray:
    return (content[f"{letter}_wave_int16"] / 32768).astype(np.float32)


# CRNN


def load(made: CrnnEncoder, tensors: dict[str, torch.Tensor]) -> None:
    missing, _ = made.load_state_dict(tensors, strict=False)
    assert all(key.endswith("num_batches_tracked") for key in missing)


def crnn(embedding: str = "frames") -> CrnnEncoder:
    settings = {"kind": "crnn", "experts": {"logmel": BASELINE}, "hidden": 150, "dropout": 0.3}
    made = Crnn.model_validate({**settings, "embedding": embedding}).build(0)
    shapes = filled.crnn_shapes()
    tensors = {
        key.removeprefix("audio_enc.").replace("features.", ""): torch.from_numpy(fill(key, shapes)) for key in shapes
    }
    load(made, tensors)
    return made.eval()


def test_synthetic_crnn_weights_have_the_stored_names_shapes_and_sums(goldens):
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
def test_logmel_slaney_matches_dcase2022_baseline(golden, letter):
    content = golden("xieh97_dcase2022_crnn")
    found = LogMelSlaney.model_validate(BASELINE).load(CPU)([wave(content, letter)])[0]
    assert found.dtype == np.float32
    assert largest(found, content[f"{letter}_logmel_reflect"]) < 1e-4
    edges = np.abs(np.r_[found[:4], found[-4:]] - content[f"{letter}_logmel_constant_edges"]).max(1)
    assert edges[[0, -1]].min() > 1.3, "the ends are reflected"
    assert edges[1:-1].max() < 1e-4
    assert largest(found.astype(np.float16), content[f"{letter}_logmel_reflect"]) > 1e-3, "16 bits would do"


@pytest.mark.parametrize("mistake", ["symmetric Hann", "no area norm", "highest frequency"])
def test_planted_mistakes_in_logmel_slaney_exceed_the_test_tolerance(golden, monkeypatch, mistake):
    settings = dict(BASELINE)
    if mistake == "symmetric Hann":
        monkeypatch.setattr(torch, "hann_window", functools.partial(torch.hann_window, periodic=False))
    elif mistake == "no area norm":
        triangles = mel.melscale_fbanks
        monkeypatch.setattr(mel, "melscale_fbanks", lambda *some: triangles(*some[:5], None, "slaney"))
    else:
        settings["highest"] = 8_100
    content = golden("xieh97_dcase2022_crnn")
    found = LogMelSlaney.model_validate(settings).load(CPU)([wave(content, "A")])[0]
    assert largest(found, content["A_logmel_reflect"]) > 1e-2


@torch.inference_mode()
def test_crnn_layers_match_dcase2022_baseline(golden):
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
    assert unit.lengths.tolist() == lengths.tolist()
    assert mean.lengths is None


@torch.inference_mode()
@pytest.mark.parametrize("mistake", ["pooling", "slope", "direction"])
def test_planted_mistakes_in_crnn_exceed_the_test_tolerance(golden, mistake):
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
def test_crnn_frames_match_xie2023(golden):
    content, logmel = golden("xieh97_frameword"), golden("xieh97_dcase2022_crnn")
    made, shapes = crnn(), filled.crnn_shapes()
    names = {key: key.replace("features.", "") for key in shapes}
    both = {names[key]: shape for key, shape in shapes.items()}
    tensors = {name.removeprefix("audio_enc."): torch.from_numpy(fill(name, both)) for name in both}
    load(made, tensors)
    length = int(content["model_T"])
    values = torch.from_numpy(np.stack([logmel[f"{letter}_logmel_reflect"][:length] for letter in "AB"]))
    found = made({"logmel": Series(values, torch.tensor([length, length]))}).values
    assert relative(found[:, ::4], content["model_audio_frames_l2"]) < 2e-5
