"""EAT with filled weights: outputs of the original code, and mistakes that must be noticed."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modern
import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from loaded import largest, relative
from threads import one_thread  # noqa: F401  a fixture
from torch import nn

from data_tools.errors import KitError
from system.networks import eat
from system.networks.eat import Eat, position_table
from system.networks.eat_published import PARAMETERS, VARIANTS, Variant
from system.networks.kaldi_fbank import symmetric_window
from system.networks.transformer_blocks import Attention, Block, PostNormBlock

pytestmark = pytest.mark.usefixtures("one_thread")

NORM = nn.LayerNorm.forward
INPUTS = ["A3_304", "A1024", "A1008", "B1024", "B560", "C1024", "C3200"]
SMALL = ("extra_tokens", "local_encoder.proj.")


@functools.cache
def network() -> Eat:
    made: Eat = modern.built(lambda: Eat("base", 1024, "cls"), "eat_base")
    return made


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Eat:
    """The network, set to the next multiple of 16 columns."""
    monkeypatch.setattr(network(), "columns", "multiple_of_16")
    return network()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """EAT base of one block, to save time."""
    monkeypatch.setitem(VARIANTS, "base", Variant("https://example.org/model.safetensors", blocks=1))


def log_mel(made: Eat, clip: str) -> torch.Tensor:
    """The log-mel of a clip without the columns of padding."""
    waves = modern.wave(clip)
    return made.log_mel(waves, modern.whole(waves))[0, : 1 + (waves.shape[1] - 400) // 160]


@pytest.mark.usefixtures("narrow")
def test_eat_log_mel_matches_original_code() -> None:
    golden, made = modern.golden(), Eat("base", "multiple_of_16", "cls")
    assert largest(log_mel(made, "A3"), golden["eat_A3_fbank"]) < 5e-4
    for clip in "AB":
        found = log_mel(made, clip)
        assert found.shape == tuple(golden[f"eat_{clip}_fbank_shape"])
        assert largest(found[golden[f"eat_{clip}_fbank_frames"]], golden[f"eat_{clip}_fbank_at"]) < 1e-3
        statistics = [float(found.double().mean()), float(found.double().std(correction=0))]
        assert statistics == pytest.approx(golden[f"eat_{clip}_fbank_mean_std"], abs=1e-5)
    assert log_mel(made, "S").unique().tolist() == pytest.approx(golden["eat_S_fbank_value"], abs=1e-6)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("error", "plant"), [(0.3, modern.mean_kept), (0.4, modern.magnitude), (0.5, modern.no_pre_emphasis)]
)
def test_planted_mistakes_in_eat_log_mel_exceed_the_test_tolerance(
    error: float, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = log_mel(Eat("base", "multiple_of_16", "cls"), "A3")
    assert np.abs(found.numpy() - modern.golden()["eat_A3_fbank"]).max() > error


@pytest.mark.usefixtures("narrow")
def test_eat_padding_is_zero_before_the_normalisation() -> None:
    made, waves = Eat("base", 1024, "cls"), F.pad(modern.wave("A3"), (0, 112_000))
    padded = made.log_mel(waves, torch.tensor([48_000]))
    assert padded.shape == (1, 1024, 128)
    assert torch.equal(padded[0, :298], log_mel(Eat("base", "multiple_of_16", "cls"), "A3"))
    assert padded[0, 298:].unique().tolist() == pytest.approx([0.467061], abs=1e-6)


def test_eat_positions_match_original_code() -> None:
    golden = modern.golden()
    assert relative(position_table(768)[golden["eat_position_rows"]], golden["eat_position_at"]) < 2e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
@torch.inference_mode()
def test_eat_outputs_match_original_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    golden, made, clip = modern.golden(), network(), "A3" if name == "A3_304" else name[0]
    monkeypatch.setattr(made, "columns", 1024 if name.endswith("1024") else "multiple_of_16")
    waves = modern.wave(clip)
    tokens, mask = made.tokens(waves, modern.whole(waves))
    assert mask is None or mask.all()
    assert relative(tokens[0, 0], golden[f"eat_{name}_cls"]) < 2e-5
    assert relative(tokens[0, 1:].mean(0), golden[f"eat_{name}_mean"]) < 2e-5
    values = modern.tensors("eat_base")
    normed = F.layer_norm(tokens[0, 0], (768,), values["fc_norm.weight"], values["fc_norm.bias"], 1e-6)
    logits = F.linear(normed, values["head.weight"], values["head.bias"])
    assert relative(logits, golden[f"eat_{name}_logits"]) < 2e-5
    if any(key.startswith(f"eat_{name}_frames") for key in golden):
        expected, step = modern.rows_of(name, "eat_{}_frames")
        frames = tokens[0, 1:].unflatten(0, (-1, 8)).mean(1)
        assert relative(frames[::step], expected) < 1e-4


@pytest.mark.slow
@torch.inference_mode()
def test_eat_embeddings_and_frames_computed_from_its_tokens_match_original_code(
    made: Eat, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, waves = modern.golden(), modern.wave("A3")
    assert relative(made(waves, modern.whole(waves))[0], golden["eat_A3_304_cls"]) < 2e-5
    monkeypatch.setattr(made, "vector", "mean")
    assert relative(made(waves, modern.whole(waves))[0], golden["eat_A3_304_mean"]) < 2e-5
    frames, counts = made.frames(waves, modern.whole(waves))
    assert counts.tolist() == [19]
    assert relative(frames[0], golden["eat_A3_304_frames"]) < 1e-4


@pytest.mark.slow
@torch.inference_mode()
def test_eat_embedding_of_a_clip_padded_to_a_longer_segment_matches_the_clip_alone(
    made: Eat, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, waves = modern.golden(), torch.cat([modern.wave("A"), F.pad(modern.wave("B"), (0, 72_000))])
    lengths = torch.tensor([160_000, 88_000])
    assert relative(made(waves, lengths), np.stack([golden["eat_A1008_cls"], golden["eat_B560_cls"]])) < 2e-5
    monkeypatch.setattr(made, "vector", "mean")
    assert relative(made(waves, lengths), np.stack([golden["eat_A1008_mean"], golden["eat_B560_mean"]])) < 2e-5
    monkeypatch.setattr(made, "columns", 1024)
    assert relative(made(waves, lengths), np.stack([golden["eat_A1024_mean"], golden["eat_B1024_mean"]])) < 2e-5
    assert made.frames(waves, lengths)[1].tolist() == [63, 35]


def token_errors(made: Eat) -> list[float]:
    """Errors of the stages of A3, in order, and of the last tokens."""
    stages: dict[str, torch.Tensor] = {}

    def patches(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        stages["patches"] = output.flatten(2).transpose(1, 2)

    hooks = [
        made.local_encoder["proj"].register_forward_hook(patches),
        made.pre_norm.register_forward_hook(lambda _, __, output: stages.update(pre=output)),
        made.blocks[0].register_forward_hook(lambda _, __, output: stages.update(block1=output)),
    ]
    waves = modern.wave("A3")
    stages["tokens"], _ = made.tokens(waves, modern.whole(waves))
    for hook in hooks:
        hook.remove()
    errors = []
    for name, values in stages.items():
        rows = range(0, values.shape[1], 4) if name == "patches" else [0, *range(1, values.shape[1], 4)]
        errors.append(relative(values[0, list(rows)], modern.golden()[f"eat_A3_304_{name}_every4"]))
    return errors


@pytest.mark.slow
@torch.inference_mode()
def test_intermediate_outputs_of_eat_match_original_code(made: Eat) -> None:
    errors = token_errors(made)
    assert len(errors) == 4
    assert max(errors) < 1e-4


def heads_first(attention: Attention, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    query, key, value = attention.qkv(x).unflatten(2, (attention.heads, 3, -1)).permute(3, 0, 2, 1, 4)
    attended = F.scaled_dot_product_attention(query, key, value)
    return attention.proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def no_scale(attention: Attention, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    query, key, value = attention.qkv(x).unflatten(2, (3, attention.heads, -1)).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(query, key, value, scale=1.0)
    return attention.proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def swapped_table() -> torch.Tensor:
    return torch.cat(position_table(768).split(384, 1)[::-1], 1)


def povey(made: Eat, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(made.front_end._buffers, "window", symmetric_window("povey"))


def norm_at_the_end(made: Eat, patch: pytest.MonkeyPatch) -> None:
    last = made.blocks[-1]
    plain = last.forward
    patch.setattr(last, "forward", lambda *inputs: F.layer_norm(plain(*inputs), (768,)))


Plant = Callable[[Eat, pytest.MonkeyPatch], None]
MISTAKES: dict[str, tuple[float, Plant]] = {
    "tanh GELU": (2e-4, lambda _, patch: modern.tanh_gelu(patch)),
    "pre-norm": (1.0, lambda _, patch: patch.setattr(PostNormBlock, "forward", Block.forward)),
    "axes of the table swapped": (0.2, lambda made, patch: patch.setitem(made._buffers, "positions", swapped_table())),
    "no positions": (0.3, lambda made, patch: patch.setitem(made._buffers, "positions", torch.zeros(6144, 768))),
    "Povey window": (0.02, povey),
    "factor 2**15": (0.3, lambda made, patch: patch.setattr(made.front_end, "scale", 2.0**15)),
    "deviation not doubled": (0.1, lambda _, patch: patch.setattr(eat, "SPREAD", 4.569)),
    "queries, keys and values by head": (0.5, lambda _, patch: patch.setattr(Attention, "forward", heads_first)),
    "no scale": (0.2, lambda _, patch: patch.setattr(Attention, "forward", no_scale)),
    "one more norm at the end": (1e-3, norm_at_the_end),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_planted_mistakes_in_eat_exceed_the_test_tolerance(
    made: Eat, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, plant = MISTAKES[mistake]
    plant(made, monkeypatch)
    assert token_errors(made)[-1] > error


@pytest.mark.slow
@torch.inference_mode()
def test_wrong_order_of_eat_tokens_exceeds_the_test_tolerance(made: Eat) -> None:
    hook = made.local_encoder["proj"].register_forward_hook(lambda _, __, output: output.transpose(2, 3))
    assert token_errors(made)[-1] > 0.2
    hook.remove()


@pytest.mark.slow
@torch.inference_mode()
def test_eat_without_class_token_or_first_norm_exceeds_the_test_tolerance(
    made: Eat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_first(block: nn.Module, inputs: Any) -> Any:
        x, mask = inputs
        return x[:, 1:] if block is made.blocks[0] else x, mask[:, 1:]

    waves, golden = modern.wave("A3"), modern.golden()
    hooks = [block.register_forward_pre_hook(without_first) for block in made.blocks]
    tokens, _ = made.tokens(waves, modern.whole(waves))
    for hook in hooks:
        hook.remove()
    assert relative(tokens[0].mean(0), golden["eat_A3_304_mean"]) > 5e-3
    assert relative(golden["eat_A3_304_mean"], golden["eat_A3_304_cls"]) > 0.1
    monkeypatch.setattr(type(made.pre_norm), "forward", lambda norm, x: x if norm is made.pre_norm else NORM(norm, x))
    assert token_errors(made)[-1] > 0.1


@pytest.mark.slow
@torch.inference_mode()
def test_planted_padding_after_the_normalisation_in_eat_exceeds_the_test_tolerance(
    made: Eat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def padded(made: Eat, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        columns = (made.front_end(waves) - eat.MEAN) / eat.SPREAD
        return F.pad(columns, (0, 0, 0, 1024 - columns.shape[1]))

    monkeypatch.setattr(made, "columns", 1024)
    monkeypatch.setattr(Eat, "log_mel", padded)
    waves = modern.wave("B")
    assert relative(made(waves, modern.whole(waves))[0], modern.golden()["eat_B1024_cls"]) > 0.1


@pytest.mark.slow
@torch.inference_mode()
def test_eat_epsilon_of_layer_norms_matches_original_code(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Eat = modern.built(lambda: Eat("base", "multiple_of_16", "cls"), "eat_base", *SMALL)
    monkeypatch.setitem(made._buffers, "positions", position_table(768) * 2**-10)
    waves, expected = modern.wave("A3"), modern.golden()["eat_A3_304_small_cls"]
    assert relative(made(waves, modern.whole(waves))[0], expected) < 2e-5
    for module in made.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    assert relative(made(waves, modern.whole(waves))[0], expected) > 0.1


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("layout", ["hub", "fairseq", "fairseq_finetuned"])
def test_eat_checkpoints_of_all_layouts_are_loaded(tmp_path: Path, layout: str) -> None:
    made, other = Eat("base", 1024, "cls"), Eat("base", 1024, "cls")
    values = made.state_dict()
    if layout == "hub":
        path = tmp_path / "model.safetensors.part"  # as during a download
        safetensors.torch.save_file({f"model.{key}": value for key, value in values.items()}, path)
    else:
        path, prefix = tmp_path / "eat.pt", "" if layout == "fairseq" else "model."
        renamed = {prefix + eat._fairseq_key(key): value for key, value in values.items()}
        torch.save({"model": renamed | {"_ema": {"x": torch.zeros(2)}}, "cfg": {"task": {"_name": "mae"}}}, path)
    other.load_published(path)
    assert all(torch.equal(value, values[key]) for key, value in other.state_dict().items())


@pytest.mark.usefixtures("narrow")
def test_eat_checkpoint_of_another_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"model.extra_tokens": torch.zeros(1, 1, 1024)}, path)
    with pytest.raises(KitError, match="shape"):
        Eat("base", 1024, "cls").load_published(path)
    path.write_bytes(b"0" * 30)
    with pytest.raises(KitError, match="truncated"):
        Eat("base", 1024, "cls").load_published(path)


def test_eat_keys_and_parameter_count_match_published() -> None:
    with torch.device("meta"):
        made = Eat("base", 1024, "cls")
    expected = {
        key: tuple(one["shape"])
        for key, one in modern.described("eat_base")["keys"].items()
        if not key.startswith(("fc_norm", "head")) and one["rule"] != "frozen"
    }
    assert {eat._fairseq_key(key): tuple(value.shape) for key, value in made.state_dict().items()} == expected
    assert sum(one.numel() for one in made.parameters()) == PARAMETERS


def test_eat_large_has_the_published_number_of_parameters() -> None:
    """309 million with the table of positions, as its README states; its output was not compared."""
    with torch.device("meta"):
        made = Eat("large", 1024, "cls")
    count = sum(one.numel() for one in made.parameters()) + 6144 * 1024
    assert round(count / 1e6) == 309
