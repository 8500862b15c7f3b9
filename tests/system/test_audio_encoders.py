"""The CRNN and other encoders of frames: outputs of the original code, hand values, padding and other clips."""

import functools
from typing import Any

import filled
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from errors_of import largest, relative
from threads import one_thread  # noqa: F401  a fixture
from torch.nn.utils.rnn import pad_sequence

from system.audio.logmel import SILENCE, LogMelSlaney
from system.audio.network import pooled_over_time
from system.models.audio.crnn import Crnn, CrnnEncoder, Gru, GruEncoder
from system.models.audio.heads import PooledMlp
from system.models.batch import Series

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
BASELINE = {"kind": "logmel_slaney", "sample_rate": 44_100, "bands": 64, "window_seconds": 0.04, "hop_seconds": 0.02}
BASELINE |= {"lowest": 12, "highest": 8_000}
FROZEN = {"kind": "logmel", "sample_rate": 16_000, "bands": 8, "window_seconds": 0.04, "hop_seconds": 0.02, "stack": 1}


def series(values: list[torch.Tensor], padding: float = 0.0) -> Series:
    lengths = torch.tensor([len(one) for one in values])
    return Series(pad_sequence(values, batch_first=True, padding_value=padding), lengths)


def frames(*lengths: int, dim: int = 64) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [3 * torch.randn(length, dim) - 10 for length in lengths]


def embedded(encoder: CrnnEncoder | GruEncoder, values: Series, expert: str = "logmel") -> list[torch.Tensor]:
    """Embed every clip separately."""
    found = encoder({expert: values})
    if found.lengths is None:
        return list(found.values)
    return [own[:length] for own, length in zip(found.values, found.lengths.tolist(), strict=True)]


def test_pooling_and_the_mlp_behind_it_match_hand_values():
    values = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [torch.nan, torch.inf]], [[2.0, 2.0], [4.0, 0.0], [0.0, 7.0]]])
    lengths = torch.tensor([2, 3])
    for pooling, expected in (
        ("mean", [[2, -3], [2, 3]]),
        ("max", [[3, -2], [4, 7]]),
        ("max_mean", [[5, -5], [6, 10]]),
    ):
        assert pooled_over_time(values, lengths, pooling).tolist() == expected, pooling  # type: ignore[arg-type]
    half = pooled_over_time(torch.full((1, 3000, 1), 60.0, dtype=torch.float16), torch.tensor([3000]), "mean")
    assert half.item() == 60, "a sum in 16 bits would be infinite"
    settings = {"kind": "pooled_mlp", "experts": {"frozen": FROZEN}, "pooling": "max_mean", "hidden": 5, "dropout": 0.5}
    encoder = PooledMlp.model_validate(settings).build(3).eval()
    values = torch.randn(2, 7, 8).half()
    values[1, 4:] = torch.nan
    audio = {"frozen": Series(values, torch.tensor([7, 4]))}
    found, own = encoder(audio).values, values[1, :4].float()
    first, _, last = encoder.mlp
    assert torch.allclose(found[1], last(first(own.mean(0) + own.amax(0)).relu()), atol=1e-6)
    assert not torch.equal(encoder.train()(audio).values, found), "no dropout"


@pytest.mark.parametrize("embedding", ["frames", "mean"])
def test_gru_encoder_output_matches_a_direct_computation(embedding):
    settings = {"kind": "gru", "experts": {"frozen": FROZEN}, "width": 5, "hidden": 4, "dropout": 0.0}
    encoder = Gru.model_validate(settings | {"embedding": embedding}).build(8)
    clips = frames(5, 1, 8, dim=8)
    for clip, own in zip(clips, embedded(encoder, series(clips, 9.0), "frozen"), strict=True):
        hidden = encoder.gru(encoder.linear(clip))[0]
        assert torch.allclose(own, F.normalize(hidden if embedding == "frames" else hidden.mean(0), dim=-1), atol=1e-5)


def test_log_mel_frequencies_that_do_not_increase_are_refused():
    for lowest, highest in ((500, 400), (12, 22_051)):
        with pytest.raises(ValueError, match="lowest"):
            LogMelSlaney.model_validate(BASELINE | {"lowest": lowest, "highest": highest})


# The CRNN of DCASE 2022


@pytest.fixture(scope="module")
def golden(goldens):
    return functools.cache(lambda name: dict(np.load(goldens / f"{name}.npz")))


def crnn(name: str = "xieh97_dcase2022_crnn", **changes: Any) -> CrnnEncoder:
    """With filled weights."""
    settings = {"kind": "crnn", "experts": {"logmel": BASELINE}, "hidden": 150, "dropout": 0.0, "embedding": "frames"}
    made = Crnn.model_validate(settings | changes).build(0)
    names = {key: key.removeprefix("audio_enc.").replace("features.", "") for key in filled.described(name)[1]}
    missing, _ = made.load_state_dict({names[key]: one for key, one in filled.tensors(name).items()}, strict=False)
    assert not missing
    return made.eval()


