"""Choice of the device and of the processes: the named ones if this machine has them."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
import tiny
import tiny_moments
import torch
from stand_in import GPU, AsOnGpu

from data_tools.cli import ranks
from data_tools.errors import KitError
from data_tools.manifest import read_manifest
from system.__main__ import main
from system.batches.items import Item
from system.batches.loader import collate
from system.devices import device_of, seed_generators
from system.features.extract import build_features
from system.models.batch import Batch, Series
from system.models.retrieval import RetrievalModel
from system.recipe import schema
from system.recipe.data import load_data
from system.recipe.load import load_recipe
from system.retriever import load_model
from system.runs.open import build_model
from system.training.step import add_gradients

HAS_GPU, NO_GPU = torch.cuda.is_available(), "needs a GPU"


@pytest.fixture
def _one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPU, reason=NO_GPU))])
def test_seeded_generators_draw_the_same_numbers_as_after_torch_manual_seed(device):
    torch.manual_seed(2**63 + 5)
    expected = torch.rand(9, device=device)
    seed_generators(2**63 + 5)
    assert torch.equal(torch.rand(9, device=device), expected)
    seed_generators(6)
    assert not torch.equal(torch.rand(9, device=device), expected)


@pytest.mark.usefixtures("_one_gpu")
def test_cuda_is_the_default_if_available():
    assert [str(device_of(name)) for name in (None, "cuda", "cuda:0", "cpu")] == ["cuda", "cuda", "cuda:0", "cpu"]
    with pytest.raises(KitError, match="machine"):
        device_of("cuda:1")


def test_missing_or_unknown_torch_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert str(device_of()) == "cpu"
    for name, words in (
        ("cuda", "no cuda on this machine"),
        ("cuda:1", "no cuda:1 on this machine"),
        ("mps", "no mps device on this machine"),
        ("gpu", "unknown device 'gpu'; use cuda, cuda:1"),
        ("cpu:1", "unknown device 'cpu:1'"),
    ):
        with pytest.raises(KitError, match=words):
            device_of(name)


@pytest.mark.parametrize("recipe", ["r.yaml", "r.study.yaml"])
def test_missing_device_is_refused_before_a_recipe_is_read(recipe, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["run", recipe, "--device", "cuda"]) == 1
    assert "machine" in capsys.readouterr().err


def test_device_option_is_used_for_training_and_recorded(world, tmp_path, unbroken, monkeypatch):
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=tiny.stage(epochs=1)))
    for user in ("system.experiments.run", "system.runs.open"):
        monkeypatch.setattr(f"{user}.device_of", lambda: pytest.fail("the default is asked for"))
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["hardware"].endswith(", no GPU")
    assert json.loads((tmp_path / "run/provenance.json").read_text())["gpu"] is None
    assert str(load_model(unbroken, device="cpu").model.device) == "cpu"
    with pytest.raises(KitError, match="unknown"):
        load_model(unbroken, device="gpu")


SCALER = torch.amp.GradScaler("cpu", enabled=False)
BANDS = {"sample_rate": 16000, "bands": 64, "window_seconds": 0.04, "hop_seconds": 0.02}
FRAMES = {"experts": {"logmel": {"kind": "logmel", "stack": 1, **BANDS}}}
STRIPES = {"time": 2, "time_width": 4, "bands": 1, "band_width": 4}


def segments(**network: Any) -> dict[str, Any]:
    network = {"weights": None, "segment_seconds": 2, "output": "clip"} | network
    return {"kind": "segments", "network": network, "trainable": True, "max_seconds": 4, "pooling": "seconds"}


AUDIO: dict[str, dict[str, Any]] = {
    "expert_heads": {},
    "pooled_mlp": {"kind": "pooled_mlp", "pooling": "mean", "hidden": 9, "dropout": 0.1, **FRAMES},
    "panns": tiny.panns(),
    "passt": segments(
        kind="passt", network="s16", patchout_time=2, patchout_bands=1, edge_jitter=True, stripes=STRIPES
    ),
    "efficientat": segments(kind="efficientat", network="mn04", edge_jitter=True, stripes=STRIPES),
    "beats": segments(kind="beats"),
    "m2d_clap": segments(kind="m2d_clap"),
    "eat": segments(kind="eat"),
}


WAITING: dict[str, dict[str, Any]] = {
    "gru": {"kind": "gru", "width": 7, "hidden": 16, "dropout": 0.1, "embedding": "frames", **FRAMES},
    "crnn": {"kind": "crnn", "hidden": 16, "dropout": 0.1, "embedding": "frames"}
    | {"experts": {"logmel": {"kind": "logmel_slaney", "lowest": 12, "highest": 8000, **BANDS}}},
    "atst_frame": segments(kind="atst_frame", floor="batch"),
}


@pytest.fixture(autouse=True)
def without_autocast(monkeypatch):
    """Precision is that of float32, since torch has no autocast on meta."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


def require_no_wait(model: RetrievalModel, batch: Batch, stage: schema.Stage) -> None:
    model.train().to(GPU)
    with AsOnGpu():
        found = add_gradients(model, batch.to(GPU), stage, "float32", SCALER)
    assert {"loss", "positive"} <= found.keys()
    assert all(value.device == GPU for value in found.values())
    trained = [p for p in model.audio.parameters() if p.requires_grad]
    assert trained
    assert all(p.grad is not None and p.grad.device == GPU for p in trained)


