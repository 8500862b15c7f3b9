"""Positives, a learned temperature, distillation and epoch schedules: by hand, and against code of 2024 and 2025."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from system.losses import terms as losses
from system.losses.terms import BatchScores, Distill, LearnedTemperature, NtXent
from system.models.embeddings import Embedded
from system.models.scores import cosine
from system.recipe import schema
from system.training.schedule import learning_rate

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


def batch_of(
    audio: torch.Tensor, text: torch.Tensor, clips: np.ndarray, tau: torch.Tensor, teachers: np.ndarray | None
) -> BatchScores:
    """teachers: (N, M, 2, D), their embeddings of clip and text."""
    ids = torch.from_numpy(clips)
    cosines = {}
    if teachers is not None:
        names = DISTILL.teachers[: teachers.shape[1]]
        both = torch.from_numpy(teachers)
        cosines = {name: cosine(Embedded(both[:, m, 0]), Embedded(both[:, m, 1])) for m, name in enumerate(names)}
    scores = cosine(Embedded(audio), Embedded(text))
    unused = lambda: scores  # noqa: E731
    return BatchScores(
        scores,
        torch.arange(len(scores)),
        ids[:, None] == ids[None, :],
        None,
        unused,
        unused,
        cosines,
        {"temperature": tau},
    )


def case_of(golden: dict[str, Any], name: str) -> SimpleNamespace:
    leaves = [torch.tensor(golden[f"{name}_{part}"], requires_grad=True) for part in ("audio", "text", "tau")]
    teachers = np.stack([golden[f"{name}_teacher_{part}"] for part in ("audio", "text")], axis=2)
    return SimpleNamespace(
        leaves=leaves,
        batch=batch_of(leaves[0], leaves[1], golden[f"{name}_clip"], leaves[2], teachers),
        distill=taught(*DISTILL.teachers[: teachers.shape[1]]),
    )


@pytest.mark.parametrize("name", CASES)
def test_losses_their_gradients_and_their_weighted_sum_match_original_code(golden, name):
    """Positives and distillation. The original squares the first weight: its half is a quarter."""
    for kind in ("ntxent", "distill"):
        case = case_of(golden, name)
        found = (POSITIVES if kind == "ntxent" else case.distill).value(case.batch)
        assert found.item() == pytest.approx(golden[f"{name}_{kind}"], abs=1e-9)
        for part, gradient in zip(("audio", "text", "tau"), torch.autograd.grad(found, case.leaves), strict=True):
            assert gradient.numpy() == pytest.approx(golden[f"{name}_{kind}_grad_{part}"], abs=1e-9), part
    case = case_of(golden, name)
    mixed = losses.total_loss(case.batch, [POSITIVES, case.distill])
    assert mixed.item() == pytest.approx(golden[f"{name}_mixed"], abs=1e-9)
    (gradient,) = torch.autograd.grad(mixed, case.leaves[:1])
    assert gradient.numpy() == pytest.approx(golden[f"{name}_mixed_grad_audio"], abs=1e-9)
    quarter = losses.total_loss(case.batch, [POSITIVES.model_copy(update={"weight": 0.25}), case.distill])
    assert quarter.item() == pytest.approx(golden[f"{name}_half"], abs=1e-9)


def test_temperatures_and_separate_teacher_scores_of_equal_captions(golden):
    for name in ("c0", "c2", "c3"):
        case, tau = case_of(golden, name), float(golden[f"{name}_tau"])
        fixed = POSITIVES.model_copy(update={"temperature": tau})
        assert fixed.value(case.batch).item() == pytest.approx(golden[f"{name}_ntxent"], abs=1e-9)
        changed = case.distill.model_copy(update={"temperature": tau})
        assert changed.value(case.batch).item() == pytest.approx(golden[f"{name}_distill"], abs=1e-9)
    audio, text = (torch.from_numpy(golden[f"dup_{part}"]) for part in ("audio", "text"))
    own = np.stack([golden["dup_teacher_audio"], golden["dup_teacher_text"]], axis=2)
    last = {key: row for row, key in enumerate(golden["dup_caption_key"])}
    shared = own.copy()
    shared[:, :, 1] = golden["dup_teacher_text"][[last[key] for key in golden["dup_caption_key"]]]
    term, clips = taught("one", temperature=0.05), np.arange(len(audio))
    values = [term.value(batch_of(audio, text, clips, torch.tensor(1.0), rows)).item() for rows in (own, shared)]
    assert values[1] == pytest.approx(golden["dup_distill"], abs=1e-9), "the original's, which takes the last one's"
    assert values[0] == pytest.approx(7.73, abs=5e-3), "as its docstring has it"


def slow_positives(scores: np.ndarray, clips: np.ndarray, tau: float) -> float:
    cells = [(i, j) for i in range(len(clips)) for j in range(len(clips)) if clips[i] == clips[j]]
    total = 0.0
    for i, j in cells:
        total += scores[i, j] / tau - np.log(np.exp(scores[i] / tau).sum())
        total += scores[i, j] / tau - np.log(np.exp(scores[:, j] / tau).sum())
    return -total / (2 * len(cells))


def plain(scores: Any, clips: Any, teachers: Any = None) -> BatchScores:
    scores, ids = torch.as_tensor(scores, dtype=torch.float64), torch.as_tensor(clips)
    taught_by = {} if teachers is None else {"one": torch.as_tensor(teachers, dtype=torch.float64)}
    same = ids[:, None] == ids[None, :]
    return BatchScores(scores, torch.arange(len(ids)), same, None, lambda: scores, lambda: scores, taught_by)


def test_nt_xent_with_positives_matches_hand_values_and_loops():
    term = POSITIVES.model_copy(update={"temperature": 1.0})
    # Two items of one clip, all scores 0: four cells, each ln 1/2 in both directions.
    assert term.value(plain(np.zeros((2, 2)), [5, 5])).item() == pytest.approx(np.log(2))
    scores, clips = np.random.default_rng(0).normal(size=(7, 7)), np.array([0, 1, 0, 2, 0, 2, 3])
    for tau in (1.0, 0.1):
        changed = term.model_copy(update={"temperature": tau})
        assert changed.value(plain(scores, clips)).item() == pytest.approx(slow_positives(scores, clips, tau))
    both = term.model_copy(update={"directions": "sum"})
    assert both.value(plain(scores, clips)).item() == pytest.approx(2 * slow_positives(scores, clips, 1))
    alone = [term.model_copy(update={"same_clip": kind}) for kind in ("positives", "negatives", "masked")]
    found = [one.value(plain(scores, np.arange(7))).item() for one in alone]
    assert found == pytest.approx([found[0]] * 3), "with every clip once, all three are one"


def test_distillation_matches_hand_values_and_loops_and_averages_captions():
    term = taught("one", temperature=1.0)
    # A teacher that is sure of the diagonal, a model that knows nothing: ln 2.
    sure = [[1000.0, 0.0], [0.0, 1000.0]]
    assert term.value(plain(np.zeros((2, 2)), [0, 1], sure)).item() == pytest.approx(np.log(2))
    rng = np.random.default_rng(1)
    scores, teacher = rng.normal(size=(5, 5)), rng.normal(size=(5, 5))
    for tau in (1.0, 0.5):
        total = 0.0
        for a, b in ((scores, teacher), (scores.T, teacher.T)):
            for i in range(5):
                weights = np.exp(b[i] / tau)
                logs = a[i] / tau - np.log(np.exp(a[i] / tau).sum())
                total -= (weights / weights.sum() * logs).sum() / 10
        changed = term.model_copy(update={"temperature": tau})
        assert changed.value(plain(scores, np.arange(5), teacher)).item() == pytest.approx(total)
    # Both in the teachers' matrix and in the model's; item 1 has two captions.
    each, teachers = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    batch = BatchScores(
        each, torch.tensor([0, 1, 1]), torch.eye(2, dtype=torch.bool), None, lambda: each, lambda: each,
        {"one": teachers},
    )  # fmt: skip
    joined = [torch.stack([one[:, 0], one[:, 1:].mean(1)], 1) for one in (each, teachers)]
    term = taught("one", temperature=0.3)
    assert term.value(batch).item() == pytest.approx(term.value(plain(joined[0], [0, 1], joined[1])).item())


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


def test_epoch_schedule_that_ends_with_its_warm_up_is_refused():
    with pytest.raises(ValueError, match="learning"):
        stage(1, 1e-3)
    without = schema.EpochSchedule(
        kind="epochs", shape="linear", start_lr=0.5, floor_lr=0, warmup_epochs=0, until_epoch=2
    )
    made = schema.Stage.model_construct(schedule=without)
    assert [learning_rate(made, 1.0, step, 2, []) for step in range(6)] == [1, 0.75, 0.5, 0.25, 0, 0]
