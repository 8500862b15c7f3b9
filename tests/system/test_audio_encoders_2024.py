"""EfficientAT and ATST-Frame with filled weights: outputs of the original code, and mistakes that must be noticed."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filled
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loaded import largest, relative
from quick import first_quick
from threads import one_thread  # noqa: F401  a fixture
from torch import nn

from data_tools.errors import KitError
from system.models.audio import AtstFrame as AtstSettings
from system.models.audio import EfficientAT
from system.models.batch import Series
from system.networks import atst_frame, efficientat
from system.networks.atst_frame import AtstFrame
from system.networks.efficientat import MobileNet, MobileNetOnWaves
from system.networks.efficientat_published import VARIANTS, round_to_multiple_of_8
from system.networks.kaldi_log_mel import KaldiLogMel
from system.networks.segment import count_clip_frames

pytestmark = pytest.mark.usefixtures("one_thread")

Golden = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def golden(goldens: Path) -> Golden:
    return dict(np.load(goldens / "audio_encoders_2024.npz")) | {
        key: value for key, value in np.load(goldens / "passt.npz").items() if key.endswith("_wave_int16")
    }


def wave(golden: Golden, letter: str) -> torch.Tensor:
    """(1, N) at 32 kHz; A3 is the first three seconds of A, Q the same at -80 dB."""
    samples = golden[f"{'A' if letter == 'Q' else letter[0]}_wave_int16"][: 96_000 if letter in ("A3", "Q") else None]
    return torch.from_numpy(samples.astype(np.float32) / 32_768)[None] * (1e-4 if letter == "Q" else 1)


@torch.no_grad()
def fill(network: nn.Module) -> None:
    values = network.state_dict()
    shapes = {key: tuple(value.shape) for key, value in values.items()}
    for key, value in values.items():
        if not key.endswith("num_batches_tracked"):
            value.copy_(torch.from_numpy(filled.fill(key, shapes)))


@functools.cache
def mobile(name: Any) -> MobileNet:
    made = MobileNet(name)
    fill(made)
    return made.eval()


def on_waves(made: MobileNet, name: Any) -> MobileNetOnWaves:
    return MobileNetOnWaves(KaldiLogMel(False), made, VARIANTS[name].dim).eval()


def whole(waves: torch.Tensor) -> torch.Tensor:
    return torch.full((len(waves),), waves.shape[1])


NAMES = ("mn04", "mn10", "mn40")


@pytest.mark.parametrize("name", NAMES)
def test_efficientat_keys_match_published_checkpoints(goldens: Path, name: Any) -> None:
    described = json.loads((goldens / "keys_audio_encoders_2024.json").read_text())[name]["keys"]
    made = MobileNet(name).state_dict()
    expected = {key: tuple(one["shape"]) for key, one in described.items() if not key.startswith("classifier")}
    assert {key: tuple(value.shape) for key, value in made.items()} == expected
    shapes = {key: tuple(one["shape"]) for key, one in described.items()}
    for key in ("features.0.0.weight", "features.4.block.2.conc_se_layers.0.fc1.bias", "features.16.1.running_var"):
        assert filled.rule(key, shapes) == described[key]["rule"]
        if name == "mn10":
            assert filled.fill(key, shapes).sum(dtype=np.float64) == pytest.approx(described[key]["sum"])


TOLERANCES = {"mn04": 1e-4, "mn10": 1e-4, "mn40": 1e-3}


@pytest.mark.parametrize(
    ("name", "letter"), first_quick([("mn10", "B"), ("mn04", "A3"), ("mn10", "A3"), ("mn10", "A"), ("mn40", "A3")], 2)
)
@torch.inference_mode()
def test_efficientat_output_matches_original_code(golden: Golden, name: Any, letter: str) -> None:
    made, waves = on_waves(mobile(name), name), wave(golden, letter)
    maps = made.network(made.front_end(waves))
    assert maps.shape == tuple(golden[f"{name}_{letter}_map_shape"])
    found = made(waves, whole(waves))[0]
    assert relative(found, golden[f"{name}_{letter}_features"]) < TOLERANCES[name]
    frames, lengths = made.frames(waves, whole(waves))
    assert lengths.tolist() == [maps.shape[3]]
    if f"{name}_{letter}_frames" in golden:
        assert relative(frames[0][:: 4 if letter == "A" else 1], golden[f"{name}_{letter}_frames"]) < 1e-4
    if f"{name}_{letter}_logits" in golden:
        shapes = {"classifier.2.weight": (1280, 960), "classifier.2.bias": (1280,)}
        shapes |= {"classifier.5.weight": (527, 1280), "classifier.5.bias": (527,)}
        values = {key: torch.from_numpy(filled.fill(key, shapes)) for key in shapes}
        hidden = F.hardswish(F.linear(found, values["classifier.2.weight"], values["classifier.2.bias"]))
        logits = F.linear(hidden, values["classifier.5.weight"], values["classifier.5.bias"])
        assert relative(logits, golden[f"{name}_{letter}_logits"]) < 1e-4


@torch.inference_mode()
def test_output_mean_and_deviation_of_efficientat_layers_match_original_code(golden: Golden) -> None:
    x = KaldiLogMel(False).eval()(wave(golden, "A3"))[:, None]
    for layer, (mean, deviation, peak, *shape) in zip(
        mobile("mn10").features, json.loads(str(golden["mn10_A3_stages"])).values(), strict=True
    ):
        x = layer(x)
        assert list(x.shape) == shape
        found = [float(x.double().mean()), float(x.double().std()), float(x.abs().max())]
        assert found == pytest.approx([mean, deviation, peak], rel=1e-4, abs=1e-4)


def other_epsilon(made: MobileNet, _: pytest.MonkeyPatch) -> None:
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-5


def hard_gates(_: MobileNet, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "sigmoid", F.hardsigmoid)


def silu(made: MobileNet, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.Hardswish, "forward", lambda _, x: F.silu(x))


MISTAKES: dict[str, tuple[float, Callable[[MobileNet, pytest.MonkeyPatch], None]]] = {
    "another epsilon of the batch norms": (0.02, other_epsilon),
    "hard sigmoid in the gates": (0.2, hard_gates),
    "SiLU for hard swish": (0.2, silu),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_planted_mistakes_in_efficientat_exceed_the_test_tolerance(
    golden: Golden, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    least, plant = MISTAKES[mistake]
    made, waves = MobileNet("mn10"), wave(golden, "A3")
    fill(made)
    plant(made, monkeypatch)
    found = on_waves(made, "mn10")(waves, whole(waves))[0]
    assert relative(found, golden["mn10_A3_features"]) > least


def test_efficientat_channels_are_multiples_of_eight() -> None:
    assert [round_to_multiple_of_8(number) for number in (1, 6.4, 9.6, 16, 25.6, 35.2, 44.8, 268.8)] == [
        8,
        8,
        16,
        16,
        24,
        32,
        48,
        272,
    ]
    assert [VARIANTS[name].dim for name in ("mn04", "mn10", "mn20", "mn40")] == [384, 960, 1920, 3840]


@pytest.mark.parametrize("name", first_quick(["mn04", "mn10", "mn40"], 2))
def test_efficientat_parameter_count_matches_published(goldens: Path, name: Any) -> None:
    """The classifier is not counted."""
    described = json.loads((goldens / "keys_audio_encoders_2024.json").read_text())[name]
    classifier = sum(int(np.prod(described["keys"][key]["shape"])) for key in described["keys"] if "classifier" in key)
    assert sum(one.numel() for one in mobile(name).parameters()) == described["n_parameters"] - classifier


# ATST-Frame


@functools.cache
def atst(is_floor_of_batch: bool = False) -> AtstFrame:
    made = AtstFrame(is_floor_of_batch)
    fill(made)
    return made.eval()


@pytest.mark.slow
def test_atst_keys_match_published_checkpoint(goldens: Path) -> None:
    described = json.loads((goldens / "keys_audio_encoders_2024.json").read_text())["atst_frame"]
    expected = {key: tuple(one["shape"]) for key, one in described["keys"].items()}
    assert {key: tuple(value.shape) for key, value in atst().state_dict().items()} == expected
    assert sum(one.numel() for one in atst().parameters()) == described["n_parameters"]
    for key in ("pos_embed", "blocks.3.attn.qkv.weight"):
        assert filled.fill(key, expected).sum(dtype=np.float64) == pytest.approx(described["keys"][key]["sum"])


def mel_error(golden: Golden, made: AtstFrame) -> float:
    return largest(made.log_mel(wave(golden, "A3"))[0], golden["atst_A3_mel"])


def frames_error(golden: Golden, made: AtstFrame, letter: str = "A3") -> float:
    waves = wave(golden, letter)
    with torch.inference_mode():
        frames, lengths = made.frames(waves, whole(waves))
        mean = made(waves, whole(waves))[0]
    assert lengths.tolist() == [frames.shape[1]]
    errors = [relative(mean, golden[f"atst_{letter}_mean"])]
    if f"atst_{letter}_frames" in golden:
        errors.append(relative(frames[0][:: 1 if letter == "A3" else 10], golden[f"atst_{letter}_frames"]))
    return max(errors)


@pytest.mark.parametrize("letter", ["B", "Q", *(pytest.param(one, marks=pytest.mark.slow) for one in ("A3", "A"))])
def test_atst_frames_match_original_code(golden: Golden, letter: str) -> None:
    if letter != "Q":
        assert atst().log_mel(wave(golden, letter))[:, None].shape == tuple(golden[f"atst_{letter}_mel_shape"])
    assert frames_error(golden, atst(), letter) < 2e-5


def test_atst_log_mel_matches_original_code(golden: Golden) -> None:
    assert mel_error(golden, atst()) < 1e-4
    quiet = atst().log_mel(wave(golden, "Q"))
    assert largest(np.array([float(quiet.min()), float(quiet.max())]), golden["atst_Q_mel_min_max"]) < 1e-4


@pytest.mark.slow
def test_atst_log_mel_floor_is_per_batch_in_training_and_per_segment_in_evaluation(golden: Golden) -> None:
    both = torch.cat([wave(golden, "A3"), wave(golden, "B")[:, :96_000] / 100])
    of_batch = atst(True).train().log_mel(both)[1]
    assert torch.equal(atst(True).eval().log_mel(both)[1], atst().log_mel(both[1:])[0]), "in training alone"
    of_segment = atst().log_mel(both)[1]
    assert largest(of_batch[:, ::8], golden["atst_batch_mel_second"]) < 1e-4
    assert [float(of_batch.min()), float(of_segment.min())] == pytest.approx(golden["atst_batch_floor"].tolist(), 1e-4)
    assert torch.equal(of_segment, atst().log_mel(both[1:])[0]), "alone or in company"
    assert largest(of_batch, of_segment.numpy()) > 0.1


HANN = torch.hann_window


@pytest.mark.slow
def test_planted_mistakes_in_atst_log_mel_exceed_the_test_tolerance(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = AtstFrame(False)
    made.window = HANN(1024, periodic=False)
    assert mel_error(golden, made) > 1e-3
    atst_frame._mel_filters.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(atst_frame, "HIGHEST", 8000.0)
        wrong = AtstFrame(False)
    atst_frame._mel_filters.cache_clear()
    assert mel_error(golden, wrong) > 0.1


def from_zero(made: AtstFrame, _: pytest.MonkeyPatch) -> None:
    made.pos_embed.copy_(made.pos_embed.roll(1, 1))


def time_major(made: AtstFrame, _: pytest.MonkeyPatch) -> None:
    layer = made.patch_embed["patch_embed"]
    layer.weight.copy_(layer.weight.unflatten(1, (4, 64)).transpose(1, 2).flatten(1).clone())  # type: ignore[operator]


def tanh_gelu(_: AtstFrame, patch: pytest.MonkeyPatch) -> None:
    plain = F.gelu
    patch.setattr(F, "gelu", lambda x: plain(x, approximate="tanh"))


@pytest.mark.parametrize(("plant", "least"), [(from_zero, 0.1), (time_major, 0.1), (tanh_gelu, 5e-5)])
@pytest.mark.slow
def test_planted_mistakes_in_atst_exceed_the_test_tolerance(
    golden: Golden,
    plant: Callable[[AtstFrame, pytest.MonkeyPatch], None],
    least: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = AtstFrame(False).eval()
    fill(made)
    with torch.no_grad():
        plant(made, monkeypatch)
    assert frames_error(golden, made) > least


def test_atst_without_the_lower_limit_of_its_log_mel_exceeds_the_test_tolerance(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atst_frame, "LOW", -500.0)
    assert frames_error(golden, atst(), "Q") > 0.05


@pytest.mark.slow
def test_atst_checkpoint_with_key_prefixes_is_loaded(tmp_path: Path) -> None:
    plain = atst().state_dict()
    student = {f"model.student.encoder.encoder.{key}": torch.zeros_like(value) for key, value in plain.items()}
    teacher = {f"model.teacher.encoder.encoder.{key}": value for key, value in plain.items()}
    path = tmp_path / "atstframe_base.ckpt"
    torch.save({"state_dict": student | teacher, "epoch": 3}, path)
    made = AtstFrame(False)
    made.load_published(path)
    assert all(torch.equal(value, plain[key]) for key, value in made.state_dict().items())
    torch.save({"other": torch.zeros(3)}, path)
    with pytest.raises(KitError, match="tensor"):
        made.load_published(path)


def test_number_of_frames_that_begin_within_a_clip_matches_hand_values() -> None:
    lengths = torch.tensor([1, 40, 41, 80, 100])
    assert count_clip_frames(lengths, 100, 5).tolist() == [1, 2, 3, 4, 5]
    assert count_clip_frames(torch.tensor([1]), 1000, 1).tolist() == [1]


# As encoders of clips


def mobile_settings(**changes: Any) -> dict[str, Any]:
    values = {"kind": "efficientat", "network": "mn04", "weights": None, "trainable": True, "segment_seconds": 2}
    values |= {"hop_seconds": 2, "max_seconds": 30, "edge_jitter": False, "spec_augment": None}
    return values | {"segment_pooling": "mean", "hidden": None} | changes


def atst_settings(**changes: Any) -> dict[str, Any]:
    values = mobile_settings(kind="atst_frame", floor="segment")
    del values["network"], values["edge_jitter"], values["spec_augment"]
    return values | changes


def clips(*seconds: float) -> dict[str, Series]:
    random, lengths = np.random.default_rng(1), [round(one * 32_000) for one in seconds]
    values = np.zeros((len(seconds), max(lengths), 1), np.int16)
    for row, length in zip(values, lengths, strict=True):
        row[:length, 0] = random.integers(-9000, 9000, length)
    return {"waveform": Series(torch.from_numpy(values), torch.tensor(lengths))}


def one_clip(audio: dict[str, Series], index: int) -> dict[str, Series]:
    of = audio["waveform"]
    length = int(of.lengths[index])
    return {"waveform": Series(of.values[index : index + 1, :length], of.lengths[index : index + 1])}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(EfficientAT.model_validate(mobile_settings()), id="efficientat"),
        pytest.param(AtstSettings.model_validate(atst_settings()), id="atst_frame", marks=pytest.mark.slow),
    ],
)
def test_clip_embedding_is_the_same_alone_and_in_a_batch(settings: EfficientAT | AtstSettings) -> None:
    made, audio = settings.build(8).eval(), clips(5, 0.3, 2)
    with torch.inference_mode():
        together = made(audio).values
        for index, row in enumerate(together):
            assert relative(made(one_clip(audio, index)).values[0], row.numpy()) < 1e-5
    assert made.train()(audio).values.requires_grad
    for name, part in made.parts().items():
        assert settings.trained_parts[name] == any(one.requires_grad for one in part.parameters())


def test_efficientat_refuses_the_checkpoint_of_another_network(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(mobile("mn04").state_dict(), path)
    made = MobileNet("mn04")
    efficientat.load_published(made, path)
    assert torch.equal(made.features[16][1].running_var, mobile("mn04").features[16][1].running_var)  # type: ignore[index]
    with pytest.raises(KitError, match="shape"):
        efficientat.load_published(MobileNet("mn10"), path)


@pytest.mark.parametrize(("weights", "momentum"), [(None, 0.1), ("x.pt", 0.01)])
def test_efficientat_batch_norm_momentum_is_lower_with_published_weights(weights: str | None, momentum: float) -> None:
    made = EfficientAT.model_validate(mobile_settings(weights=weights)).build(8)
    assert {one.momentum for one in made.modules() if isinstance(one, nn.BatchNorm2d)} == {momentum}
