"""All audio networks with filled weights against the outputs of their original code, in one table."""

import functools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filled
import modern
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from errors_of import relative
from quick import first_quick
from torch import nn

from system.audio import kind_class
from system.audio.beats import distance_buckets
from system.audio.eat import position_table
from system.audio.mel import KaldiLogMel, kaldi_filters, kaldi_log_mel
from system.audio.network import AudioNetwork, Layers

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
Tensors = dict[str, torch.Tensor]


@functools.cache
def content(file: str) -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / f"{file}.npz"))


def shapes_of(file: str, entry: str) -> filled.Shapes:
    described = json.loads((GOLDEN / f"{file}.json").read_text())[entry]["keys"]
    return {key: tuple(one["shape"]) for key, one in described.items()}


def filled_tensors(shapes: filled.Shapes) -> Tensors:
    return {key: torch.from_numpy(values) for key, values in filled.tensors(shapes)}


def openl3_tensors() -> Tensors:
    return filled_tensors(filled.openl3_shapes()) | {"speclayer.mel_basis": torch.from_numpy(filled.openl3_mel())}


def eat_tensors() -> Tensors:
    """Under the names of the hub; the description has those of fairseq."""
    image = "modality_encoders.IMAGE."
    pairs = ((f"{image}context_encoder.norm.", "pre_norm."), (image, ""))
    found = modern.tensors("eat_base")
    for old, new in pairs:
        found = {key.replace(old, new): value for key, value in found.items()}
    return {f"model.{key}": value for key, value in found.items()}


