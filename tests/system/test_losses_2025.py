"""Positives, learned numbers, distillation and epoch schedules: by hand, and against code of 2024 and 2025."""

import json
import math
from types import SimpleNamespace
from typing import Any

import augmented
import numpy as np
import pytest
import tiny
import torch
from loss_batches import batch_of
from outcomes import digest
from safetensors.numpy import load_file
from threads import one_thread  # noqa: F401  a fixture
from trainings import NT_XENT

from system.__main__ import main
from system.losses import terms as losses
from system.losses.terms import Distill, LearnedTemperature, NtXent
from system.models.batch import Embedded
from system.models.scores import cosine
from system.recipe import schema
from system.recipe.load import load_recipe
from system.training.schedule import learning_rate

pytestmark = pytest.mark.usefixtures("one_thread")

POSITIVES = NtXent(kind="nt_xent", weight=1, temperature=LearnedTemperature(start=0.05), same_clip="positives")
DISTILL = Distill(
    kind="distill", weight=1, teachers=["one", "two", "three"], temperature=LearnedTemperature(start=0.05)
)
CASES = ("c0", "c1", "c2", "c3", "c4", "c5")


@pytest.fixture(scope="module")
def golden(goldens):
    return dict(np.load(goldens / "losses_2025.npz"))


def taught(*names: str, **changes: Any) -> Distill:
    return DISTILL.model_copy(update={"teachers": list(names), **changes})


def cosines(audio: Any, text: Any) -> torch.Tensor:
    return cosine(Embedded(torch.as_tensor(audio)), Embedded(torch.as_tensor(text)))


def case_of(golden: dict[str, Any], name: str) -> SimpleNamespace:
    """A batch, its leaves, and the loss by as many teachers as it has."""
    audio, text, tau = (torch.tensor(golden[f"{name}_{part}"], requires_grad=True) for part in ("audio", "text", "tau"))
    pairs = zip(*(golden[f"{name}_teacher_{part}"].swapaxes(0, 1) for part in ("audio", "text")), strict=True)
    teachers = dict(zip(DISTILL.teachers, (cosines(*pair) for pair in pairs), strict=False))
    more = {"teachers": teachers, "learned": {"temperature": tau}}
    batch = batch_of(cosines(audio, text), golden[f"{name}_clip"], **more)
    return SimpleNamespace(leaves=[audio, text, tau], batch=batch, distill=taught(*teachers))


@pytest.mark.parametrize("name", CASES)
def test_losses_their_gradients_and_their_weighted_sum_match_original_code(golden, name):
    """Positives and distillation. The original squares the first weight: its half is a quarter."""
    for kind in ("ntxent", "distill"):
        case = case_of(golden, name)
        found = (POSITIVES if kind == "ntxent" else case.distill).value(case.batch)
        assert found.item() == pytest.approx(golden[f"{name}_{kind}"], abs=1e-9)
        for part, gradient in zip(("audio", "text", "tau"), torch.autograd.grad(found, case.leaves), strict=True):
            assert gradient.numpy() == pytest.approx(golden[f"{name}_{kind}_grad_{part}"], abs=1e-9), part
    case, tau = case_of(golden, name), abs(float(golden[f"{name}_tau"]))
    for kind, term in (("ntxent", POSITIVES), ("distill", case.distill)):
        fixed = term.model_copy(update={"temperature": tau})
        assert fixed.value(case.batch).item() == pytest.approx(golden[f"{name}_{kind}"], abs=1e-9)
    mixed = losses.total_loss(case.batch, [POSITIVES, case.distill])
    assert mixed.item() == pytest.approx(golden[f"{name}_mixed"], abs=1e-9)
    (gradient,) = torch.autograd.grad(mixed, case.leaves[:1])
    assert gradient.numpy() == pytest.approx(golden[f"{name}_mixed_grad_audio"], abs=1e-9)
    quarter = losses.total_loss(case.batch, [POSITIVES.model_copy(update={"weight": 0.25}), case.distill])
    assert quarter.item() == pytest.approx(golden[f"{name}_half"], abs=1e-9)


def test_equal_captions_have_separate_teacher_scores(golden):
    audio, text, keys = (golden[f"dup_{part}"] for part in ("audio", "text", "caption_key"))
    own_audio, own_text = (golden[f"dup_teacher_{part}"][:, 0] for part in ("audio", "text"))
    last = {key: row for row, key in enumerate(keys)}
    term, scores = taught("one", temperature=0.05), cosines(audio, text)
    teachers = [cosines(own_audio, texts) for texts in (own_text, own_text[[last[key] for key in keys]])]
    values = [term.value(batch_of(scores, teachers={"one": one})).item() for one in teachers]
    assert values[1] == pytest.approx(golden["dup_distill"], abs=1e-9), "the original's, which takes the last one's"
    assert values[0] == pytest.approx(7.73, abs=5e-3), "as its docstring has it"


def slow_positives(scores: np.ndarray, clips: np.ndarray, tau: float) -> float:
    cells = [(i, j) for i in range(len(clips)) for j in range(len(clips)) if clips[i] == clips[j]]
    total = 0.0
    for i, j in cells:
        total += scores[i, j] / tau - np.log(np.exp(scores[i] / tau).sum())
        total += scores[i, j] / tau - np.log(np.exp(scores[:, j] / tau).sum())
    return -total / (2 * len(cells))