@pytest.mark.parametrize("letter", "AB")
def test_logmel_slaney_matches_dcase2022_baseline(golden, letter):
    content = golden("xieh97_dcase2022_crnn")
    wave = (content[f"{letter}_wave_int16"] / 32768).astype(np.float32)
    found = LogMelSlaney.model_validate(BASELINE).load(CPU)([wave])[0]
    assert found.dtype == np.float32
    assert largest(found, content[f"{letter}_logmel_reflect"]) < 1e-4
    edges = np.abs(np.r_[found[:4], found[-4:]] - content[f"{letter}_logmel_constant_edges"]).max(1)
    assert edges[[0, -1]].min() > 1.3, "the ends are reflected"
    assert edges[1:-1].max() < 1e-4


@torch.inference_mode()
def test_crnn_layers_match_dcase2022_baseline(golden):
    content, made = golden("xieh97_dcase2022_crnn"), crnn()
    clips = [torch.from_numpy(content[f"{letter}_logmel_reflect"]) for letter in "AB"]
    values = series(clips, 7.0)
    unit, mean = made({"logmel": values}), crnn(embedding="mean")({"logmel": values})
    for row, letter in enumerate("AB"):
        maps = made.cnn(clips[row][None, None])
        hidden, _ = made.gru(maps.transpose(1, 2).flatten(2))
        assert relative(maps.transpose(1, 2).flatten(2)[0], content[f"{letter}_cnn"]) < 2e-5
        assert relative(hidden[0], content[f"{letter}_gru"]) < 2e-5
        own = made._frames(clips[row][None])[0]
        assert relative(own, content[f"{letter}_frames"]) < 2e-5
        assert relative(own.mean(0), content[f"{letter}_clip"]) < 2e-5
        assert relative(mean.values[row], content[f"{letter}_clip_l2"]) < 2e-5
        expected = content[f"{letter}_frames"] / np.linalg.norm(content[f"{letter}_frames"], axis=1, keepdims=True)
        assert relative(unit.values[row, : len(own)], expected) < 2e-5
    assert unit.lengths.tolist() == values.lengths.tolist()
    assert mean.lengths is None


@torch.inference_mode()
def test_crnn_frames_match_xie2023(golden):
    content, logmel = golden("xieh97_frameword"), golden("xieh97_dcase2022_crnn")
    length = int(content["model_T"])
    clips = [torch.from_numpy(logmel[f"{letter}_logmel_reflect"][:length]) for letter in "AB"]
    found = crnn("xieh97_negative_sampling_crnn")({"logmel": series(clips)}).values
    assert relative(found[:, ::4], content["model_audio_frames_l2"]) < 2e-5


def test_crnn_size_and_initial_weights_match_original_code():
    settings = {"kind": "crnn", "experts": {"logmel": BASELINE}, "hidden": 150, "dropout": 0.3, "embedding": "frames"}
    encoder = Crnn.model_validate(settings).build(0)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 732_354
    assert float(encoder.cnn[8].weight.detach().std()) == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    wide = Crnn.model_validate(settings | {"experts": {"logmel": BASELINE | {"bands": 128}}}).build(0)
    assert (encoder.gru.input_size, wide.gru.input_size) == (128, 256)


@torch.inference_mode()
def test_evaluation_of_a_clip_is_independent_of_padding_and_other_clips():
    clips, encoder = frames(30, 11, 4, 47, 3, 1, 11), crnn()
    wide = series([*clips, torch.zeros(56, 64)], 7.0)
    for clip, own in zip(clips, embedded(encoder, wide), strict=False):
        assert torch.allclose(embedded(encoder, series([clip]))[0], own, atol=1e-5)
        assert len(own) == max(len(clip), 4)
    silence = torch.full((1, 64), SILENCE)
    (short,) = embedded(encoder, series([clips[4]]))
    assert torch.equal(short, embedded(encoder, series([torch.cat([clips[4], silence])]))[0])


@torch.no_grad()
def test_crnn_that_includes_padding_in_training_matches_public_code():
    values = series(frames(30, 11, 47))
    mean, encoder, again = (crnn(embedding=how).train() for how in ("mean", "frames", "frames"))
    maps = again.cnn(values.values[:, None])
    hidden, _ = again.gru(maps.transpose(1, 2).flatten(2))
    whole = F.interpolate(hidden.transpose(1, 2), 47, mode="linear", align_corners=False).transpose(1, 2)
    assert torch.allclose(mean({"logmel": values}).values, F.normalize(whole.mean(1), dim=-1), atol=1e-5)
    given = encoder({"logmel": values})
    assert given.lengths.tolist() == [47, 47, 47]
    assert torch.allclose(given.values, F.normalize(whole, dim=-1), atol=1e-5)
    assert encoder.eval()({"logmel": values}).lengths.tolist() == [30, 11, 47]
