"""BEATs, EAT, M2D and M2D-CLAP in recipes: settings, frozen frames, plans and training, with networks of one block."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from loaded import relative
from quick import first_quick
from test_beats import checkpoint
from threads import one_thread  # noqa: F401  a fixture

from system.__main__ import main
from system.experiments.summary import weight_licences_of
from system.experts import BeatsExpert, EatExpert, M2dClapExpert, M2dExpert
from system.experts.segmented import SegmentExpert
from system.models.audio import Beats, Eat, M2d, M2dClap
from system.models.audio.segmented import FromPublished
from system.models.batch import Series
from system.networks import beats, eat, m2d
from system.networks.eat_published import VARIANTS, Variant
from system.networks.m2d_published import CLAP_GEOMETRY, choose_geometry
from system.recipe.load import load_recipe

pytestmark = pytest.mark.usefixtures("one_thread", "narrow")

CPU = torch.device("cpu")
KINDS: dict[str, tuple[type[FromPublished], dict[str, Any]]] = {
    "beats": (Beats, {"padding": "alone"}),
    "eat": (Eat, {"network": "base", "columns": "multiple_of_16", "vector": "cls"}),
    "m2d": (M2d, {"geometry": "80x608p16x16", "bands": "mean"}),
    "m2d_clap": (M2dClap, {}),
}
EXPERTS = {"beats": BeatsExpert, "eat": EatExpert, "m2d": M2dExpert, "m2d_clap": M2dClapExpert}
TITLES = {"beats": "BEATs", "eat": "EAT base", "m2d": "M2D", "m2d_clap": "M2D-CLAP 2025"}
LICENCES = {"beats": "MIT", "eat": "MIT", "m2d": "non-commercial", "m2d_clap": "non-commercial"}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block, to save time."""
    monkeypatch.setattr(beats, "BLOCKS", 1)
    monkeypatch.setattr(m2d, "BLOCKS", 1)
    monkeypatch.setitem(VARIANTS, "base", Variant("https://example.org/model.safetensors", blocks=1))


def settings(kind: str, **changes: Any) -> FromPublished:
    common = {"weights": None, "trainable": True, "segment_seconds": 1, "hop_seconds": 1, "max_seconds": 2}
    common |= {"segment_pooling": "mean", "hidden": None}
    model, special = KINDS[kind]
    return model.model_validate({"kind": kind} | common | special | changes)


def clips(rate: int, *seconds: float) -> dict[str, Series]:
    random, lengths = np.random.default_rng(1), [round(one * rate) for one in seconds]
    values = np.zeros((len(seconds), max(lengths), 1), np.int16)
    for row, length in zip(values, lengths, strict=True):
        row[:length, 0] = random.integers(-9000, 9000, length)
    return {"waveform": Series(torch.from_numpy(values), torch.tensor(lengths))}


@pytest.mark.parametrize("kind", KINDS)
def test_modern_encoder_embeds_a_clip_alike_alone_and_in_a_batch(kind: str) -> None:
    chosen = settings(kind)
    made, audio = chosen.build(8).eval(), clips(16_000, 1.7, 0.3, 0.01)
    whole = audio["waveform"]
    with torch.inference_mode():
        together = made(audio).values
        assert together.isfinite().all()
        for index, row in enumerate(together):
            length = int(whole.lengths[index])
            one = Series(whole.values[index : index + 1, :length], whole.lengths[index : index + 1])
            assert relative(made({"waveform": one}).values[0], row.numpy()) < 1e-4
    made.train()(audio).values.square().sum().backward()
    for name, part in made.parts().items():
        assert chosen.trained_parts[name] == any(one.grad is not None for one in part.parameters())


def expert(kind: str, folder: Path, **changes: Any) -> SegmentExpert:
    """A frozen network with random weights."""
    torch.manual_seed(3)
    path, common = folder / "80x608p16x16.pth", {"segment_seconds": 1.0, "output": "frames"}
    if kind == "beats":
        checkpoint(path, beats.Beats("alone"))
        return BeatsExpert.model_validate({"kind": kind, "weights": str(path), "padding": "alone"} | common | changes)
    if kind == "eat":
        torch.save({"model": eat.Eat("base", 1024, "cls").state_dict()}, path)
        values = KINDS[kind][1] | common | changes
        return EatExpert.model_validate({"kind": kind, "weights": str(path)} | values)
    if kind == "m2d":
        torch.save(m2d.M2d(choose_geometry("80x608p16x16", None), "mean").state_dict(), path)
        values = {"geometry": None, "bands": "stacked"} | common | changes
        return M2dExpert.model_validate({"kind": kind, "weights": str(path)} | values)
    torch.save(m2d.M2dClap(CLAP_GEOMETRY).state_dict(), path)
    return M2dClapExpert.model_validate({"kind": kind, "weights": str(path)} | common | changes)


