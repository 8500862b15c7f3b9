"""M2D and M2D-CLAP with filled weights: outputs of the original code, and mistakes that must be noticed."""

import functools
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from typing import Any

import modern
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loaded import largest, relative
from test_m2d_log_mel import HANN, zero_padding
from threads import one_thread  # noqa: F401  a fixture
from torch import nn

from data_tools.errors import KitError
from system.networks import m2d
from system.networks.m2d import M2d, M2dClap, M2dLogMel
from system.networks.m2d_published import (
    ADDRESSES,
    CLAP_FILE,
    CLAP_GEOMETRY,
    CLAP_PARAMETERS,
    NORM_STATS,
    PARAMETERS,
    Geometry,
    choose_geometry,
    find_address,
    read_geometry_from_path,
)
from system.networks.transformer_blocks import Attention, Block, PostNormBlock

pytestmark = pytest.mark.usefixtures("one_thread")

G608 = Geometry(80, 608, 16, 16, 16_000)
NORM = nn.LayerNorm.forward
CLIPS = ["A3", "A", "B", "C"]
SMALL = ("cls_token", "pos_embed", "patch_embed.proj.")
SMALL_SEMANTIC = ("sem_token", "sem_blocks.0.attn.proj.", "sem_blocks.0.mlp.fc2.")


@functools.cache
def network() -> M2d:
    made: M2d = modern.built(lambda: M2d(G608, "stacked"), "m2d_608")
    return made


