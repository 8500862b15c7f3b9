"""The CRNN of DCASE 2022 with filled weights: outputs of the original code."""

import functools

import filled
import numpy as np
import pytest
import torch
from errors_of import largest, relative

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


@pytest.fixture(scope="module")
def golden(goldens):
    return functools.cache(lambda name: dict(np.load(goldens / f"{name}.npz")))


def crnn(name: str = "xieh97_dcase2022_crnn", embedding: str = "frames") -> CrnnEncoder:
    settings = {"kind": "crnn", "experts": {"logmel": BASELINE}, "hidden": 150, "dropout": 0.3}
    made = Crnn.model_validate({**settings, "embedding": embedding}).build(0)
    tensors = {
        key.removeprefix("audio_enc.").replace("features.", ""): value for key, value in filled.tensors(name).items()
    }
    missing, _ = made.load_state_dict(tensors, strict=False)
    assert not missing
    return made.eval()


@pytest.mark.parametrize("letter", "AB")
def test_logmel_slaney_matches_dcase2022_baseline(golden, letter):
    content = golden("xieh97_dcase2022_crnn")
    found = LogMelSlaney.model_validate(BASELINE).load(CPU)(
        [(content[f"{letter}_wave_int16"] / 32768).astype(np.float32)]
    )[0]
    assert found.dtype == np.float32
    assert largest(found, content[f"{letter}_logmel_reflect"]) < 1e-4
    edges = np.abs(np.r_[found[:4], found[-4:]] - content[f"{letter}_logmel_constant_edges"]).max(1)
    assert edges[[0, -1]].min() > 1.3, "the ends are reflected"
    assert edges[1:-1].max() < 1e-4
    assert largest(found.astype(np.float16), content[f"{letter}_logmel_reflect"]) > 1e-3, "16 bits would do"


@torch.inference_mode()
def test_crnn_layers_match_dcase2022_baseline(golden):
    content, made = golden("xieh97_dcase2022_crnn"), crnn()
    series = [torch.from_numpy(content[f"{letter}_logmel_reflect"]) for letter in "AB"]
    lengths = torch.tensor([len(one) for one in series])
    values = torch.nn.utils.rnn.pad_sequence(series, batch_first=True, padding_value=7.0)
    unit = made({"logmel": Series(values, lengths)})
    mean = crnn(embedding="mean")({"logmel": Series(values, lengths)})
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
def test_crnn_frames_match_xie2023(golden):
    content, logmel = golden("xieh97_frameword"), golden("xieh97_dcase2022_crnn")
    length = int(content["model_T"])
    values = torch.from_numpy(np.stack([logmel[f"{letter}_logmel_reflect"][:length] for letter in "AB"]))
    found = crnn("xieh97_negative_sampling_crnn")({"logmel": Series(values, torch.tensor([length, length]))}).values
    assert relative(found[:, ::4], content["model_audio_frames_l2"]) < 2e-5