PER_SECOND = {"beats": 6, "eat": 7, "m2d": 7, "m2d_clap": 7}
IN_HALF = {"beats": 3, "eat": 4, "m2d": 4, "m2d_clap": 4}


@pytest.mark.slow
@pytest.mark.parametrize("kind", first_quick(KINDS, 2))
def test_modern_experts_give_frames_of_consecutive_segments(kind: str, tmp_path: Path) -> None:
    made, random = expert(kind, tmp_path), np.random.default_rng(0)
    waves = [random.normal(0, 0.1, size).astype(np.float32) for size in (24_000, 16_000, 8000)]
    waves += [np.zeros(20_000, np.float32), np.full(1, 0.5, np.float32)]
    compute = made.load(CPU)
    found = compute(waves)
    assert [len(one) for one in found[:3]] == [PER_SECOND[kind] + IN_HALF[kind], PER_SECOND[kind], IN_HALF[kind]]
    for wave, frames in zip(waves, found, strict=True):
        assert frames.shape[1] == made.dim
        assert np.isfinite(frames).all()
        assert len(frames) >= 1
        assert relative(compute([wave])[0], frames) < 1e-4
    assert relative(compute([waves[0][16_000:]])[0], found[0][PER_SECOND[kind] :]) < 1e-4
    clip = expert(kind, tmp_path, output="clip")
    vectors = clip.load(CPU)(waves)
    assert [one.shape for one in vectors[:3]] == [(2, made.dim), (1, made.dim), (1, made.dim)]
    assert clip.frames_per_second == 1.0
    assert made.frames_per_second == PER_SECOND[kind]
    ten = made.model_copy(update={"segment_seconds": 10.0})
    assert ten.frames_per_second == pytest.approx({"beats": 6.2, "eat": 6.3, "m2d": 6.3, "m2d_clap": 6.2}[kind])
    assert made.bank_name() != clip.bank_name()


def test_modern_expert_embedding_has_3840_values_if_bands_are_stacked_and_768_if_averaged(tmp_path: Path) -> None:
    assert expert("m2d", tmp_path).dim == 3840
    assert expert("m2d", tmp_path, bands="mean").dim == 768


def recipe(world: Path, folder: Path, kind: str, **changes: Any) -> Path:
    content = tiny.recipe(world, folder, only=tiny.stage(epochs=1, steps_per_epoch=2))
    content["model"]["audio"] = settings(kind, **changes).model_dump()
    return tiny.write_recipe(folder / "r.yaml", content)


@pytest.mark.parametrize("kind", KINDS)
def test_verb_check_prints_the_licence_of_the_weights_of_a_modern_encoder(
    world: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(recipe(world, tmp_path, kind))]) == 0
    said = capsys.readouterr().out
    assert f"{TITLES[kind]}, trained, from scratch" in said
    assert "nothing is missing" in said
    assert "parameters  unknown" not in said
    path = recipe(world, tmp_path, kind, weights=f"{tmp_path}/80x608p16x16.pth", trainable=False)
    assert main(["check", str(path)]) == 1
    said = capsys.readouterr().out
    assert f"{TITLES[kind]}, frozen, from {tmp_path}/80x608p16x16.pth, licence " in said
    assert LICENCES[kind] in said
    assert "MISSING" in said


@pytest.mark.parametrize("kind", KINDS)
def test_result_records_the_licences_of_published_weights(world: Path, tmp_path: Path, kind: str) -> None:
    scratch = load_recipe(recipe(world, tmp_path, kind)).recipe
    assert weight_licences_of(scratch) == {}
    published = load_recipe(recipe(world, tmp_path, kind, weights=f"{tmp_path}/80x608p16x16.pth")).recipe
    assert LICENCES[kind] in weight_licences_of(published)["audio"]
    content = tiny.recipe(world, tmp_path)
    usual = EXPERTS[kind].usual | {"weights": "80x608p16x16.pth"}
    content["model"]["audio"]["experts"]["mine"] = {"kind": kind} | usual
    found = weight_licences_of(load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe)
    assert list(found) == ["mine"]
    assert LICENCES[kind] in found["mine"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_modern_encoders_train_and_rank(world: Path, tmp_path: Path, kind: str) -> None:
    path = recipe(world, tmp_path, kind)
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    assert 0 <= json.loads((tmp_path / "run/result.json").read_text())["rank"]["evaluation"]["mAP@10"] <= 1
