"""The five experts with filled weights: outputs of the original code, and mistakes that must be noticed."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filled
import numpy as np
import pytest
import scipy.signal
import torch
from filled import SHAPES, fill, rule
from loaded import KINDS, TIMELY, largest, loaded, relative, weights

from system.experts import PannsCnn14, Vggish, audioset, openl3, vggish, vggsound
from system.networks.frontend import published_log_mel
from system.networks.panns import Cnn14, fold_batch_norms, load_published
from system.networks.weights import Weights, read_weights

CPU = torch.device("cpu")
GOLDENS = {
    "panns_cnn14_16k": "panns_cnn14_16k",
    "panns_resnet38": "panns_resnet38",
    "openl3": "openl3_mel256_env_512",
    "vggsound": "vggsound_resnet18_H",
    "vggish": "vggish",
}
Golden = Callable[[str], dict[str, np.ndarray]]
Compute = Callable[..., np.ndarray]


@pytest.fixture(scope="module")
def golden(goldens: Path) -> Golden:
    return functools.cache(lambda kind: dict(np.load(goldens / f"{GOLDENS[kind]}.npz")))


@pytest.fixture(scope="module")
def frames(golden: Golden) -> Callable[..., dict[str, np.ndarray]]:
    """Frames of the golden waves by letter."""

    @functools.cache
    def of(kind: str, **settings: Any) -> dict[str, np.ndarray]:
        waves = [wave(golden(kind), letter) for letter in "ABS"]
        return dict(zip("ABS", loaded(kind, **settings)(waves), strict=True))

    return of


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Compute:
    """Frames of one wave by an expert that is loaded again after a mistake was planted in code or weights."""

    def of(kind: str, samples: np.ndarray, others: Weights | None = None, **settings: Any) -> np.ndarray:
        monkeypatch.setattr("system.networks.weights.read_weights", lambda *_: others or weights(kind))
        return KINDS[kind](kind=kind, weights="changed", **settings).load(CPU)([samples])[0]

    return of


def wave(content: dict[str, np.ndarray], letter: str) -> np.ndarray:
    return (content[f"{letter}_wave_int16"] / 32768).astype(np.float32)


def statistics(x: torch.Tensor) -> np.ndarray:
    return np.array([float(x.double().mean()), float(x.double().std()), float(x.abs().max())])


def symmetric(weights: Weights, keys: str) -> Weights:
    """Return the weights with DFT kernels under a symmetric window."""
    keys_of = [keys.format(part) for part in ("real", "imag")]
    size = weights.tensors[keys_of[0]].shape[2]
    change = torch.hann_window(size, periodic=False) / torch.hann_window(size).clamp_min(1e-12)
    changed = {key: weights.tensors[key] * change for key in keys_of}
    return Weights(Path("symmetric"), {**weights.tensors, **changed})


@pytest.mark.parametrize("kind", GOLDENS)
def test_expert_test_weights_match_the_stored_description(goldens: Path, kind: str) -> None:
    described = json.loads((goldens / "keys.json").read_text())[GOLDENS[kind]]["keys"]
    shapes = SHAPES[kind]()
    assert {key: list(shape) for key, shape in shapes.items()} == {key: one["shape"] for key, one in described.items()}
    for key, one in described.items():
        assert rule(key, shapes) == one["rule"], key
        if one["rule"] not in ("frozen", "left") and np.prod(one["shape"]) < 3e6:
            values = fill(key, shapes)
            assert values.flat[: len(one["head"])].tolist() == one["head"], key
            assert values.astype(np.float64).sum() == pytest.approx(one["sum"], rel=1e-9, abs=1e-6), key


def test_computed_mel_filters_and_dft_kernels_match_original_code(golden: Golden) -> None:
    assert largest(filled.panns_mel(), golden("panns_cnn14_16k")["melW"]) < 1e-7
    assert largest(filled.openl3_mel(), golden("openl3")["mel_basis"]) < 1e-6
    assert largest(filled.openl3_mel(is_area_normed=True), golden("openl3")["mel_basis_slaney"]) < 1e-7
    assert largest(audioset.mel_basis(), golden("vggish")["mel_matrix"]) < 1e-9
    for size, kind, names in (
        (512, "panns_cnn14_16k", ("stft_conv_real_rows", "stft_conv_imag_rows")),
        (2048, "openl3", ("dft_real_kernels_rows", "dft_imag_kernels_rows")),
    ):
        for kernels, name in zip(filled.dft_kernels(size, kind == "openl3"), names, strict=True):
            differing = kernels[[0, 1, 2, 10, 100, size // 2], 0] != golden(kind)[name]
            assert differing.mean() < 1e-3, "but for last bits"


@pytest.mark.parametrize(
    ("kind", "settings", "count"),
    [
        ("openl3", {}, 4_687_042),
        pytest.param("panns_cnn14_16k", {}, 81_033_231, marks=pytest.mark.slow),
        pytest.param("panns_resnet38", {}, 74_866_703, marks=pytest.mark.slow),
        ("vggsound", {}, 11_328_757),
        pytest.param("vggish", {}, 72_157_696, marks=pytest.mark.slow),
        ("vggish", {"output": "raw", "pca_weights": None}, 72_141_184),
    ],
)
@pytest.mark.slow
def test_expert_parameter_counts_match_their_checkpoints_and_published_counts(
    kind: str, settings: dict[str, Any], count: int
) -> None:
    expert = KINDS[kind](**{"kind": kind, **filled.files(kind), **settings})
    tensors = dict(weights(kind).tensors)
    if "pca_weights" in expert.weight_files():
        tensors |= read_weights(expert.weight_files()["pca_weights"]).tensors
    buffers = (".running_mean", ".running_var", ".num_batches_tracked")
    counted = [key for key in tensors if not key.endswith(buffers) and not key.startswith("speclayer.")]
    assert expert.parameters == sum(int(np.prod(tensors[key].shape)) for key in counted) == count


# PANNs


def panns_log_mel(content: dict[str, np.ndarray], letter: str) -> torch.Tensor:
    front_end = published_log_mel(weights("panns_cnn14_16k"), PannsCnn14.fft, PannsCnn14.hop)
    return front_end(torch.from_numpy(wave(content, letter))[None])[0]


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["A", "B", "S"])
def test_panns_frames_match_original_code(
    golden: Golden, frames: Callable[..., dict[str, np.ndarray]], letter: str
) -> None:
    content = golden("panns_cnn14_16k")
    assert largest(panns_log_mel(content, letter), content[f"{letter}_logmel"]) < 2e-3
    series = torch.from_numpy(frames("panns_cnn14_16k")[letter])
    pooled = series.amax(0) + series.mean(0)
    embedding = weights("panns_cnn14_16k").linear("fc1", 2048, 2048)(pooled).relu()
    logits = weights("panns_cnn14_16k").linear("fc_audioset", 2048, 527)(embedding)
    for found, name in ((series, "frames"), (pooled, "pooled"), (embedding, "embedding"), (logits, "logits")):
        assert relative(found.detach(), content[f"{letter}_{name}"]) < 2e-5, name
    assert largest(logits.sigmoid().detach(), content[f"{letter}_clipwise"]) < 2e-5


@torch.inference_mode()
@pytest.mark.slow
def test_output_mean_and_deviation_of_panns_blocks_match_original_code(golden: Golden) -> None:
    content = golden("panns_cnn14_16k")
    stages = json.loads(str(content["A_stages"]))
    network = Cnn14()
    load_published(network, weights("panns_cnn14_16k"))
    fold_batch_norms(network)
    scale, shift = weights("panns_cnn14_16k").batch_norm_scale_and_shift("bn0", 64, network.bn0.eps)
    x = (panns_log_mel(content, "A") * scale + shift)[None, None]
    for block in range(1, 7):
        x = network.get_submodule(f"conv_block{block}")(x)
        *expected, _, channels, columns, bands = stages[f"conv_block{block}"]
        assert x.shape[1:] == (channels, columns, bands)
        assert statistics(x) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize(
    ("mistake", "least"), [("symmetric Hann", 2e-4), ("constant padding", 4e-4), ("batch norm eps", 3e-3)]
)
@pytest.mark.slow
def test_planted_mistakes_in_panns_exceed_the_test_tolerance(
    changed: Compute, golden: Golden, monkeypatch: pytest.MonkeyPatch, mistake: str, least: float
) -> None:
    content, used, pad = golden("panns_cnn14_16k"), weights("panns_cnn14_16k"), torch.nn.functional.pad
    if mistake == "symmetric Hann":
        used = symmetric(used, "spectrogram_extractor.stft.conv_{}.weight")
    elif mistake == "constant padding":
        monkeypatch.setattr(torch.nn.functional, "pad", lambda x, sides, **_: pad(x, sides))
    else:
        monkeypatch.setattr(
            torch.nn.modules.batchnorm._BatchNorm.__init__, "__defaults__", (1e-3, 0.1, True, True, None, None)
        )
    assert relative(changed("panns_cnn14_16k", wave(content, "B"), used), content["B_frames"]) > least


# OpenL3


def openl3_log_mel(weights: Weights, content: dict[str, np.ndarray], letter: str) -> torch.Tensor:
    parts = openl3.one_second_windows(wave(content, letter))[content[f"{letter}_logmel_frame_index"]]
    return openl3.log_mel(torch.from_numpy(parts.copy()), openl3.build_front_end(weights))


@pytest.mark.parametrize("letter", [*(pytest.param(one, marks=pytest.mark.slow) for one in "AB"), "S"])
def test_openl3_frames_match_original_code(
    golden: Golden, frames: Callable[..., dict[str, np.ndarray]], letter: str
) -> None:
    content = golden("openl3")
    assert largest(openl3_log_mel(weights("openl3"), content, letter), content[f"{letter}_logmel"]) < 2e-2
    assert relative(frames("openl3")[letter], content[f"{letter}_embedding"]) < 5e-5


def test_openl3_without_leading_silence_matches_original_code(
    golden: Golden, frames: Callable[..., dict[str, np.ndarray]]
) -> None:
    assert relative(frames("openl3")["A"][1:], golden("openl3")["A_embedding_center_false"]) < 5e-5


@torch.inference_mode()
def test_openl3_before_last_pooling_matches_original_code(golden: Golden) -> None:
    content, own = golden("openl3"), weights("openl3")
    scale, shift = own.batch_norm_scale_and_shift("batch_normalization_1", 1, openl3.EPS)
    columns = openl3.log_mel(
        torch.from_numpy(openl3.one_second_windows(wave(content, "B")).copy()), openl3.build_front_end(own)
    )
    maps = openl3.build_convolutions(own)((columns * scale + shift)[:, None])
    assert maps.shape == (2, 512, 32, 24)
    found = torch.stack([maps.mean((2, 3)), maps.amax((2, 3))])
    assert relative(found, content["B_pre_pool_mean_max_per_channel"]) < 5e-5


def test_openl3_uses_the_mel_basis_of_its_checkpoint(changed: Compute, golden: Golden) -> None:
    content = golden("openl3")
    area = {"speclayer.mel_basis": torch.from_numpy(filled.openl3_mel(is_area_normed=True))}
    other = Weights(Path("area normed"), {**weights("openl3").tensors, **area})
    expected = content["B_logmel_slaney_mel"]
    assert largest(openl3_log_mel(other, content, "B")[: len(expected)], expected) < 2e-2
    embedding = changed("openl3", wave(content, "B"), other)
    assert relative(embedding, content["B_embedding_slaney_mel"]) < 5e-5
    assert relative(embedding, content["B_embedding"]) > 1e-2, "another mel basis must show"


@pytest.mark.parametrize(("mistake", "least"), [("symmetric Hann", 5e-4), ("batch norm eps", 2e-3)])
def test_planted_mistakes_in_openl3_exceed_the_test_tolerance(
    changed: Compute,
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
    mistake: str,
    least: float,
) -> None:
    content, used = golden("openl3"), weights("openl3")
    if mistake == "symmetric Hann":
        used = symmetric(used, "speclayer.dft_{}_kernels")
        assert largest(openl3_log_mel(used, content, "A"), content["A_logmel"]) > 1.5
    else:
        monkeypatch.setattr(openl3, "EPS", 1e-5)
    assert relative(changed("openl3", wave(content, "B"), used), content["B_embedding"]) > least


# VGGish

OUTPUTS = {
    "embedding_raw": {"output": "raw", "pca_weights": None},
    "pca": {"output": "pca"},
    "postprocessed": {"output": "quantised"},
}


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["A", "B", "S"])
def test_vggish_frames_match_original_code(
    golden: Golden, frames: Callable[..., dict[str, np.ndarray]], letter: str
) -> None:
    content = golden("vggish")
    columns = audioset.log_mel(wave(content, letter), vggish.OFFSET)
    assert largest(columns, content[f"{letter}_logmel"]) < 1e-4
    parts = vggish.cut_into_examples(wave(content, letter))
    assert [len(parts), 1, *parts.shape[1:]] == content[f"{letter}_examples_shape"].tolist()
    for name in ("embedding_raw", "pca"):
        assert relative(frames("vggish", **OUTPUTS[name])[letter], content[f"{letter}_{name}"]) < 2e-5
    difference = np.abs(frames("vggish", **OUTPUTS["postprocessed"])[letter] - content[f"{letter}_postprocessed"])
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 0.005


@pytest.mark.slow
@torch.inference_mode()
def test_output_mean_and_deviation_of_vggish_convolutions_match_original_code(golden: Golden) -> None:
    content = golden("vggish")
    parts = torch.from_numpy(vggish.cut_into_examples(wave(content, "A")).copy())
    maps = vggish.build_convolutions(weights("vggish"))(parts[:, None])
    assert statistics(maps) == pytest.approx(content["A_conv_stats"], rel=2e-5)


@pytest.mark.slow
def test_vggish_with_mel_basis_linear_in_hertz_exceeds_the_test_tolerance(
    changed: Compute, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = golden("vggish")
    linear = filled.triangles(filled.htk_edges(64, 125, 7500), 16_000, 512).T
    monkeypatch.setattr(audioset, "mel_basis", lambda: linear)
    found = audioset.log_mel(wave(content, "A"), vggish.OFFSET)
    assert largest(found, content["A_logmel"]) > 1e-2
    assert relative(changed("vggish", wave(content, "A"), output="raw"), content["A_embedding_raw"]) > 1e-3


def test_vggish_requires_pca_weights_unless_output_is_raw() -> None:
    with pytest.raises(ValueError, match="quantised"):
        Vggish(kind="vggish", weights="a.pth")
    with pytest.raises(ValueError, match="does"):
        Vggish(kind="vggish", weights="a.pth", pca_weights="b.pth", output="raw")


def test_vggish_quantising_matches_hand_values() -> None:
    values = torch.tensor([-3.0, -2.0, -1.0, 0.0, 0.1, 2.0, 9.0])
    assert vggish.quantise(values).tolist() == [0, 0, 64, 128, 134, 255, 255]  # 63.75, 127.5 (to even), 133.875


def test_vggish_projection_matches_hand_values() -> None:
    vectors, means = torch.tensor([[1.0, 2.0], [0.0, 3.0]]), torch.tensor([1.0, -1.0])
    assert vggish.apply_pca(torch.tensor([[2.0, 1.0]]), vectors, means).tolist() == [[5.0, 6.0]]


# VGGSound


def ten_seconds(samples: np.ndarray) -> np.ndarray:
    """The original repeats a clip and cuts it at ten seconds."""
    return np.tile(samples, 10)[:160_000]


@pytest.mark.parametrize("name", ["Anotile", "B", "S"])
def test_vggsound_frames_match_original_code(
    golden: Golden, frames: Callable[..., dict[str, np.ndarray]], name: str
) -> None:
    content = golden("vggsound")
    found = vggsound.spectrogram(wave(content, name[0]))
    assert list(found.shape) == content[f"{name}_spec_shape"].tolist()
    assert largest(found if name == "Anotile" else found[:, ::10], content[f"{name}_spec"]) < 1e-4
    series = frames("vggsound")[name[0]]
    assert relative(series, content[f"{name}_layer4_freqmean"]) < 2e-5
    logits = weights("vggsound").linear("audnet.fc", 512, 309)(torch.from_numpy(series.mean(0))).detach()
    assert relative(series.mean(0), content[f"{name}_avgpool"]) < 2e-5
    assert relative(logits, content[f"{name}_logits"]) < 2e-5
    assert largest(logits.softmax(0), content[f"{name}_softmax"]) < 2e-5


def test_vggsound_on_ten_second_input_matches_original_code(changed: Compute, golden: Golden) -> None:
    content = golden("vggsound")
    repeated = ten_seconds(wave(content, "A"))
    assert largest(vggsound.spectrogram(repeated)[:, ::10], content["A_spec"]) < 1e-4
    assert relative(changed("vggsound", repeated), content["A_layer4_freqmean"]) < 2e-5


@torch.inference_mode()
def test_output_mean_and_deviation_of_vggsound_layers_match_original_code(golden: Golden) -> None:
    content = golden("vggsound")
    network = vggsound.build_residual_network(weights("vggsound"))
    stages = json.loads(str(content["Anotile_stages"]))
    x = torch.from_numpy(vggsound.spectrogram(wave(content, "A")))[None, None]
    for position, layer in enumerate(network):
        x = layer(x)
        if position >= 4 and position % 2 == 0:  # after the second block of every layer
            name = f"layer{position // 2 - 1}"
            assert statistics(x) == pytest.approx(stages[name][:3], rel=2e-5), name
    assert relative(x[0], content["Anotile_layer4"]) < 2e-5


@pytest.mark.parametrize("mistake", ["no one-sided doubling", "no detrending"])
def test_planted_mistakes_in_vggsound_exceed_the_test_tolerance(
    changed: Compute, golden: Golden, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    content = golden("vggsound")
    original = scipy.signal.spectrogram

    def single(*args: Any, **settings: Any) -> Any:
        frequencies, times, density = original(*args, **settings)
        density[1:-1] /= 2
        return frequencies, times, density

    if mistake == "no detrending":
        monkeypatch.setattr(scipy.signal, "spectrogram", functools.partial(original, detrend=False))
        assert relative(changed("vggsound", wave(content, "A")), content["Anotile_layer4_freqmean"]) > 1e-3
    else:
        monkeypatch.setattr(scipy.signal, "spectrogram", single)
        assert largest(vggsound.spectrogram(wave(content, "A")), content["Anotile_spec"]) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", TIMELY)
def test_expert_frames_are_the_same_in_channels_last_layout(
    changed: Compute, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    samples = np.random.default_rng(4).normal(0, 0.1, 24_000).astype(np.float32)
    settings = {"output": "raw"} if kind == "vggish" else {}
    expected = changed(kind, samples, **settings)
    monkeypatch.setattr(torch.Tensor, "to_mkldnn", lambda _: pytest.fail("not without oneDNN"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert relative(changed(kind, samples, **settings), expected) < 5e-6