@pytest.mark.parametrize(
    ("kind", "at_once"),
    [
        *(pytest.param(kind, None, marks=pytest.mark.slow) for kind in sorted(AUDIO.keys() - {"passt"})),
        ("passt", None),
        pytest.param("passt", 3, marks=pytest.mark.slow),
        ("expert_heads", 3),
    ],
)
def test_training_step_never_waits_for_the_gpu(world, tmp_path, kind, at_once, monkeypatch):
    tiny.narrowed(monkeypatch)
    content = tiny.recipe(world, tmp_path, only=tiny.stage(grad_cache_chunk=at_once))
    content["model"]["audio"] = AUDIO[kind] or content["model"]["audio"]
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe
    clips = list(read_manifest(world)[:8])
    features = build_features(clips, dict(recipe.model.audio.experts), tmp_path / "banks")
    batch = collate([Item(clip, tuple(clip.captions[:2])) for clip in clips], features)
    require_no_wait(build_model(recipe, ["deep", "tone", "a", "low"]), batch, recipe.stages["only"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({**AUDIO, **WAITING}))
def test_clips_are_embedded_on_a_gpu_without_mixed_devices(world, tmp_path, kind, monkeypatch):
    """A recurrent layer is replaced, since torch has none on meta; it reads the lengths on the host."""
    tiny.narrowed(monkeypatch)

    def made(gru: torch.nn.GRU, values: Any) -> tuple[Any, None]:
        if isinstance(values, torch.Tensor):
            return values.new_zeros(*values.shape[:2], 32), None
        return values._replace(data=values.data.new_zeros(len(values.data), 32)), None

    def padded(packed: Any, batch_first: bool) -> tuple[torch.Tensor, None]:
        return packed.data.new_zeros(int(packed.batch_sizes[0]), len(packed.batch_sizes), 32), None

    monkeypatch.setattr(torch.nn.GRU, "forward", made)
    monkeypatch.setattr("system.models.audio.crnn.pad_packed_sequence", padded)
    content = tiny.recipe(world, tmp_path)
    settings = {**AUDIO, **WAITING}[kind]
    content["model"]["audio"] = settings or content["model"]["audio"]
    if settings.get("embedding") == "frames":
        content["model"]["score"] = {"kind": "moments"}
    audio = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe.model.audio
    encoder = audio.build(32).to(GPU)
    rates = {name: (one.frames_per_second, one.dim) for name, one in audio.experts.items()}
    lengths = {name: torch.tensor([int(3 * rate), int(1.5 * rate)]) for name, (rate, _) in rates.items()}
    given = {
        name: Series(torch.zeros(2, int(lengths[name].max()), dim, dtype=torch.int16, device=GPU), lengths[name])
        for name, (_, dim) in rates.items()
    }
    for training in (True, False):
        with AsOnGpu(may_wait=True):
            found = encoder.train(training)(given)
        assert found.values.device == GPU
        assert found.lengths is None or found.lengths.device == GPU


@pytest.mark.slow
@pytest.mark.parametrize("score", ["moments", "boundary_moments"])
def test_training_step_on_moments_never_waits_for_the_gpu(tmp_path, score):
    content = tiny_moments.recipe(tiny_moments.make_moments(tmp_path / "m"), tmp_path)
    content["model"]["score"] = {"kind": score}
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe
    data = load_data(recipe)
    batch = collate(data.sampler("only", recipe.stages["only"], (1, 0)).batch(0), data.features)
    require_no_wait(build_model(recipe, ["tone"]), batch, recipe.stages["only"])


def test_simulated_gpu_refuses_operations_that_wait_for_the_gpu():
    on_gpu, here = torch.ones(3, device=GPU), torch.ones(3)
    with AsOnGpu():
        assert (on_gpu + here.to(GPU, non_blocking=True) * torch.tensor(2.0)).device == GPU
        for work in (
            lambda: on_gpu + here,
            lambda: on_gpu[torch.tensor([0, 2])],
            lambda: here.to(GPU),
            lambda: on_gpu.copy_(here),
            lambda: float(on_gpu[0]),
            lambda: on_gpu.nonzero(),
        ):
            with pytest.raises(RuntimeError):
                work()


def test_rank_and_number_of_processes_are_read_from_the_environment(monkeypatch):
    for rank, count, expected in ((None, None, (0, 1)), ("2", "3", (2, 3)), ("1", None, (0, 1)), (None, "", (0, 1))):
        for name, value in (("RANK", rank), ("WORLD_SIZE", count)):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        assert ranks() == expected


def test_processes_other_than_the_first_print_only_errors(monkeypatch, capsys):
    for rank, error in (("0", "error: "), ("1", "[rank 1] error: ")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert main(["run", "--until=features", "absent.yaml"]) == 1
        assert capsys.readouterr().err.startswith(f"{error}absent.yaml")


def test_process_of_torchrun_uses_the_gpu_of_its_local_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cases = ((False, "1", "cpu"), (True, "", "cuda"), (True, "0", "cuda:0"), (True, "1", "cuda:1"))
    for there, local, expected in cases:
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setenv("LOCAL_RANK", local)
        assert device_of() == torch.device(expected)
        if there:
            assert device_of("cuda") == torch.device(expected)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(KitError, match="processes"):
        device_of("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(KitError, match="machine"):
        device_of()
