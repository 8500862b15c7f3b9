"""PaSST with filled weights: outputs of the original code, mistakes that must be noticed, segments, and training."""

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
from threads import one_thread  # noqa: F401  a fixture
from torch import nn

from data_tools.errors import KitError
from system.models.audio import Passt as Settings
from system.models.audio.segmented_encoder import SegmentedEncoder
from system.models.audio.segments import SegmentAttention, SegmentMean, crop_long_clips, cut_into_segments
from system.models.batch import Series
from system.networks import kaldi_log_mel, passt, transformer_blocks
from system.networks.kaldi_log_mel import KaldiLogMel, mel_triangles
from system.networks.passt import Passt, draw_remaining_positions, load_published
from system.networks.passt_published import DIM, VARIANTS

pytestmark = pytest.mark.usefixtures("one_thread")

Golden = dict[str, np.ndarray]
SHAPES = {
    "s16": filled.passt_shapes(),
    "s10": filled.passt_shapes(10, 99),
    "l10": filled.passt_shapes(10, 99, 7),
    "20s": filled.passt_shapes(10, 200),
}
TAGS = {"20s": "t20"}  # where the golden's name differs


@pytest.fixture(scope="module")
def golden(goldens: Path) -> Golden:
    return dict(np.load(goldens / "passt.npz"))


@functools.cache
def filled_tensor(key: str, *shape: int) -> torch.Tensor:
    return torch.from_numpy(filled.fill(key, {key: shape}))


def network(name: Any = "s16", patchout: tuple[int, int, int] = (0, 0, 0)) -> Passt:
    made = Passt(name, patchout)
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            parameter.copy_(filled_tensor(key, *parameter.shape))
    return made.eval()


def wave(golden: Golden, letter: str) -> torch.Tensor:
    """(1, N); S is silence, A3 the first three seconds of A."""
    if letter == "S":
        return torch.zeros(1, 320_000)
    samples = golden[f"{letter[0]}_wave_int16"][: 96_000 if letter == "A3" else None]
    return torch.from_numpy(samples.astype(np.float32) / 32_768)[None]


def log_mel(golden: Golden, letter: str) -> torch.Tensor:
    return KaldiLogMel(False).eval()(wave(golden, letter))


@torch.inference_mode()
def tokens(golden: Golden, letter: str, name: Any = "s16") -> torch.Tensor:
    found: torch.Tensor = network(name)(log_mel(golden, letter))[0]
    return found


def log_mel_error(golden: Golden) -> float:
    errors = []
    for letter in ("A", "B", "A3"):
        found = log_mel(golden, letter)[0]
        assert found.shape == tuple(golden[f"{letter}_logmel_shape"])
        moments = [float(found.double().mean()), float(found.double().std(correction=0))]
        errors.append(float(np.abs(moments - golden[f"{letter}_logmel_mean_std"]).max()))
        columns = golden.get(f"{letter}_logmel_frames", np.arange(found.shape[1]))
        expected = golden.get(f"{letter}_logmel_at", golden.get(f"{letter}_logmel"))
        errors.append(largest(found[:, columns], expected))
    return max(errors)


def test_passt_log_mel_matches_original_code(golden: Golden) -> None:
    assert log_mel_error(golden) < 5e-4
    silence = log_mel(golden, "S")
    assert silence.shape == (1, 128, 1000)
    assert float((silence - float(golden["S_logmel_value"])).abs().max()) < 1e-5
    assert largest(mel_triangles(0, 15_000), golden["mel_basis_eval"]) < 1e-4