def test_nt_xent_with_positives_matches_hand_values_and_loops():
    term = POSITIVES.model_copy(update={"temperature": 1.0})
    # Two items of one clip, all scores 0: four cells, each ln 1/2 in both directions.
    assert term.value(batch_of(np.zeros((2, 2)), [5, 5])).item() == pytest.approx(np.log(2))
    scores, clips = np.random.default_rng(0).normal(size=(7, 7)), np.array([0, 1, 0, 2, 0, 2, 3])
    for tau in (1.0, 0.1):
        changed = term.model_copy(update={"temperature": tau})
        assert changed.value(batch_of(scores, clips)).item() == pytest.approx(slow_positives(scores, clips, tau))
    both = term.model_copy(update={"directions": "sum"})
    assert both.value(batch_of(scores, clips)).item() == pytest.approx(2 * slow_positives(scores, clips, 1))


def test_distillation_matches_hand_values_and_averages_captions():
    term = taught("one", temperature=1.0)
    # A teacher that is sure of the diagonal, a model that knows nothing: ln 2.
    sure = {"one": torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])}
    assert term.value(batch_of(torch.zeros(2, 2), teachers=sure)).item() == pytest.approx(np.log(2))
    # Both in the teachers' matrix and in the model's; item 1 has two captions.
    each, teachers = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    batch = batch_of(each, row_of=[0, 1, 1], teachers={"one": teachers})
    joined = [torch.stack([one[:, 0], one[:, 1:].mean(1)], 1) for one in (each, teachers)]
    expected = term.value(batch_of(joined[0], teachers={"one": joined[1]})).item()
    assert term.value(batch).item() == pytest.approx(expected)


def stage(until: float, lr: float, start: float = 1e-7, shape: str = "cosine") -> schema.Stage:
    settings = {"kind": "epochs", "shape": shape, "start_lr": start, "floor_lr": 1e-7, "warmup_epochs": 1}
    optimizer = schema.AdamW(kind="adamw", lr=lr, weight_decay=0)
    schedule = schema.EpochSchedule.model_validate(settings | {"until_epoch": until})
    return schema.Stage.model_construct(epochs=20, schedule=schedule, optimizer=optimizer)


def test_epoch_schedules_match_the_public_code(golden):
    steps = int(golden["lr25_steps_per_epoch"])
    for (epoch, batch), large, small in zip(
        golden["lr25_epoch_batch"], golden["lr25"], golden["lr25_small_batch"], strict=True
    ):
        step = int(epoch) * steps + int(batch)
        found = [learning_rate(stage(16, 2e-5), base, step, steps, []) for base in (2e-5, 5e-6)]
        assert found == pytest.approx([large, small], abs=1e-12, rel=0)
    for epoch, group, line in zip(golden["lr24_epoch"], golden["lr24_groups"], golden["lr24_linear"], strict=True):
        step = round(epoch * steps)
        assert step / steps == pytest.approx(epoch)
        bases = [4e-6, 2e-5, 2e-5, 2e-5]
        found = [learning_rate(stage(15, 2e-5, 0), base, step, steps, []) for base in bases]
        assert found == pytest.approx(group, abs=1e-12, rel=0)
        linear = learning_rate(stage(15, 2e-5, 0, "linear"), 2e-5, step, steps, [])
        assert linear == pytest.approx(line, abs=1e-12, rel=0)


def test_linear_epoch_schedule_without_warm_up_falls_from_the_first_step():
    without = schema.EpochSchedule(
        kind="epochs", shape="linear", start_lr=0.5, floor_lr=0, warmup_epochs=0, until_epoch=2
    )
    made = schema.Stage.model_construct(schedule=without)
    assert [learning_rate(made, 1.0, step, 2, []) for step in range(6)] == [1, 0.75, 0.5, 0.25, 0, 0]


def test_learned_parameters_of_the_loss_are_trained_saved_and_resumed(tmp_path, monkeypatch):
    manifest = tiny.make_world(tmp_path / "world", {"development": 16, "validation": 8, "evaluation": 12})
    sigmoids = [{"kind": "sigmoid", "weight": 1, "scale": scale, "bias": -3} for scale in (5, 7)]
    start = {"kind": "stage", "stage": "first", "checkpoint": "last"}
    first = tiny.stage(epochs=2, steps_per_epoch=3, losses=sigmoids)
    second = tiny.stage(epochs=1, steps_per_epoch=2, losses=[NT_XENT], start_from=start)
    path = tiny.write_recipe(tmp_path / "recipe.yaml", tiny.recipe(manifest, tmp_path, first=first, second=second))
    numbers = load_recipe(path).recipe.learned
    assert numbers["sigmoid_log_scale"] == pytest.approx(math.log(5)), "of the first term"
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    weights = load_file(tmp_path / "run/first/e0002.safetensors")
    assert all(0 < abs(float(weights[f"learned.{name}"]) - value) < 1 for name, value in numbers.items())
    augmented.killed_and_resumed(path, tmp_path / "again", 4, monkeypatch)
    assert digest(tmp_path / "again") == digest(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "exported")]) == 0
    start = {"kind": "model", "folder": str(tmp_path / "exported")}  # for a loss without these numbers
    content = tiny.recipe(manifest, tmp_path, only=second | {"start_from": start})
    path = tiny.write_recipe(tmp_path / "other.yaml", content)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "other")]) == 0
    assert len(json.loads((tmp_path / "other/only/done.json").read_text())["lines"]) == 1
