"""All audio networks with filled weights against the outputs of their original code, in one table."""

import functools
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import filled
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from errors_of import relative
from torch import nn

from system.audio.beats import distance_buckets
from system.audio.eat import position_table
from system.audio.mel import KaldiLogMel, kaldi_filters, kaldi_log_mel
from system.audio.network import AudioNetwork, Layers


@functools.cache
def content(file: str) -> dict[str, np.ndarray]:
    return dict(np.load(filled.GOLDEN / f"{file}.npz"))


@dataclass(frozen=True)
class Row:
    """A network and its goldens.

    name: Of its description. vectors, frames: Name in the golden, and step between stored frames, by clip.
    ignored: Other tensors of the file.
    """

    name: str
    settings: dict[str, Any]
    vectors: dict[str, str] = field(default_factory=dict)
    frames: dict[str, tuple[str, int]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    tolerance: float = 2e-5

    def network(self, **changes: Any) -> AudioNetwork:
        return AudioNetwork.model_validate({"weights": None} | self.settings | changes)

    def tensors(self) -> dict[str, torch.Tensor]:
        if self.name.startswith("openl3"):
            return filled.openl3()
        found = filled.tensors(self.name)
        if self.name == "eat_base":  # under the names of the hub; the description has those of fairseq
            image = "modality_encoders.IMAGE."
            for old, new in ((f"{image}context_encoder.norm.", "pre_norm."), (image, "")):
                found = {key.replace(old, new): value for key, value in found.items()}
            return {f"model.{key}": value for key, value in found.items()}
        return found

    def golden(self, key: str) -> np.ndarray:
        files = (filled.described(self.name)[0], "passt")  # the encoders of 2024 have its clips
        return next(content(file)[key] for file in files if key in content(file))

    def wave(self, clip: str) -> torch.Tensor:
        """(1, N): A, B, A3 (3 s of A), Q (A3 at -80 dB), C (both), S (silence), A10 (A, repeated to 10 s)."""
        rate = self.network().rate
        if clip == "S" and self.name == "s16":
            return torch.zeros(1, 10 * rate)
        a, b = (self.golden(f"{letter}_wave_int16").astype(np.float32) / 32_768 for letter in "AB")
        waves = {"A": a, "B": b, "A3": a[: 3 * rate], "Q": a[: 3 * rate] * np.float32(1e-4)}
        waves |= {"A10": np.tile(a, 10)[: 10 * rate], "C": np.concatenate([a, b, a[::-1], a[:104_000]])}
        found = self.golden("S_wave_int16") / 32_768 if clip == "S" else waves[clip]
        return torch.from_numpy(np.ascontiguousarray(found, np.float32))[None]


def keys(form: str, clips: str = "A B S") -> dict[str, str]:
    return {clip: form.format(clip) for clip in clips.split()}


def every(form: str, clips: str = "A B S", step: int = 1) -> dict[str, tuple[str, int]]:
    return {clip: (key, step) for clip, key in keys(form, clips).items()}


def panns(name: str, network: str) -> Row:
    settings, ignored = {"kind": "panns", "network": network}, ("fc", "spectrogram", "logmel")
    return Row(name, settings, keys("{}_pooled"), every("{}_frames"), ignored)


def passt(name: str, network: str, clips: str, **more: Any) -> Row:
    settings = {"kind": "passt", "network": network}
    return Row(name, settings, keys(name + "_{}_features", clips), ignored=("head",), **more)


def efficientat(name: str, clips: str, tolerance: float = 1e-4, **more: Any) -> Row:
    settings, vectors = {"kind": "efficientat", "network": name}, keys(name + "_{}_features", clips)
    return Row(name, settings, vectors, ignored=("classifier",), tolerance=tolerance, **more)


OF_NORM = (("weight_g", "parametrizations.weight.original0"), ("weight_v", "parametrizations.weight.original1"))
OPENL3, VGGISH = {"kind": "openl3"}, {"kind": "vggish", "pca_weights": None}
VGGSOUND = {"A": ("Anotile_layer4_freqmean", 1), "A10": ("A_layer4_freqmean", 1), "S": ("S_layer4_freqmean", 1)}
MN10 = every("mn10_{}_frames", "A3 B") | every("mn10_{}_frames", "A", 4)
ATST = every("atst_{}_frames", "A3") | every("atst_{}_frames", "A B", 10)
BEATS = every("beats_{}_frames_every2", "A", 2) | every("beats_{}_frames", "A3")
BEATS |= every("beats_{}_frames_every8", "C", 8)
EAT = every("eat_{}1024_frames_every2", "A B", 2)
M2D = every("m2d_clap_2025_{}_frames_every4", "A", 4) | every("m2d_clap_2025_{}_frames_every16", "C", 16)
ROWS = {
    "panns16": panns("panns_cnn14_16k", "cnn14_16k"),
    "resnet38": panns("panns_resnet38", "resnet38"),
    "openl3": Row("openl3_mel256_env_512", OPENL3, {}, every("{}_embedding"), ("speclayer.dft",), tolerance=5e-5),
    "vggsound": Row(
        "vggsound_resnet18_H",
        {"kind": "vggsound"},
        {"A": "Anotile_avgpool"} | keys("{}_avgpool", "B S"),
        VGGSOUND,
        ("audnet.fc",),
    ),
    "vggish": Row("vggish", VGGISH, {}, every("{}_embedding_raw"), ("pproc",)),
    "passt_s16": passt("s16", "s16", "A A3 B S", frames=every("s16_{}_sequence_freqmean", "A A3")),
    "passt_s10": passt("s10", "s10", "A A3 B"),
    "passt_l10": passt("l10", "l10", "A3"),
    "passt_20s": passt("t20", "20s", "A"),
    "mn04": efficientat("mn04", "A3"),
    "mn10": efficientat("mn10", "A A3 B", frames=MN10),
    "mn40": efficientat("mn40", "A3", tolerance=1e-3),
    "atst": Row("atst_frame", {"kind": "atst_frame"}, keys("atst_{}_mean", "A A3 B Q"), ATST, ("mask_embed",)),
    "beats": Row(
        "beats_ft", {"kind": "beats"}, keys("beats_{}_mean", "A A3 B C"), BEATS, ("predictor", "encoder.layers")
    ),
    "eat": Row("eat_base", {"kind": "eat"}, keys("eat_{}1024_cls", "A B"), EAT),
    "m2d_clap": Row("m2d_clap_2025", {"kind": "m2d_clap"}, keys("m2d_clap_2025_{}_embedding", "A A3 B C"), M2D),
}


@contextmanager
def without_draws() -> Iterator[None]:
    """Build networks without drawing their first weights, which takes longer than a forward pass."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "trunc_normal_", "normal_", "uniform_"):
            patch.setattr(nn.init, name, lambda tensor, *_, **__: tensor)
        yield


@functools.lru_cache(maxsize=1)
def layers_of(name: str) -> Layers:
    """The network with its filled weights. Its file has no tensors but those of the network and the ignored ones."""
    tensors = ROWS[name].tensors()
    with without_draws():
        made = ROWS[name].network().layers()
    made.load(tensors)
    own, renamed = made.state_dict(), (("conc_se_layers.0.", ""), *OF_NORM)
    for key in filled.described(ROWS[name].name)[1]:
        for old, new in renamed:
            key = key.replace(old, new)
        assert key in own or name == "eat" or key.startswith(ROWS[name].ignored), "a tensor that nothing uses"
    return made.eval().requires_grad_(False)


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
        # EAT gives the frames of 10 s, those of the padding after the clip's.
        assert row.settings["kind"] == "eat" or counts.tolist() == [frames.shape[1]]
        errors.append(relative(frames[0, ::step], row.golden(key)))
    return max(errors)


@pytest.mark.parametrize(("name", "clip"), [("vggsound", "S"), ("mn04", "A3"), ("openl3", "S")])
def test_outputs_of_a_clip_match_the_original_code(name, clip):
    assert error_of(ROWS[name], layers_of(name), clip) < ROWS[name].tolerance


# Inputs of networks


def front_end(name: str, waves: torch.Tensor) -> torch.Tensor:
    """The log-mel (bands, T) of a clip; of OpenL3, those of its seconds."""
    if name == "openl3":  # whose file has the filters
        return layers_of(name).log_mel(F.pad(waves, (24_000, 48_000)).unfold(1, 48_000, 24_000)[0])
    with without_draws():
        made = ROWS[name].network().layers().eval()
    if name == "passt_s16":
        return KaldiLogMel(False)(waves)[0, 0]
    if name == "beats":
        return ((kaldi_log_mel(waves * 2**15, 0.85) - 15.41663) / (2 * 6.55582))[0].T
    if name == "eat":
        return made.log_mel(waves, whole(waves))[0, : 1 + (waves.shape[1] - 400) // 160].T
    if name == "m2d_clap":
        return (made.mel(waves) + 2**-23).log()[0].T.float()
    return (made.spectrogram if name == "vggsound" else made.log_mel)(waves)[0]


FRONT_ENDS: list[tuple[str, str, str, float]] = [
    ("passt_s16", "A3", "A3_logmel", 5e-4),
    ("passt_s16", "B", "B_logmel_at", 5e-4),
    ("panns16", "A", "A_logmel", 2e-3),
    ("resnet38", "B", "B_logmel", 2e-3),
    ("openl3", "B", "B_logmel", 2e-2),
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
    found = front_end(name, row.wave(clip))
    if key.endswith("_at"):
        found = found[:, row.golden(key.replace("_at", "_frames"))]
    if name == "openl3":
        found = found[: len(expected)]
    found = found if found.shape == expected.shape else found.T
    assert np.abs(found.numpy() - expected).max() < tolerance


def test_kaldi_log_mel_of_silence_is_its_floor():
    assert np.allclose(kaldi_log_mel(torch.zeros(1, 16_000), 1.0), -23 * math.log(2))


PADDED = ("beats", "eat", "m2d_clap")  # networks whose vector of a padded segment is that of the clip alone


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_all_outputs_match_the_original_code(name):
    row, made = ROWS[name], layers_of(name)
    for clip in dict.fromkeys([*row.vectors, *row.frames]):
        assert error_of(row, made, clip) < row.tolerance, clip
    if name in PADDED:
        waves = torch.cat([row.wave("A"), F.pad(row.wave("B"), (0, 72_000))])
        with torch.inference_mode():
            found = made(waves, torch.tensor([160_000, 88_000]))
        assert relative(found, np.stack([row.golden(row.vectors[clip]) for clip in "AB"])) < 2e-5


SMALL: dict[str, tuple[str, tuple[str, ...]]] = {  # golden, tensors times 2**-10, where the epsilons of norms show
    "passt_s16": ("s16_A3_small_features", ("token", "pos_embed", "patch_embed")),
    "beats": (
        "beats_A3_small_mean",
        ("patch_embedding.weight", "post_extract_proj.", "weight_g", "pos_conv.0.bias"),
    ),
    "m2d_clap": (
        "m2d_clap_2025_A3_small_embedding",
        ("sem_token", "sem_blocks.0.attn.proj.", "sem_blocks.0.mlp.fc2."),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@torch.inference_mode()
def test_epsilons_of_layer_norms_match_the_original_code(name):
    row, (key, small) = ROWS[name], SMALL[name]
    made, waves = row.network().layers().eval(), row.wave("A3")
    made.load(
        {one: value * (2.0**-10 if any(part in one for part in small) else 1) for one, value in row.tensors().items()}
    )
    assert relative(made(waves, whole(waves))[0], row.golden(key)) < 2e-5


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


def test_parameters_are_counted_without_a_draw():
    state = torch.get_rng_state()
    assert ROWS["mn04"].network().count_parameters() > 300_000
    assert torch.equal(torch.get_rng_state(), state)