@dataclass(frozen=True)
class Row:
    """A network: its settings, tensors, goldens, and where they are.

    vectors, frames: Name in the golden, and step between stored frames, by clip. ignored: Other tensors of the file.
    """

    settings: dict[str, Any]
    tensors: Callable[[], Tensors]
    files: tuple[str, ...]
    vectors: dict[str, str] = field(default_factory=dict)
    frames: dict[str, tuple[str, int]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    tolerance: float = 2e-5
    quick: str = ""  # clip of the fast suite; EAT gives the frames of 10 s, those of the padding after the clip's

    def network(self, **changes: Any) -> AudioNetwork:
        return kind_class(self.settings["kind"]).model_validate({"weights": None} | self.settings | changes)

    def golden(self, key: str) -> np.ndarray:
        return next(content(file)[key] for file in self.files if key in content(file))

    def wave(self, clip: str) -> torch.Tensor:
        """(1, N): A, B, A3 (3 s of A), Q (A3 at -80 dB), C (both), S (silence), A10 (A, repeated to 10 s)."""
        rate = self.network().rate
        if clip == "S" and not any("S_wave_int16" in content(file) for file in self.files):
            return torch.zeros(1, 10 * rate)
        a, b = (self.golden(f"{letter}_wave_int16").astype(np.float32) / 32_768 for letter in "AB")
        waves = {"A": a, "B": b, "A3": a[: 3 * rate], "Q": a[: 3 * rate] * np.float32(1e-4), "S": np.zeros(1)}
        waves |= {"A10": np.tile(a, 10)[: 10 * rate], "C": np.concatenate([a, b, a[::-1], a[:104_000]])}
        found = self.golden("S_wave_int16") / 32_768 if clip == "S" else waves[clip]
        return torch.from_numpy(np.ascontiguousarray(found, np.float32))[None]


TAGGED = "ABS"
OF_NORM = "parametrizations.weight.original{}"  # names of weight norms in torch 2


def tagged(form: str, step: int = 0) -> dict[str, Any]:
    return {clip: (form.format(clip), step) if step else form.format(clip) for clip in TAGGED}


def panns(network: str, shapes: Callable[[], filled.Shapes], file: str) -> Row:
    settings, ignored = {"kind": "panns", "network": network}, ("fc", "spectrogram", "logmel")
    return Row(
        settings, lambda: filled_tensors(shapes()), (file,), tagged("{}_pooled"), tagged("{}_frames", 1), ignored
    )


def passt(network: str, *sizes: int, clips: tuple[str, ...] = ("A3",), **more: Any) -> Row:
    vectors = {clip: f"{network.replace('20s', 't20')}_{clip}_features" for clip in clips}
    settings, shapes = {"kind": "passt", "network": network}, filled.passt_shapes(*sizes)
    return Row(settings, lambda: filled_tensors(shapes), ("passt",), vectors, ignored=("head",), **more)


def of_2024(name: str, kind: dict[str, Any], vectors: dict[str, str], ignored: str, **more: Any) -> Row:
    tensors = lambda: filled_tensors(shapes_of("keys_audio_encoders_2024", name))  # noqa: E731
    return Row(kind, tensors, ("audio_encoders_2024", "passt"), vectors, ignored=(ignored,), **more)


def efficientat(name: str, *clips: str, tolerance: float = 1e-4, **more: Any) -> Row:
    vectors, kind = {clip: f"{name}_{clip}_features" for clip in clips}, {"kind": "efficientat", "network": name}
    return of_2024(name, kind, vectors, "classifier", tolerance=tolerance, **more)


VGGSOUND = {"A": ("Anotile_layer4_freqmean", 1), "A10": ("A_layer4_freqmean", 1), "S": ("S_layer4_freqmean", 1)}
ATST = {"A": ("atst_A_frames", 10), "A3": ("atst_A3_frames", 1), "B": ("atst_B_frames", 10)}
MN10 = {"A": ("mn10_A_frames", 4), "A3": ("mn10_A3_frames", 1), "B": ("mn10_B_frames", 1)}
PASST = {clip: (f"s16_{clip}_sequence_freqmean", 1) for clip in ("A", "A3")}
ROWS = {
    "panns16": panns("cnn14_16k", filled.panns_shapes, "panns_cnn14_16k"),
    "resnet38": panns("resnet38", filled.resnet38_shapes, "panns_resnet38"),
    "openl3": Row(
        {"kind": "openl3"},
        openl3_tensors,
        ("openl3_mel256_env_512",),
        frames=tagged("{}_embedding", 1),
        ignored=("speclayer.dft",),
        tolerance=5e-5,
        quick="S",
    ),
    "vggsound": Row(
        {"kind": "vggsound"},
        lambda: filled_tensors(filled.vggsound_shapes()),
        ("vggsound_resnet18_H",),
        {"A": "Anotile_avgpool", "B": "B_avgpool", "S": "S_avgpool"},
        VGGSOUND,
        ("audnet.fc",),
        quick="S",
    ),
    "vggish": Row(
        {"kind": "vggish", "pca_weights": None},
        lambda: filled_tensors(filled.vggish_shapes()),
        ("vggish",),
        frames=tagged("{}_embedding_raw", 1),
        ignored=("pproc",),
    ),
    "passt_s16": passt("s16", clips=("A", "A3", "B", "S"), frames=PASST),
    "passt_s10": passt("s10", 10, 99, clips=("A", "A3", "B")),
    "passt_l10": passt("l10", 10, 99, 7),
    "passt_20s": passt("20s", 10, 200, clips=("A",)),
    "mn04": efficientat("mn04", "A3", quick="A3"),
    "mn10": efficientat("mn10", "A", "A3", "B", frames=MN10),
    "mn40": efficientat("mn40", "A3", tolerance=1e-3),
    "atst": of_2024(
        "atst_frame",
        {"kind": "atst_frame"},
        {clip: f"atst_{clip}_mean" for clip in ("A", "A3", "B", "Q")},
        "mask_embed",
        frames=ATST,
    ),
    "beats": Row(
        {"kind": "beats"},
        lambda: modern.tensors("beats_ft"),
        ("modern_encoders",),
        {clip: f"beats_{clip}_mean" for clip in ("A", "A3", "B", "C")},
        {"A": ("beats_A_frames_every2", 2), "A3": ("beats_A3_frames", 1), "C": ("beats_C_frames_every8", 8)},
        ("predictor", "encoder.layers"),
    ),
    "eat": Row(
        {"kind": "eat"},
        eat_tensors,
        ("modern_encoders",),
        {clip: f"eat_{clip}1024_cls" for clip in ("A", "B")},
        {clip: (f"eat_{clip}1024_frames_every2", 2) for clip in ("A", "B")},
        ("model.",),
    ),
    "m2d_clap": Row(
        {"kind": "m2d_clap"},
        lambda: modern.tensors("m2d_clap_2025"),
        ("modern_encoders",),
        {clip: f"m2d_clap_2025_{clip}_embedding" for clip in ("A", "A3", "B", "C")},
        {"A": ("m2d_clap_2025_A_frames_every4", 4), "C": ("m2d_clap_2025_C_frames_every16", 16)},
    ),
}


@contextmanager
def without_draws() -> Iterator[None]:
    """Build networks without drawing their first weights, which takes longer than a forward pass."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "trunc_normal_", "normal_", "uniform_"):
            patch.setattr(nn.init, name, lambda tensor, *_, **__: tensor)
        yield


@functools.lru_cache(maxsize=1)
def layers_of(name: str) -> tuple[Layers, frozenset[str]]:
    """The network with its filled weights, and the names of all tensors of the file."""
    tensors = ROWS[name].tensors()
    with without_draws():
        made = ROWS[name].network().layers()
    made.load(tensors)
    return made.eval().requires_grad_(False), frozenset(tensors)


def whole(waves: torch.Tensor) -> torch.Tensor:
    return torch.full((len(waves),), waves.shape[1])


@torch.inference_mode()
def error_of(row: Row, made: Layers, clip: str) -> float:
    """Largest relative error of the vector and the frames of a clip."""
    waves, errors = row.wave(clip), []
    if clip in row.vectors:
        errors.append(relative(made(waves, whole(waves))[0], row.golden(row.vectors[clip])))
    if clip in row.frames:
        (key, step), (frames, counts) = row.frames[clip], made.frames(waves, whole(waves))
        assert row.settings["kind"] == "eat" or counts.tolist() == [frames.shape[1]]
        errors.append(relative(frames[0, ::step], row.golden(key)))
    return max(errors)


def require_no_other_tensors(name: str) -> None:
    """The published file has no tensors but those of the network and the ignored ones."""
    made, published = layers_of(name)
    own = made.state_dict()
    renamed = {"conc_se_layers.0.": "", "weight_g": OF_NORM.format(0), "weight_v": OF_NORM.format(1)}
    for old, new in renamed.items():
        published = frozenset(key.replace(old, new) for key in published)
    assert all(key in own or key.startswith(ROWS[name].ignored) for key in published if not key.startswith("model."))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.quick])
def test_outputs_of_a_clip_match_the_original_code(name):
    assert error_of(ROWS[name], layers_of(name)[0], ROWS[name].quick) < ROWS[name].tolerance
    require_no_other_tensors(name)


# Inputs of networks: name, clip, function of the layers, golden, selection of columns, tolerance


def front_end(name: str, clip: str) -> torch.Tensor:
    """The log-mel (bands, T) of a clip."""
    with without_draws():
        made, waves = ROWS[name].network().layers().eval(), ROWS[name].wave(clip)
    if name.startswith("passt"):
        return KaldiLogMel(False)(waves)[0, 0]
    if name == "beats":
        return ((kaldi_log_mel(waves * 2**15, 0.85) - 15.41663) / (2 * 6.55582))[0].T
    if name == "eat":
        return made.log_mel(waves, whole(waves))[0, : 1 + (waves.shape[1] - 400) // 160].T
    if name == "m2d_clap":
        return (made.mel(waves) + 2**-23).log()[0].T.float()
    if name == "vggsound":
        return made.spectrogram(waves)[0]
    return made.log_mel(waves)[0]


FRONT_ENDS: list[tuple[str, str, str, float]] = [
    ("passt_s16", "A3", "A3_logmel", 5e-4),
    ("passt_s16", "B", "B_logmel_at", 5e-4),
    ("panns16", "A", "A_logmel", 2e-3),
    ("resnet38", "B", "B_logmel", 2e-3),
    ("vggsound", "A", "Anotile_spec", 1e-4),
    ("beats", "A3", "beats_A3_fbank", 5e-4),
    ("beats", "B", "beats_B_fbank_at", 1e-3),
    ("eat", "A3", "eat_A3_fbank", 5e-4),
    ("eat", "A", "eat_A_fbank_at", 1e-3),
    ("atst", "A3", "atst_A3_mel", 1e-4),
    ("m2d_clap", "A3", "m2d_A3_logmel", 1e-3),
    ("m2d_clap", "B", "m2d_B_logmel_at", 1e-3),
]


@pytest.mark.parametrize(("name", "clip", "key", "tolerance"), FRONT_ENDS)
def test_log_mels_match_the_original_code(name, clip, key, tolerance):
    row, expected = ROWS[name], ROWS[name].golden(key)
    found = front_end(name, clip)
    if key.endswith("_at"):
        found = found[:, row.golden(key.replace("_at", "_frames"))]
    found = found if found.shape == expected.shape else found.T
    assert np.abs(found.numpy() - expected).max() < tolerance


@pytest.mark.parametrize(("exponent", "scale"), [(0.85, 2.0**15), (1.0, 1.0)])
def test_kaldi_log_mel_of_recordings_matches_numpy(shared, exponent, scale):
    for samples in [*modern.recordings(shared), np.zeros(16_000, np.float32)]:
        found = kaldi_log_mel(torch.from_numpy(samples)[None] * scale, exponent)[0]
        assert np.abs(found.numpy() - modern.kaldi_log_mel(samples, exponent, scale)).max() < 5e-4


def test_openl3_log_mel_and_the_filters_of_its_checkpoint_match_the_original_code():
    row, (made, _) = ROWS["openl3"], layers_of("openl3")
    waves = F.pad(row.wave("B"), (24_000, 48_000)).unfold(1, 48_000, 24_000)[0]
    expected = row.golden("B_logmel")
    found = made.log_mel(waves)[: len(expected)]  # type: ignore[operator]
    assert np.abs(found.numpy() - expected).max() < 2e-2


# Mistakes that must exceed the tolerance


def without_scale(patch: pytest.MonkeyPatch) -> None:
    plain = F.scaled_dot_product_attention
    patch.setattr(F, "scaled_dot_product_attention", lambda *some: plain(*some, scale=1.0))


def tanh_gelu(patch: pytest.MonkeyPatch) -> None:
    plain = F.gelu
    patch.setattr(F, "gelu", lambda x, approximate="none": plain(x, approximate="tanh"))


def other_epsilon(patch: pytest.MonkeyPatch) -> None:
    plain = F.batch_norm
    patch.setattr(F, "batch_norm", lambda *some: plain(*some[:-1], 3e-4))


MISTAKES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], dict[str, str]]] = {
    "no scale of attention": (without_scale, {"passt_s16": "A3", "beats": "A3", "eat": "B", "m2d_clap": "A3"}),
    "tanh GELU": (tanh_gelu, {"passt_s16": "A3", "atst": "A3", "beats": "A3", "eat": "B", "m2d_clap": "A3"}),
    "epsilon of batch norms": (other_epsilon, {"panns16": "S", "resnet38": "S", "openl3": "S", "mn10": "A3"}),
}


PADDED = ("beats", "eat", "m2d_clap")  # networks whose vector of a padded segment is that of the clip alone


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_all_outputs_match_the_original_code_but_not_with_planted_mistakes(name, monkeypatch):
    row, (made, _) = ROWS[name], layers_of(name)
    for clip in dict.fromkeys([*row.vectors, *row.frames]):
        assert error_of(row, made, clip) < row.tolerance, clip
    require_no_other_tensors(name)
    if name in PADDED:
        waves = torch.cat([row.wave("A"), F.pad(row.wave("B"), (0, 72_000))])
        with torch.inference_mode():
            found = made(waves, torch.tensor([160_000, 88_000]))
        assert relative(found, np.stack([row.golden(row.vectors[clip]) for clip in "AB"])) < 2e-5
    for mistake, (plant, clips) in MISTAKES.items():
        if name in clips:
            with monkeypatch.context() as patch:
                plant(patch)
                assert error_of(row, made, clips[name]) > 2 * row.tolerance, mistake


SMALL: dict[str, tuple[str, tuple[str, ...], float]] = {  # golden, tensors times 2**-10, another epsilon
    "passt_s16": ("s16_A3_small_features", ("token", "pos_embed", "patch_embed"), 1e-5),
    "beats": (
        "beats_A3_small_mean",
        ("patch_embedding.weight", "post_extract_proj.", "weight_g", "pos_conv.0.bias"),
        1e-6,
    ),
    "m2d_clap": (
        "m2d_clap_2025_A3_small_embedding",
        ("sem_token", "sem_blocks.0.attn.proj.", "sem_blocks.0.mlp.fc2."),
        1e-6,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@torch.inference_mode()
def test_epsilons_of_layer_norms_match_the_original_code(name):
    row, (key, small, eps) = ROWS[name], SMALL[name]
    made, waves = row.network().layers().eval(), row.wave("A3")
    made.load(
        {one: value * (2.0**-10 if any(part in one for part in small) else 1) for one, value in row.tensors().items()}
    )
    assert relative(made(waves, whole(waves))[0], row.golden(key)) < 2e-5
    for module in made.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps
    assert relative(made(waves, whole(waves))[0], row.golden(key)) > 0.1


def test_beats_distance_buckets_and_eat_positions_match_the_original_code():
    found = distance_buckets(torch.arange(-2000, 2001))
    assert found.tolist() == content("modern_encoders")["beats_bucket_of_offset"].tolist()
    rows, expected = (content("modern_encoders")[f"eat_position_{name}"] for name in ("rows", "at"))
    table = position_table(768)
    assert relative(table[rows[rows < len(table)]], expected[rows < len(table)]) < 2e-4


# Training and files


def test_mel_limits_in_training_match_the_draws_of_the_original_code(monkeypatch):
    golden, sizes = content("passt"), []
    draws = iter(golden["train_draws"].tolist())

    def drawn(size: int, shape: tuple[()]) -> torch.Tensor:
        sizes.append(size)
        return torch.tensor(next(draws))

    monkeypatch.setattr(torch, "randint", drawn)
    waves = ROWS["passt_s16"].wave("A3")
    found = KaldiLogMel(True).train()(waves)[0, 0]
    assert sizes == [10, 2000]
    assert np.abs(found[:, ::4].numpy() - golden["A3_logmel_train_every4"]).max() < 5e-4
    filters = kaldi_filters(128, 1024, 32_000, *golden["train_fmin_fmax"].tolist()).T
    assert np.abs(filters.numpy() - golden["mel_basis_train"]).max() < 1e-4
    for jitter, training in ((True, False), (False, True)):
        still = KaldiLogMel(jitter).train(training)(waves)[0, 0]
        assert np.abs(still.numpy() - golden["A3_logmel"]).max() < 5e-4, "nothing is drawn"


@pytest.mark.slow
def test_patchout_and_gradients_match_the_original_code(monkeypatch):
    row, golden = ROWS["passt_s16"], content("passt")
    kept = {62: golden["s16_train_kept_t"], 8: golden["s16_train_kept_f"]}

    def drawn(size: int) -> torch.Tensor:
        """The kept ones after those that are left out."""
        left_out = sorted(set(range(size)) - set(kept[size].tolist()))
        return torch.tensor([*left_out, *kept[size].tolist()])

    monkeypatch.setattr(torch, "randperm", drawn)
    made = row.network(patchout_time=15, patchout_bands=2).layers()
    made.load(row.tensors())
    waves = torch.cat([row.wave("A"), row.wave("A").flip(1)])
    features = made.train()(waves, whole(waves))
    assert relative(features.detach(), golden["s16_train_features"]) < 2e-5
    weights = torch.sin(0.01 * torch.arange(2 * 768, dtype=torch.float32)).view(2, 768)
    (features * weights).sum().backward()
    gradients = {key: parameter.grad for key, parameter in made.named_parameters()}
    for key in ("cls_token", "dist_token", "new_pos_embed", "freq_new_pos_embed", "patch_embed.proj.bias"):
        assert relative(gradients[key], golden[f"s16_train_grad_{key.replace('.', '_')}"]) < 5e-5, key
    in_time = gradients["time_new_pos_embed"].square().sum((0, 1, 2)).sqrt()  # type: ignore[union-attr]
    assert relative(in_time, golden["s16_train_grad_time_norm"]) < 5e-5
    norms = json.loads(str(golden["s16_train_grad_norms"]))
    assert norms.keys() == gradients.keys()
    for key, norm in norms.items():
        assert float(gradients[key].norm()) == pytest.approx(norm, rel=1e-3), key  # type: ignore[union-attr]


def test_atst_floor_is_per_batch_in_training_alone_and_per_segment_otherwise():
    row, golden = ROWS["atst"], content("audio_encoders_2024")
    both = torch.cat([row.wave("A3"), row.wave("B")[:, :96_000] / 100])
    with without_draws():
        of_batch, of_segment = (row.network(floor=floor).layers() for floor in ("batch", "segment"))
    loud = of_batch.train().log_mel(both)[1]  # type: ignore[operator]
    assert np.abs(loud[:, ::8].numpy() - golden["atst_batch_mel_second"]).max() < 1e-4
    assert torch.equal(of_batch.eval().log_mel(both)[1], of_segment.train().log_mel(both[1:])[0])  # type: ignore[operator]
    assert float((loud - of_segment.log_mel(both)[1]).abs().max()) > 0.1  # type: ignore[operator]


@pytest.mark.parametrize(("weights", "momentum"), [(None, 0.1), ("x.pt", 0.01)])
def test_momentum_of_batch_norms_is_lower_with_published_weights(weights, momentum):
    made = ROWS["mn04"].network(weights=weights).layers()
    assert {one.momentum for one in made.modules() if isinstance(one, nn.BatchNorm2d)} == {momentum}
    assert math.isclose(made.features[0][0].weight.std().item(), math.sqrt(2 / 8 / 9), rel_tol=0.3)  # type: ignore[index,operator]


@pytest.mark.parametrize("kind", first_quick(sorted({row.settings["kind"] for row in ROWS.values()}), 3))
def test_parameters_are_counted_without_a_draw(kind):
    row = next(row for row in ROWS.values() if row.settings["kind"] == kind)
    state = torch.get_rng_state()
    assert row.network().count_parameters() > 10_000
    assert torch.equal(torch.get_rng_state(), state)
