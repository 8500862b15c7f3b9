"""BEATs with filled weights: outputs of the original code, and mistakes that must be noticed."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modern
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from filled import htk_edges, triangles
from loaded import largest, relative
from threads import one_thread  # noqa: F401  a fixture
from torch import nn

from data_tools.errors import KitError
from system.networks import beats
from system.networks.beats import Beats, distance_buckets
from system.networks.beats_published import CONFIG, PARAMETERS
from system.networks.kaldi_fbank import KaldiFbank, mel_triangles, symmetric_window

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("patch_embedding.weight", "post_extract_proj.", "weight_g", "pos_conv.0.bias")


@functools.cache
def network() -> Beats:
    made: Beats = modern.built(lambda: Beats("alone"), "beats_ft")
    return made


def front_end() -> Beats:
    """A network whose log-mel alone is used."""
    made = Beats.__new__(Beats)
    nn.Module.__init__(made)
    made.front_end = KaldiFbank("povey", beats.SCALE)
    return made


def fbank_error(made: Beats) -> float:
    return largest(made.log_mel(modern.wave("A3"))[0], modern.golden()["beats_A3_fbank"])


def test_beats_log_mel_matches_original_code() -> None:
    golden, made = modern.golden(), front_end()
    assert fbank_error(made) < 5e-4
    for clip in "AB":
        found = made.log_mel(modern.wave(clip))[0]
        assert found.shape == tuple(golden[f"beats_{clip}_fbank_shape"])
        assert largest(found[golden[f"beats_{clip}_fbank_frames"]], golden[f"beats_{clip}_fbank_at"]) < 1e-3
    silence = made.log_mel(modern.wave("S"))
    assert silence.unique().tolist() == pytest.approx(golden["beats_S_fbank_value"], abs=1e-6)
    assert made.log_mel(modern.wave("C")).shape[1:] == tuple(golden["beats_C_fbank_shape"])
    for clip in "ABC":
        found = made.log_mel(modern.wave(clip))[0].double()
        statistics = [float(found.mean()), float(found.std(correction=0))]
        assert statistics == pytest.approx(golden[f"beats_{clip}_fbank_mean_std"], abs=1e-5)


@pytest.mark.parametrize(("window", "exponent", "scale"), [("povey", 0.85, 2.0**15), ("hann", 1.0, 1.0)])
def test_kaldi_log_mel_of_recordings_matches_numpy(shared: Path, window: Any, exponent: float, scale: float) -> None:
    made = KaldiFbank(window, scale)
    for samples in [*modern.recordings(shared), np.zeros(16_000, np.float32)]:
        found = made(torch.from_numpy(samples)[None])[0]
        assert largest(found, modern.kaldi_log_mel(samples, exponent, scale)) < 5e-4


def other_window(window: torch.Tensor) -> Callable[[Beats, pytest.MonkeyPatch], None]:
    return lambda made, patch: patch.setattr(made.front_end, "window", window)


def triangles_in_hertz(made: Beats, patch: pytest.MonkeyPatch) -> None:
    basis = torch.from_numpy(triangles(htk_edges(128, 20, 8000), 16_000, 512).T.copy())
    patch.setitem(made.front_end._buffers, "basis", basis)


def bands_from_zero(made: Beats, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("system.networks.kaldi_fbank.LOWEST", 0.0)
    patch.setitem(made.front_end._buffers, "basis", mel_triangles().double().T)


FRONT_MISTAKES: dict[str, tuple[float, Callable[[Beats, pytest.MonkeyPatch], None]]] = {
    "periodic window": (0.03, other_window(torch.hann_window(400, dtype=torch.float64) ** 0.85)),
    "triangles linear in Hz": (5e-4, triangles_in_hertz),
    "Hann for Povey": (0.2, other_window(symmetric_window("hann"))),
    "no factor 2**15": (1.0, lambda made, patch: patch.setattr(made.front_end, "scale", 1.0)),
    "deviation not doubled": (1.0, lambda _, patch: patch.setattr(beats, "SPREAD", 6.55582)),
    "no pre-emphasis": (0.5, lambda _, patch: modern.no_pre_emphasis(patch)),
    "mean of samples kept": (0.2, lambda _, patch: modern.mean_kept(patch)),
    "magnitude": (0.5, lambda _, patch: modern.magnitude(patch)),
    "bands from 0 Hz": (1.0, bands_from_zero),
}


@pytest.mark.parametrize("mistake", FRONT_MISTAKES)
def test_planted_mistakes_in_beats_log_mel_exceed_the_test_tolerance(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, plant = FRONT_MISTAKES[mistake]
    made = front_end()
    plant(made, monkeypatch)
    assert fbank_error(made) > error


def test_beats_distance_buckets_match_original_code() -> None:
    assert distance_buckets(torch.arange(-2000, 2001)).tolist() == modern.golden()["beats_bucket_of_offset"].tolist()


def test_beats_mask_matches_original_code() -> None:
    made = Beats.__new__(Beats)
    nn.Module.__init__(made)
    made.padding = "original"
    lengths = torch.tensor([160_000, 88_000])
    assert (~made._token_mask(lengths, 160_000, 998, 496)).tolist() == modern.golden()["beats_pad_mask"].tolist()
    made.padding = "alone"
    counts = made._token_mask(torch.tensor([160_000, 88_000, 2799, 1]), 160_000, 998, 496).sum(1)
    assert counts.tolist() == [496, 272, 8, 8]


def token_errors(made: Beats) -> list[float]:
    """Errors of the stages of A3, in order, and of the last tokens."""
    stages: dict[str, torch.Tensor] = {}
    hooks = [
        made.post_extract_proj.register_forward_hook(lambda _, __, output: stages.update(patches=output)),
        made.encoder.layers[0].register_forward_pre_hook(lambda _, inputs: stages.update(pos=inputs[0])),
        made.encoder.layers[0].register_forward_hook(lambda _, __, output: stages.update(block1=output)),
    ]
    waves = modern.wave("A3")
    stages["tokens"] = made.tokens(waves, modern.whole(waves))[0]
    for hook in hooks:
        hook.remove()
    names = ("patches", "pos", "block1", "tokens")
    return [relative(stages[name][0, ::4], modern.golden()[f"beats_A3_{name}_every4"]) for name in names]


@pytest.mark.slow
@torch.inference_mode()
def test_intermediate_outputs_of_beats_match_original_code() -> None:
    assert max(token_errors(network())) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("clip", ["A3", "A", "B", "C"])
@torch.inference_mode()
def test_beats_outputs_match_original_code(clip: str) -> None:
    golden, made, waves = modern.golden(), network(), modern.wave(clip)
    tokens, mask = made.tokens(waves, modern.whole(waves))
    assert mask.all()
    assert mask.sum().item() == golden[f"beats_{clip}_n_tokens"].item()
    assert relative(tokens.mean(1)[0], golden[f"beats_{clip}_mean"]) < 2e-5
    assert relative(probabilities(tokens, mask)[0], golden[f"beats_{clip}_probs"]) < 2e-5
    frames, counts = made.frames(waves, modern.whole(waves))
    expected, step = modern.rows_of(clip, "beats_{}_frames")
    assert counts.tolist() == [frames.shape[1]]
    assert relative(frames[0, ::step], expected) < 1e-4
    if clip == "A3":
        assert relative(made(waves, modern.whole(waves))[0], golden["beats_A3_mean"]) < 2e-5


def probabilities(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    values = modern.tensors("beats_ft")
    logits = F.linear(tokens, values["predictor.weight"], values["predictor.bias"])
    return ((logits * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)).sigmoid()


@pytest.mark.slow
@torch.inference_mode()
def test_beats_batch_with_padding_matches_original_code(monkeypatch: pytest.MonkeyPatch) -> None:
    golden, made = modern.golden(), network()
    waves = torch.cat([modern.wave("A"), F.pad(modern.wave("B"), (0, 72_000))])
    lengths = torch.tensor([160_000, 88_000])
    alone = made(waves, lengths)
    assert relative(alone[1], golden["beats_B_mean"]) < 2e-5
    assert relative(made(waves, modern.whole(waves))[1], golden["beats_B_padded_nomask_mean"]) < 2e-5
    assert relative(golden["beats_B_padded_nomask_mean"], golden["beats_B_mean"]) > 0.3
    monkeypatch.setattr(made, "padding", "original")
    tokens, mask = made.tokens(waves, lengths)
    assert relative(made(waves, lengths), golden["beats_pad_mean"]) < 2e-5
    expected = golden["beats_padB_tokens_every8"]
    assert relative(tokens[1, 4::8][: len(expected)], expected) < 1e-4
    assert relative(probabilities(tokens, mask), golden["beats_pad_probs"]) < 2e-5


def pre_norm(patch: pytest.MonkeyPatch) -> None:
    def forward(block: Any, x: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + block.self_attn(block.self_attn_layer_norm(x), bias, mask)
        return x + block.fc2(F.gelu(block.fc1(block.final_layer_norm(x))))  # type: ignore[no-any-return]

    patch.setattr(beats._Block, "forward", forward)


def other_gate(made: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(beats._Attention, "_gate", made)


def pairs_of_four(attention: Any, query: torch.Tensor) -> torch.Tensor:
    first, second = attention.grep_linear(query).unflatten(3, (4, 2)).sum(-2).sigmoid().split(1, 3)
    return first * (second * attention.grep_a - 1) + 2  # type: ignore[no-any-return]


def reversed_offsets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(beats, "distance_buckets", lambda offsets: distance_buckets(-offsets))


def first_output_dropped(positions: Any, x: torch.Tensor) -> torch.Tensor:
    weight = positions.weight_v * (positions.weight_g / positions.weight_v.norm(dim=(0, 1), keepdim=True))
    apply_convolutions = F.conv1d(x.transpose(1, 2), weight, positions.bias, padding=64, groups=16)
    return F.gelu(apply_convolutions[..., 1:]).transpose(1, 2)


def norm_per_output(positions: Any, x: torch.Tensor) -> torch.Tensor:
    weight = positions.weight_v * (positions.weight_g / positions.weight_v.norm(dim=(1, 2), keepdim=True))
    apply_convolutions = F.conv1d(x.transpose(1, 2), weight, positions.bias, padding=64, groups=16)
    return F.gelu(apply_convolutions[..., :-1]).transpose(1, 2)


def other_positions(made: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(beats._Positions, "forward", made)


def without_norm(norm: Callable[[], nn.Module]) -> Callable[[pytest.MonkeyPatch], None]:
    def forward(layer: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        return x if layer is norm() else NORM(layer, x)

    return lambda patch: patch.setattr(nn.LayerNorm, "forward", forward)


def bias_in_first_block(patch: pytest.MonkeyPatch) -> None:
    first, plain = next(part for part in network().modules() if isinstance(part, beats._Block)), beats._Block.forward

    def forward(block: Any, x: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return plain(block, x, bias if block is first else torch.zeros_like(bias), mask)

    patch.setattr(beats._Block, "forward", forward)


def no_scale(patch: pytest.MonkeyPatch) -> None:
    plain = F.scaled_dot_product_attention
    patch.setattr(F, "scaled_dot_product_attention", lambda *inputs: plain(*inputs, scale=1.0))


NORM = nn.LayerNorm.forward
GATE = beats._Attention._gate
MISTAKES: dict[str, tuple[float, Callable[[pytest.MonkeyPatch], None]]] = {
    "tanh GELU": (2e-4, modern.tanh_gelu),
    "pre-norm": (1.0, pre_norm),
    "no gate": (0.05, other_gate(lambda _, query: torch.ones_like(query[..., :1]))),
    "gate of scaled queries": (0.02, other_gate(lambda attention, query: GATE(attention, query / 8))),
    "gate of four pairs": (0.02, other_gate(pairs_of_four)),
    "distances up to 1280": (0.05, lambda patch: patch.setattr(beats, "MAX_DISTANCE", 1280)),
    "i - j": (0.1, reversed_offsets),
    "no bias": (0.1, other_gate(lambda _, query: torch.zeros_like(query[..., :1]))),
    "bias in the first block only": (0.08, bias_in_first_block),
    "no convolution": (0.5, other_positions(lambda _, x: torch.zeros_like(x))),
    "first output of the convolution dropped": (0.5, other_positions(first_output_dropped)),
    "weight norm over dimension 0": (0.2, other_positions(norm_per_output)),
    "no norm of patches": (0.2, without_norm(lambda: network().layer_norm)),
    "no norm before the blocks": (0.1, without_norm(lambda: network().encoder.layer_norm)),
    "no scale": (0.2, no_scale),
    "no DeepNorm": (0.5, lambda patch: patch.setattr(beats, "DEPTH_SCALE", 1.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_planted_mistakes_in_beats_exceed_the_test_tolerance(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error, plant = MISTAKES[mistake]
    plant(monkeypatch)
    assert token_errors(network())[-1] > error


@pytest.mark.slow
@torch.inference_mode()
def test_beats_tokens_in_the_wrong_order_exceed_the_test_tolerance() -> None:
    hook = network().patch_embedding.register_forward_hook(lambda _, __, output: output.transpose(2, 3))
    assert token_errors(network())[-1] > 0.5
    hook.remove()


@pytest.mark.slow
@torch.inference_mode()
def test_beats_epsilon_of_layer_norms_matches_original_code() -> None:
    made: Beats = modern.built(lambda: Beats("alone"), "beats_ft", *SMALL)
    waves, expected = modern.wave("A3"), modern.golden()["beats_A3_small_mean"]
    assert relative(made(waves, modern.whole(waves))[0], expected) < 2e-5
    for module in made.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    assert relative(made(waves, modern.whole(waves))[0], expected) > 0.1


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """BEATs of one block, to save time."""
    monkeypatch.setattr(beats, "BLOCKS", 1)


def checkpoint(path: Path, made: Beats, **changes: Any) -> Path:
    """A file in the layout of the published ones, with the table of distances in its layer."""
    key, name = "encoder.relative_attention_bias.weight", "encoder.layers.0.self_attn.relative_attention_bias.weight"
    tensors = {name if one == key else one: value for one, value in made.state_dict().items()}
    torch.save({"cfg": CONFIG | {"encoder_layerdrop": 0.05} | changes, "model": tensors}, path)
    return path


@pytest.mark.usefixtures("narrow")
def test_beats_checkpoint_is_loaded_with_old_and_new_names(tmp_path: Path) -> None:
    made, other = Beats("alone"), Beats("alone")
    path = checkpoint(tmp_path / "beats.pt", made)
    other.load_published(path)
    content = torch.load(path)
    for part, new in beats.NEW_NAMES.items():
        content["model"][f"encoder.pos_conv.0.{new}"] = content["model"].pop(f"encoder.pos_conv.0.{part}")
    torch.save(content, path)
    third = Beats("alone")
    third.load_published(path)
    for key, value in made.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])
        assert torch.equal(value, third.state_dict()[key])


@pytest.mark.usefixtures("narrow")
def test_beats_checkpoint_with_another_configuration_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "x.pt", Beats("alone"), max_distance=1280, layer_norm_first=True)
    said = (
        r"its setting layer_norm_first is True, not False; its setting max_distance is 1280, not 800; name a checkpoint"
    )
    with pytest.raises(KitError, match=said):
        Beats("alone").load_published(path)
    torch.save({"model": {}}, path)
    with pytest.raises(KitError, match="tensors"):
        Beats("alone").load_published(path)


@pytest.mark.usefixtures("narrow")
def test_beats_gradient_decay_changes_gradients_only() -> None:
    made = Beats("alone").eval()
    waves = modern.wave("A3")[:, :8000]
    gradients, values = [], []
    for made.encoder.gradient_decay in (1.0, 0.6):
        made.zero_grad()
        values.append(made(waves, modern.whole(waves)))
        values[-1].square().sum().backward()
        assert made.patch_embedding.weight.grad is not None
        gradients.append(made.patch_embedding.weight.grad.clone())
    assert relative(values[0].detach(), values[1].detach().numpy()) < 1e-5
    assert relative(gradients[1], 0.6 * gradients[0].numpy()) < 1e-3


def test_beats_parameter_count_matches_published() -> None:
    with torch.device("meta"):
        assert sum(one.numel() for one in Beats("alone").parameters()) == PARAMETERS
    keys = {key for key in modern.described("beats_ft")["keys"] if "predictor" not in key}
    expected_keys = {key.replace("encoder.relative", "encoder.layers.0.self_attn.relative") for key in network_keys()}
    assert expected_keys == {key for key in keys if "relative" not in key or ".0." in key}


def network_keys() -> set[str]:
    with torch.device("meta"):
        return set(Beats("alone").state_dict())