def test_passt_mel_frequency_limits_in_training_match_the_random_draws_of_original_code(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = iter(golden["train_draws"].tolist())
    sizes = []

    def drawn(size: int, shape: tuple[()]) -> torch.Tensor:
        assert shape == ()
        sizes.append(size)
        return torch.tensor(next(draws))

    monkeypatch.setattr(torch, "randint", drawn)
    found = KaldiLogMel(True).train()(wave(golden, "A3"))[0]
    assert sizes == [10, 2000]
    assert largest(found[:, ::4], golden["A3_logmel_train_every4"]) < 5e-4
    assert largest(mel_triangles(*golden["train_fmin_fmax"].tolist()), golden["mel_basis_train"]) < 1e-4
    for jitter, training in ((True, False), (False, True)):
        still = KaldiLogMel(jitter).train(training)(wave(golden, "A3"))[0]
        assert largest(still, golden["A3_logmel"]) < 5e-4, "nothing is drawn"


HEARD = {"s16": ("A", "A3", "B", "S"), "s10": ("A", "A3", "B"), "l10": ("A3",), "20s": ("A",)}


QUICK = (("s16", "B"), ("s10", "A3"))


@pytest.mark.parametrize(
    ("name", "letter"),
    [
        pytest.param(name, letter, marks=[] if (name, letter) in QUICK else pytest.mark.slow)
        for name, letters in HEARD.items()
        for letter in letters
    ],
)
def test_passt_tokens_and_logits_match_original_code(golden: Golden, name: Any, letter: str) -> None:
    found, tag = tokens(golden, letter, name), f"{TAGS.get(name, name)}_{letter}"
    features = found[:2].mean(0)
    assert relative(features, golden[f"{tag}_features"]) < 2e-5
    for place, token in enumerate(("cls", "dist")):
        if f"{tag}_{token}" in golden:
            assert relative(found[place], golden[f"{tag}_{token}"]) < 2e-5
    if f"{tag}_logits" in golden:
        norm = [filled_tensor(f"head.0.{part}", 768) for part in ("weight", "bias")]
        scaled = F.layer_norm(features, (768,), *norm, 1e-5)
        logits = F.linear(scaled, filled_tensor("head.1.weight", 527, 768), filled_tensor("head.1.bias", 527))
        assert relative(logits, golden[f"{tag}_logits"]) < 2e-5
    if f"{tag}_sequence_freqmean" in golden:
        patches = found[2:].unflatten(0, (VARIANTS[name].rows, -1))
        assert relative(patches.mean(0), golden[f"{tag}_sequence_freqmean"]) < 2e-5
    if f"{tag}_sequence_band2" in golden:
        assert relative(patches[2], golden[f"{tag}_sequence_band2"]) < 2e-5


SMALL = ("cls_token", "dist_token", "new_pos_embed", "freq_new_pos_embed", "time_new_pos_embed")


@torch.inference_mode()
def small_features(golden: Golden) -> torch.Tensor:
    """Features of tokens and patches so small that the norms' epsilon matters."""
    made = network()
    for key, parameter in made.named_parameters():
        if key in SMALL or key.startswith("patch_embed"):
            parameter.mul_(2.0**-10)
    features: torch.Tensor = made(log_mel(golden, "A3"))[0, :2].mean(0)
    return features


@pytest.mark.slow
def test_passt_layer_norm_epsilon_matches_original_code(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    assert relative(small_features(golden), golden["s16_A3_small_features"]) < 2e-5
    monkeypatch.setattr(transformer_blocks, "EPS", 1e-5)
    monkeypatch.setattr(passt, "EPS", 1e-5)
    assert relative(small_features(golden), golden["s16_A3_small_features"]) > 0.1


def training_inputs(golden: Golden) -> torch.Tensor:
    forward = log_mel(golden, "A")
    backward = KaldiLogMel(False).eval()(wave(golden, "A").flip(1))
    return torch.cat([forward, backward])


@pytest.mark.slow
def test_patchout_and_gradients_match_original_code(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {62: golden["s16_train_kept_t"], 8: golden["s16_train_kept_f"]}
    asked: list[tuple[int, int]] = []

    def drawn(size: int, left_out: int, device: torch.device) -> torch.Tensor:
        asked.append((size, left_out))
        return torch.from_numpy(places.get(size, np.arange(size)))

    monkeypatch.setattr(passt, "draw_remaining_positions", drawn)
    made = network(patchout=(15, 2, 0)).train()
    features = made(training_inputs(golden))[:, :2].mean(1)
    assert asked == [(62, 15), (8, 2), (282, 0)]
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


def test_unstructured_patchout_matches_original_code(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(size: int, left_out: int, device: torch.device) -> torch.Tensor:
        if size == 496:
            assert left_out == 100
            return torch.from_numpy(golden["s16_train_u_kept"])
        assert left_out == 0
        return torch.arange(size)

    monkeypatch.setattr(passt, "draw_remaining_positions", drawn)
    with torch.no_grad():
        found = network(patchout=(0, 0, 100)).train()(training_inputs(golden)[:1])
    assert found.shape[1] == 2 + 396
    assert relative(found[0, :2].mean(0), golden["s16_train_u_features"]) < 2e-5


def test_passt_keys_match_published_checkpoints(goldens: Path) -> None:
    described = json.loads((goldens / "keys_passt.json").read_text())
    for name, shapes in SHAPES.items():
        entry = described[TAGS.get(name, name)]
        keys = {**described["s16"]["keys"], **entry["keys"]}
        expected = {key: tuple(keys[key]["shape"]) for key in keys if key not in entry.get("absent", [])}
        assert shapes == expected
        made = {key: tuple(value.shape) for key, value in Passt(name).state_dict().items()}
        assert made == {key: shape for key, shape in expected.items() if not key.startswith("head")}
        for key in ("cls_token", "new_pos_embed", "norm.weight", "blocks.3.attn.qkv.weight"):
            values = filled.fill(key, shapes)
            assert values.ravel()[:2] == pytest.approx(keys[key]["head"])
            assert values.sum(dtype=np.float64) == pytest.approx(keys[key]["sum"])


# Mistakes that must show: in the log-mel, by more than its tolerance of 5e-4; in the features of A3, of 2e-5.


def patched_basis(basis: torch.Tensor) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(kaldi_log_mel, "mel_triangles", lambda *_: basis)


def in_hertz(lowest: float, highest: float) -> torch.Tensor:
    """Triangles that are linear in Hz, between the same edges."""
    mel = 1127 * np.log1p(np.array([lowest, highest]) / 700)
    edges = 700 * np.expm1(np.linspace(*mel, 130) / 1127)
    return torch.from_numpy(filled.triangles(edges, 32_000, 1024)).float()


def stft(**changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    plain = torch.stft
    return lambda patch: patch.setattr(torch, "stft", lambda *some, **named: plain(*some, **(named | changes)))


HANN = torch.hann_window
LOG_MEL_MISTAKES: dict[str, tuple[float, Callable[[pytest.MonkeyPatch], None]]] = {
    "triangles linear in Hz": (1e-3, patched_basis(in_hertz(0, 15_000))),
    "the highest edge at 16,000 Hz": (1.0, patched_basis(mel_triangles(0, 16_000))),
    "the highest edge at 14,000 Hz": (1.0, patched_basis(mel_triangles(0, 14_000))),
    "a periodic window": (0.01, lambda patch: patch.setattr(torch, "hann_window", lambda size, periodic: HANN(size))),
    "zeros at the ends": (0.3, stft(pad_mode="constant")),
    "another floor": (0.2, lambda patch: patch.setattr(kaldi_log_mel, "FLOOR", 1e-6)),
    "no pre-emphasis": (1.0, lambda patch: patch.setattr(kaldi_log_mel, "PRE_EMPHASIS", 0.0)),
    "no normalisation": (4.0, lambda patch: patch.setattr(kaldi_log_mel, "SCALE", 1.0)),
}


@pytest.mark.parametrize("mistake", LOG_MEL_MISTAKES)
def test_planted_mistakes_in_passt_log_mel_exceed_the_test_tolerance(
    golden: Golden, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    least, plant = LOG_MEL_MISTAKES[mistake]
    plant(monkeypatch)
    assert log_mel_error(golden) > least


GELU, ATTENTION = F.gelu, F.scaled_dot_product_attention


def positions(places: int) -> Callable[[Passt], None]:
    def plant(made: Passt) -> None:
        made.time_new_pos_embed.copy_(made.time_new_pos_embed.roll(places, 3))

    return plant


def no_token_positions(made: Passt) -> None:
    made.new_pos_embed.zero_()


def heads_first(made: Passt) -> None:
    """qkv read as (heads, 3, 64)."""
    for block in made.blocks:
        layer: Any = block.attn.qkv
        for value in (layer.weight, layer.bias):
            value.copy_(value.unflatten(0, (12, 3, 64)).transpose(0, 1).flatten(0, 2).clone())


def without_norm(made: Passt) -> None:
    made.norm = nn.Identity()  # type: ignore[assignment]


NETWORK_MISTAKES: dict[str, tuple[float, Callable[[Passt], None]]] = {
    "no positions of the two tokens": (0.1, no_token_positions),
    "positions cut at the end": (0.1, positions(18 - 62)),
    "positions cut at the centre": (0.1, positions(-22)),
    "qkv as (heads, 3, 64)": (0.5, heads_first),
    "no last norm": (1.0, without_norm),
}
PATCHES: dict[str, tuple[float, Callable[[pytest.MonkeyPatch], None]]] = {
    "tanh GELU": (1e-4, lambda patch: patch.setattr(F, "gelu", lambda x: GELU(x, approximate="tanh"))),
    "no scale of attention": (
        0.3,
        lambda patch: patch.setattr(F, "scaled_dot_product_attention", lambda *some: ATTENTION(*some, scale=1.0)),
    ),
}


@torch.inference_mode()
def features_error(golden: Golden, made: Passt, of: Callable[[torch.Tensor], torch.Tensor]) -> float:
    return relative(of(made(log_mel(golden, "A3"))[0]), golden["s16_A3_features"])


def both(tokens: torch.Tensor) -> torch.Tensor:
    return tokens[:2].mean(0)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [*NETWORK_MISTAKES, *PATCHES])
def test_planted_mistakes_in_passt_features_exceed_the_test_tolerance(
    golden: Golden, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = network()
    with torch.no_grad():
        if mistake in PATCHES:
            least, patch = PATCHES[mistake]
            patch(monkeypatch)
        else:
            least, plant = NETWORK_MISTAKES[mistake]
            plant(made)
    assert features_error(golden, made, both) > least


@pytest.mark.slow
def test_passt_embedding_is_the_mean_of_both_tokens(golden: Golden) -> None:
    made = network()
    assert features_error(golden, made, both) < 2e-5
    others: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda tokens: tokens[0],
        lambda tokens: tokens[1],
        lambda tokens: tokens[2:].mean(0),
    ]
    for other in others:
        assert features_error(golden, made, other) > 0.2


# The encoder


def settings(**changes: Any) -> dict[str, Any]:
    values = {"kind": "passt", "network": "s16", "weights": None, "trainable": True, "segment_seconds": 10}
    values |= {"hop_seconds": 10, "max_seconds": 30, "patchout_time": 15, "patchout_bands": 2, "edge_jitter": True}
    return values | {"spec_augment": None, "segment_pooling": "mean", "hidden": None} | changes


def encoder(out: int = 1024, **changes: Any) -> SegmentedEncoder:
    return Settings.model_validate(settings(**changes)).build(out)


def batch_of(*waves: np.ndarray) -> dict[str, Series]:
    lengths = [len(samples) for samples in waves]
    values = np.zeros((len(waves), max(lengths), 1), np.int16)
    for row, samples in zip(values, waves, strict=True):
        row[: len(samples), 0] = samples
    return {"waveform": Series(torch.from_numpy(values), torch.tensor(lengths))}


def baseline_clips(golden: Golden) -> list[np.ndarray]:
    """Clips in their real length; the original pads every clip with silence to 30 s."""
    a, b = golden["A_wave_int16"], golden["B_wave_int16"]
    return [a, np.concatenate([b, a]), np.concatenate([a, a[::-1], b])]


@pytest.mark.slow
def test_passt_encoder_matches_2025_baseline_embeddings(golden: Golden) -> None:
    made = encoder(weights=filled.files("passt")["weights"]).eval()
    made.load_pretrained()
    with torch.no_grad():
        made.head.weight.copy_(filled_tensor("audio_projection.weight", 1024, 768))
        made.head.bias.copy_(filled_tensor("audio_projection.bias", 1024))
        audio = batch_of(*baseline_clips(golden))
        seconds = [len(clip) / 32_000 for clip in baseline_clips(golden)]
        assert seconds == golden["d25_durations"].tolist()
        pieces, lengths, clips = cut_into_segments(audio["waveform"], 320_000, 320_000)
        assert lengths.tolist() == [320_000, 320_000, 176_000, 320_000, 320_000, 176_000]
        assert clips.tolist() == [0, 1, 1, 2, 2, 2]
        found = torch.cat([made.network(part.float() / 32_768, lengths) for part in pieces.split(2)])
        expected = [golden["d25_segments"][0, :1], golden["d25_segments"][1, :2], golden["d25_segments"][2]]
        assert relative(found, np.concatenate(expected)) < 2e-5
        embedded = F.normalize(made(audio).values)
        assert relative(embedded, golden["d25_audio_embeddings"]) < 2e-5
        for row, clip in enumerate(baseline_clips(golden)[:2]):
            alone = F.normalize(made(batch_of(clip)).values)[0]
            assert relative(alone, embedded[row].numpy()) < 2e-6, "in company or alone"


@pytest.mark.slow
def test_passt_segments_cut_from_one_log_mel_differ_from_segments_cut_from_the_wave(golden: Golden) -> None:
    clip = torch.from_numpy(baseline_clips(golden)[2].astype(np.float32) / 32_768)[None]
    whole = KaldiLogMel(False).eval()(F.pad(clip, (0, 960_000 - clip.shape[1])))
    with torch.no_grad():
        second = both(network()(whole[:, :, 1000:2000])[0])
    assert relative(second, golden["d25_segments"][2, 1]) > 1e-3


def test_mean_of_passt_segments_matches_original_code(goldens: Path) -> None:
    content = dict(np.load(goldens / "losses_2025.npz"))
    for values, seconds, expected, older in zip(
        content["pool_segments"], content["pool_durations"], content["pool_out"], content["pool_out_2024"], strict=True
    ):
        wave = Series(torch.zeros(1, 960_000, 1, dtype=torch.int16), torch.tensor([round(seconds * 32_000)]))
        clips = cut_into_segments(wave, 320_000, 320_000).clips
        found = SegmentMean()(torch.from_numpy(values[: len(clips)]), clips, 1, torch.ones(len(clips)))
        for one in (expected, older):
            assert F.normalize(found)[0].numpy() == pytest.approx(one, abs=1e-12)


def test_clips_are_cut_into_segments_as_computed_by_hand() -> None:
    values = torch.arange(1, 8).repeat(2, 1)[..., None]
    pieces, lengths, clips = cut_into_segments(Series(values, torch.tensor([7, 3])), 3, 2)
    assert lengths.tolist() == [3, 3, 3, 3]
    assert pieces.tolist() == [[1, 2, 3], [3, 4, 5], [5, 6, 7], [1, 2, 3]]
    assert clips.tolist() == [0, 0, 0, 1]
    pieces, lengths, clips = cut_into_segments(Series(values, torch.tensor([4, 1])), 3, 3)
    assert lengths.tolist() == [3, 1, 1]
    assert pieces.tolist() == [[1, 2, 3], [4, 0, 0], [1, 0, 0]], "padding of the batch is not computed"
    pieces, lengths, clips = cut_into_segments(Series(values[:, :2], torch.tensor([2, 2])), 3, 3)
    assert pieces.tolist() == [[1, 2, 0], [1, 2, 0]]
    assert clips.tolist() == [0, 1]


def test_pooling_of_passt_segments_matches_hand_values() -> None:
    values, clips = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 5.0]]), torch.tensor([0, 0, 1])
    lengths = torch.tensor([300, 100, 7])
    assert SegmentMean()(values, clips, 2, lengths).tolist() == [[2, 4], [5, 5]]
    assert SegmentMean(by_length=True)(values, clips, 2, lengths).tolist() == [[1.5, 3], [5, 5]]
    attention = SegmentAttention(2)
    with torch.no_grad():
        attention.weight.weight.copy_(torch.tensor([[0.0, 100.0]]))
    assert torch.allclose(attention(values, clips, 2, lengths), torch.tensor([[3.0, 6.0], [5.0, 5.0]])), "the loudest"
    with torch.no_grad():
        attention.weight.weight.copy_(torch.tensor([[np.log(3) / 2, 0.0]]))
    assert torch.allclose(attention(values, clips, 2, lengths), torch.tensor([[2.5, 5.0], [5.0, 5.0]])), "1 to 3"
    attention(values, clips, 2, lengths).sum().backward()
    assert attention.weight.weight.grad is not None
    half, many = torch.full((3000, 1), 60.0, dtype=torch.float16), torch.zeros(3000).long()
    for by_length in (False, True):
        assert SegmentMean(by_length)(half, many, 1, torch.full((3000,), 480_000)).item() == pytest.approx(60)


def test_mean_over_passt_segments_can_weight_each_segment_by_the_length_of_its_audio() -> None:
    """A clip of 10.02 s in segments of 10 s, whose two vectors are orthogonal."""
    values, lengths = torch.eye(2), torch.tensor([320_000, 640])
    pooled = [SegmentMean(by_length)(values, torch.zeros(2).long(), 1, lengths) for by_length in (False, True)]
    cosines = [float(torch.nn.functional.cosine_similarity(one, values[:1])) for one in pooled]
    assert cosines == pytest.approx([0.7071, 0.999998], abs=1e-4)


def test_passt_uses_a_random_section_of_a_clip_only_in_training() -> None:
    clip = torch.arange(20).short()[None, :, None]
    part = crop_long_clips(Series(clip, torch.tensor([20])), 8)
    assert part.lengths.tolist() == [8]
    assert (part.values[0, 1:, 0] - part.values[0, :-1, 0] == 1).all()
    whole = crop_long_clips(Series(clip, torch.tensor([20])), 30)
    assert whole.lengths.tolist() == [20]


def test_patchout_keeps_sorted_positions_without_repeats() -> None:
    places = draw_remaining_positions(62, 15, torch.device("cpu"))
    assert len(places) == len(set(places.tolist())) == 47
    assert places.tolist() == sorted(places.tolist())
    assert draw_remaining_positions(5, 9, torch.device("cpu")).shape == (1,)
    state = torch.get_rng_state()
    assert draw_remaining_positions(5, 0, torch.device("cpu")).tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn"


def test_passt_spec_augment_masks_have_the_log_mel_value_0_9(monkeypatch: pytest.MonkeyPatch) -> None:
    augment = {"time_stripes": 1, "time_width": 20, "band_stripes": 1, "band_width": 12}
    made = encoder(4, spec_augment=augment, patchout_time=0, segment_seconds=1, hop_seconds=1).train()
    seen: list[torch.Tensor] = []

    def forward(columns: torch.Tensor) -> torch.Tensor:
        seen.append(columns)
        return torch.zeros(2, 9, DIM)

    monkeypatch.setattr(made.network.transformer, "forward", forward)
    torch.manual_seed(3)
    made(batch_of(np.zeros(32_000, np.int16), np.zeros(16_000, np.int16)))
    made.eval()
    made(batch_of(np.zeros(32_000, np.int16), np.zeros(16_000, np.int16)))
    assert (seen[1] < -1.4).all(), "no masks in evaluation"
    masked = seen[0] > 0
    assert masked.any()
    assert seen[0][masked].tolist() == pytest.approx([0.9] * int(masked.sum()))
    for clip in masked:
        columns, bands = clip.all(0), clip.all(1)
        assert torch.equal(clip, columns[None] | bands[:, None])
        assert columns.sum() < 20
        assert bands.sum() < 12
    assert not torch.equal(masked[0], masked[1]), "each clip has its own"


@pytest.mark.slow
def test_frozen_passt_has_no_random_changes_in_training() -> None:
    made = encoder(4, trainable=False, weights="x.pt", segment_seconds=1, hop_seconds=1).train()
    audio = batch_of(np.random.default_rng(0).integers(-999, 999, 40_000).astype(np.int16))
    assert torch.equal(made(audio).values, made(audio).values)
    assert not any(parameter.requires_grad for parameter in made.network.parameters())
    trained = encoder(4, segment_seconds=1, hop_seconds=1, patchout_time=2).train()
    assert not torch.equal(trained(audio).values, trained(audio).values)


@pytest.mark.slow
def test_checkpoint_of_another_passt_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    tensors = {key: torch.zeros(shape) for key, shape in SHAPES["s16"].items()}
    torch.save({"model": tensors}, path)
    load_published(Passt("s16"), path)  # at the top, or under `model`
    with pytest.raises(KitError, match="shape"):
        load_published(Passt("s10"), path)
    with pytest.raises(ValueError, match="patches"):
        network()(torch.zeros(1, 128, 1008))


def test_passt_lists_only_modules_with_trainable_parameters_as_trained() -> None:
    for changes in ({}, {"segment_pooling": "attention", "hidden": 7}, {"trainable": False, "weights": "x.pt"}):
        made = Settings.model_validate(settings(**changes))
        network = made.build(12)
        trained = {
            name: sum(p.numel() for p in part.parameters() if p.requires_grad) > 0
            for name, part in network.parts().items()
        }
        assert made.trained_parts == trained
    frozen = sum(p.numel() for p in network.parts()["network"].parameters() if not p.requires_grad)
    assert frozen == 85_310_208  # as its authors count it without its heads