@functools.cache
def clap() -> M2dClap:
    made: M2dClap = modern.built(lambda: M2dClap(CLAP_GEOMETRY), "m2d_clap_2025")
    return made


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of one block, to save time."""
    monkeypatch.setattr(m2d, "BLOCKS", 1)


# Network


@pytest.mark.slow
@pytest.mark.parametrize("clip", CLIPS)
@torch.inference_mode()
def test_m2d_frames_match_original_code(clip: str) -> None:
    golden, made, waves = modern.golden(), network(), modern.wave(clip)
    frames, counts = made.frames(waves, modern.whole(waves))
    expected, step = modern.rows_of(clip, "m2d_608_{}_stack")
    assert counts.tolist() == [frames.shape[1]] == golden[f"m2d_608_{clip}_n_frames"].tolist()
    assert relative(frames[0, ::step], expected) < 2e-5
    assert relative(frames[0].mean(0), golden[f"m2d_608_{clip}_stack_mean"]) < 2e-5
    stamps = np.arange(len(frames[0])) * waves.shape[1] / 16 / len(frames[0])  # of the original, in ms
    assert largest(golden[f"m2d_608_{clip}_timestamps_ms"], stamps) < 2e-3
    assert largest(golden[f"m2d_608_{clip}_timestamps_ms"], 160.0 * np.arange(len(frames[0]))) < 160
    if clip == "A3":
        assert relative(made(waves, modern.whole(waves))[0], golden["m2d_608_A3_stack_mean"]) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("clip", CLIPS)
@torch.inference_mode()
def test_m2d_clap_embeddings_match_original_code(clip: str) -> None:
    golden, made, waves = modern.golden(), clap(), modern.wave(clip)
    tokens, counts = made.tokens(waves, modern.whole(waves))
    key = f"m2d_clap_2025_{clip}"
    assert counts.tolist() == golden[f"{key}_n_frames"].tolist()
    assert [tokens[0, :, :, 0].numel()] == golden[f"{key}_n_tokens"].tolist()
    assert relative(tokens[0].flatten(0, 1).mean(0), golden[f"{key}_token_mean"]) < 2e-5
    expected, step = modern.rows_of(clip, "m2d_clap_2025_{}_frames")
    assert relative(tokens[0].mean(0)[::step], expected) < 2e-5
    assert relative(made(waves, modern.whole(waves))[0], golden[f"{key}_embedding"]) < 2e-5


@pytest.mark.slow
@torch.inference_mode()
def test_m2d_fine_tuned_logits_match_original_code() -> None:
    """The classifier is not part of the kit; its input is the mean of the frames."""
    made: M2d = modern.built(lambda: M2d(CLAP_GEOMETRY, "stacked"), "m2d_as_ft")
    values = modern.tensors("m2d_as_ft")
    head = {key.removeprefix("module.head."): value for key, value in values.items() if "head" in key}
    for clip in CLIPS:
        waves = modern.wave(clip)
        vector = made(waves, modern.whole(waves))
        normed = F.batch_norm(vector, head["norm.running_mean"], head["norm.running_var"], eps=1e-5)
        logits = F.linear(normed, head["mlp.mlp.0.weight"], head["mlp.mlp.0.bias"])
        assert relative(logits[0], modern.golden()[f"m2d_as_ft_{clip}_logits"]) < 2e-5


@pytest.mark.slow
@torch.inference_mode()
def test_m2d_embedding_of_a_clip_padded_to_a_longer_segment_matches_the_clip_alone() -> None:
    golden, lengths = modern.golden(), torch.tensor([160_000, 88_000])
    waves = F.pad(torch.cat([modern.wave("A"), F.pad(modern.wave("B"), (0, 72_000))]), (0, 40_000))
    expected = np.stack([golden["m2d_608_A_stack_mean"], golden["m2d_608_B_stack_mean"]])
    assert relative(network()(waves, lengths), expected) < 2e-5
    expected = np.stack([golden["m2d_clap_2025_A_embedding"], golden["m2d_clap_2025_B_embedding"]])
    assert relative(clap()(waves, lengths), expected) < 2e-5


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("columns", "steps"), [(1, 1), (16, 1), (17, 2), (992, 62), (996, 62), (1001, 62), (1002, 63), (3201, 199)]
)
def test_m2d_number_of_time_steps_matches_hand_values(columns: int, steps: int) -> None:
    made = M2d(CLAP_GEOMETRY, "mean").eval()
    samples = (columns - 1) * 160 + 80
    assert made._columns_to_steps(torch.tensor([columns])).tolist() == [steps]
    if 3 < columns < 1500:
        waves = torch.zeros(1, samples)
        with torch.inference_mode():
            assert made.tokens(waves, modern.whole(waves))[0].shape == (1, 5, steps, 768)


def token_errors(made: M2d) -> list[float]:
    """Errors of the stages of A3, in order, and of the last tokens."""
    stages: dict[str, torch.Tensor] = {}

    def patches(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        stages["patches"] = output.flatten(2).transpose(1, 2)

    hooks = [
        made.patch_embed["proj"].register_forward_hook(patches),
        made.blocks[0].register_forward_pre_hook(lambda _, inputs: stages.update(pos=inputs[0])),
        made.blocks[0].register_forward_hook(lambda _, __, output: stages.update(block1=output)),
        made.norm.register_forward_hook(lambda _, __, output: stages.update(tokens=output)),
    ]
    waves = modern.wave("A3")
    made.tokens(waves, modern.whole(waves))
    for hook in hooks:
        hook.remove()
    errors = []
    for name, values in stages.items():
        rows = range(0, values.shape[1], 4) if name == "patches" else [0, *range(1, values.shape[1], 4)]
        errors.append(relative(values[0, list(rows)], modern.golden()[f"m2d_608_A3_{name}_every4"]))
    return errors


@pytest.mark.slow
@torch.inference_mode()
def test_intermediate_outputs_of_m2d_match_original_code() -> None:
    errors = token_errors(network())
    assert len(errors) == 4
    assert max(errors) < 2e-5


def positions_in_one_piece(made: M2d, patch: pytest.MonkeyPatch) -> None:
    table = made.pos_embed.clone()
    table[:, 1:] = 0
    first = made.pos_embed[:, 1:96].unflatten(1, (5, 19))
    table[:, 1:].unflatten(1, (5, 38))[:, :, :19] = first
    patch.setitem(made._parameters, "pos_embed", nn.Parameter(table, requires_grad=False))


def positions_from_zero(made: M2d, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(made._parameters, "pos_embed", nn.Parameter(made.pos_embed.roll(1, 1), requires_grad=False))


def other_stats(made: M2d, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(made._buffers, "norm_stats", torch.tensor([-6.0, 4.0]))


def symmetric(made: M2d, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(made.front_end._buffers, "window", HANN)


def no_last_norm(made: M2d, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.LayerNorm, "forward", lambda norm, x: x if norm is made.norm else NORM(norm, x))


def time_first(made: M2d, patch: pytest.MonkeyPatch) -> None:
    table = made.pos_embed.clone()
    table[:, 1:] = table[:, 1:].unflatten(1, (38, 5)).transpose(1, 2).flatten(1, 2)
    patch.setitem(made._parameters, "pos_embed", nn.Parameter(table, requires_grad=False))


Plant = Callable[[M2d, pytest.MonkeyPatch], None]
MISTAKES: dict[str, tuple[float, Plant]] = {
    "tanh GELU": (2e-4, lambda _, patch: modern.tanh_gelu(patch)),
    "symmetric Hann": (5e-3, symmetric),
    "zero padding": (0.05, lambda _, patch: patch.setattr(M2dLogMel, "_reflect_ends", zero_padding)),
    "positions cut in one piece": (0.5, positions_in_one_piece),
    "positions from entry 0": (0.5, positions_from_zero),
    "post-norm": (0.5, lambda _, patch: patch.setattr(Block, "forward", PostNormBlock.forward)),
    "other statistics": (0.02, other_stats),
    "no last norm": (1.0, no_last_norm),
    "positions read with time first": (0.5, time_first),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_planted_mistakes_in_m2d_exceed_the_test_tolerance(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error, plant = MISTAKES[mistake]
    plant(network(), monkeypatch)
    assert token_errors(network())[-1] > error


@pytest.mark.slow
@torch.inference_mode()
def test_m2d_concatenates_its_frequency_bands_in_the_original_order() -> None:
    waves, expected = modern.wave("A3"), modern.golden()["m2d_608_A3_stack_mean"]
    tokens, _ = network().tokens(waves, modern.whole(waves))
    assert relative(tokens[0].mean(1).T.flatten(), expected) > 0.5, "5 d + f"
    assert relative(tokens[0].mean(1).flatten(), expected) < 2e-5, "768 f + d"


@pytest.mark.slow
@torch.inference_mode()
def test_planted_mistakes_in_m2d_clap_exceed_the_test_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    golden, waves = modern.golden(), modern.wave("A3")
    expected = golden["m2d_clap_2025_A3_embedding"]
    assert relative(golden["m2d_clap_2025_A3_token_mean"], expected) > 0.5, "mean of tokens"
    attention = clap().audio_proj.sem_blocks[0].attn
    assert isinstance(attention, Attention)
    monkeypatch.setattr(attention, "heads", 12)
    assert relative(clap()(waves, modern.whole(waves))[0], expected) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m2d_608", "m2d_clap_2025"])
@torch.inference_mode()
def test_m2d_epsilons_of_layer_norms_match_original_code(name: str) -> None:
    waves, golden = modern.wave("A3"), modern.golden()
    if name == "m2d_608":
        made: M2d = modern.built(lambda: M2d(G608, "stacked"), name, *SMALL)
        expected, changed, eps = golden["m2d_608_A3_small_stack_mean"], made, 1e-5
    else:
        made = modern.built(lambda: M2dClap(CLAP_GEOMETRY), name, *SMALL_SEMANTIC)
        expected, changed, eps = golden["m2d_clap_2025_A3_small_embedding"], made.audio_proj, 1e-6
    assert relative(made(waves, modern.whole(waves))[0], expected) < 2e-5
    for module in changed.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps
    assert relative(made(waves, modern.whole(waves))[0], expected) > 0.1


# Files


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("prefix", ["", "backbone.", "module.ar.runtime.backbone."])
def test_m2d_archives_with_key_prefixes_are_loaded(tmp_path: Path, prefix: str) -> None:
    made, other = M2d(G608, "mean"), M2d(G608, "mean")
    made.norm_stats.copy_(torch.tensor([-7.2, 4.3]))  # type: ignore[operator]
    values = {prefix + key: value for key, value in made.state_dict().items()}
    folder = tmp_path / "m2d_vit_base-80x608p16x16-mr7"
    folder.mkdir()
    content = {"model": values | {"mask_token": torch.zeros(1)}, "args": Namespace(seed=1)}
    torch.save(content, folder / "checkpoint-300.pth")
    with zipfile.ZipFile(tmp_path / f"{folder.name}.zip", "w") as archive:
        archive.write(folder / "checkpoint-300.pth", f"{folder.name}/checkpoint-300.pth")
    copyfile(tmp_path / f"{folder.name}.zip", tmp_path / f"{folder.name}.zip.part")  # as during a download
    for path in (folder / "checkpoint-300.pth", *tmp_path.glob(f"{folder.name}.zip*")):
        assert read_geometry_from_path(path) == G608
        other.load_published(path)
        assert all(torch.equal(value, made.state_dict()[key]) for key, value in other.state_dict().items())
    del values[f"{prefix}norm_stats"]
    torch.save(values, folder / "old.pth")
    other.load_published(folder / "old.pth")
    assert other.norm_stats.tolist() == pytest.approx(NORM_STATS)  # type: ignore[operator]


@pytest.mark.usefixtures("narrow")
def test_m2d_file_of_another_geometry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save(M2d(G608, "mean").state_dict(), path)
    with pytest.raises(KitError, match="shape"):
        M2d(CLAP_GEOMETRY, "mean").load_published(path)
    with pytest.raises(KitError, match="tensor"):
        M2dClap(G608).load_published(path)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(KitError, match="truncated"):
        M2d(G608, "mean").load_published(tmp_path / "empty.zip")


def test_m2d_geometry_is_read_from_the_names_of_files() -> None:
    names = {name: read_geometry_from_path(Path("x") / name) for name in (*ADDRESSES, CLAP_FILE)}
    assert names["m2d_vit_base-80x200p16x4-230529.zip"] == Geometry(80, 200, 16, 4, 16_000)
    assert names["m2d_as_vit_base-80x1001p16x16p32k-240413_AS-FT_enconly.zip"] == CLAP_GEOMETRY._replace(rate=32_000)
    assert names[CLAP_FILE] == CLAP_GEOMETRY
    assert None not in names.values()
    assert read_geometry_from_path(Path("m2d_vit_base-80x608p16x16/checkpoint.pth")) == G608
    assert read_geometry_from_path(Path("m2d.pth")) is None
    assert choose_geometry("80x608p16x16", "m2d.pth") == choose_geometry(None, "80x608p16x16.zip") == G608
    assert find_address(Path("data/m2d_vit_base-80x200p16x4-230529.zip")).startswith("https://github.com/nttcslab/m2d/")
    assert find_address(Path("m2d_vit_base-80x200p16x4-230529/x.pth")).startswith("the archive https://")


@pytest.mark.parametrize(
    ("geometry", "weights", "said"),
    [
        (
            None,
            "m2d.pth",
            "contains",
        ),
        (None, None, "contains"),
        ("80x608", None, "x608"),
        ("80x608p0x16", None, "x608p0x16"),
        (
            "80x608p16x16",
            "80x1001p16x16.zip",
            "x608p16x16",
        ),
    ],
)
def test_unknown_or_contradicting_m2d_geometry_is_refused(geometry: str | None, weights: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        choose_geometry(geometry, weights)


@pytest.mark.parametrize(
    ("name", "make", "count"),
    [
        ("m2d_608", lambda: M2d(G608, "stacked"), PARAMETERS),
        ("m2d_clap_2025", lambda: M2dClap(CLAP_GEOMETRY), CLAP_PARAMETERS),
    ],
)
def test_m2d_keys_and_parameter_count_match_published(name: str, make: Callable[[], M2d], count: int) -> None:
    with torch.device("meta"):
        made = make()
    found = {key: tuple(value.shape) for key, value in made.state_dict().items()}
    assert found == {key: tuple(one["shape"]) for key, one in modern.described(name)["keys"].items()}
    assert sum(value.numel() for value in made.state_dict().values()) == count


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("name", "frames"), [("80x200p16x4", 76), ("80x1001p16x16p32k", 19)])
@torch.inference_mode()
def test_m2d_with_another_patch_size_gives_one_frame_per_column_of_patches(name: str, frames: int) -> None:
    """Not compared with the original code: three seconds."""
    geometry = choose_geometry(name, None)
    made = M2d(geometry, "stacked").eval()
    waves = torch.randn(1, 3 * geometry.rate, generator=torch.Generator().manual_seed(1)) * 0.1
    found, counts = made.frames(F.pad(waves, (0, 2 * geometry.rate)), modern.whole(waves))
    assert counts.tolist() == [frames]
    assert relative(made.frames(waves, modern.whole(waves))[0][0], found[0, :frames].numpy()) < 1e-4
    assert found.shape[2] == 3840
