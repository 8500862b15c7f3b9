"""Losses with learned parameters, and contrastive loss with hard negatives: values, gradients, training."""

import json
import math
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from safetensors.numpy import load_file
from threads import one_thread  # noqa: F401  a fixture
from trainings import NT_XENT

from system.__main__ import main
from system.losses.terms import BatchScores, HardNegativeNce, NtXent, Sigmoid
from system.recipe.load import load_recipe

pytestmark = pytest.mark.usefixtures("one_thread")

SIGMOID = Sigmoid(kind="sigmoid", weight=1)
HARD = HardNegativeNce(kind="hard_negative_nce", weight=1, temperature=0.2, beta=0.5)


def batch_of(scores: Any, clips: list[int] | None = None, scale: float = 10.0, bias: float = -10.0) -> BatchScores:
    """A batch with these scores. clips: The clip of each item; None: all differ."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    numbers = torch.tensor(clips if clips is not None else range(len(scores)))
    learned = {"sigmoid_log_scale": math.log(scale), "sigmoid_bias": bias}
    return BatchScores(
        scores,
        torch.arange(len(scores)),
        numbers[:, None] == numbers[None, :],
        None,
        lambda: scores,
        lambda: scores,
        learned={name: torch.tensor(value, dtype=torch.float64) for name, value in learned.items()},
    )


def test_sigmoid_loss_matches_hand_values_and_a_loop_over_its_definition():
    # Scale 2 and bias -1: logits 1 and -1 on the diagonal, -1 and 0 elsewhere.
    found = SIGMOID.value(batch_of([[1.0, 0.0], [0.5, 0.0]], scale=2.0, bias=-1.0)).item()
    matching = math.log(1 + math.exp(-1)) + math.log(1 + math.exp(1))
    others = math.log(1 + math.exp(-1)) + math.log(2)
    assert found == pytest.approx((matching + others) / 2)
    assert SIGMOID.value(batch_of(np.eye(3))).item() < 0.7
    assert SIGMOID.learned == {"sigmoid_log_scale": pytest.approx(math.log(10)), "sigmoid_bias": -10.0}
    scores, clips = np.random.default_rng(0).uniform(-1, 1, (6, 6)), [0, 1, 0, 2, 3, 1]
    total = 0.0
    for i in range(6):
        for j in range(6):
            if i != j and clips[i] == clips[j]:
                continue
            sign = 1 if i == j else -1
            total -= math.log(1 / (1 + math.exp(-sign * (5.0 * scores[i, j] - 2.0))))
    assert SIGMOID.value(batch_of(scores, clips, 5.0, -2.0)).item() == pytest.approx(total / 6, rel=1e-12)


def slow_hard_negative(scores: np.ndarray, clips: list[int], t: float, beta: float) -> float:
    """The loss by loops over its equation."""
    total = 0.0
    for logits in (scores / t, scores.T / t):
        for i in range(len(scores)):
            others = [j for j in range(len(scores)) if clips[j] != clips[i]]
            weights = [math.exp(beta * logits[i, j]) for j in others]
            negative = sum(
                len(others) * weight / sum(weights) * math.exp(logits[i, j])
                for weight, j in zip(weights, others, strict=True)
            )
            matching = math.exp(logits[i, i])
            total -= math.log(matching / (matching + negative)) / len(scores)
    return total / 2


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_hard_negative_loss_matches_a_loop_over_its_equation(beta):
    scores = np.random.default_rng(1).uniform(-1, 1, (7, 7))
    for clips in (list(range(7)), [0, 1, 0, 2, 3, 1, 0]):
        term = HardNegativeNce(kind="hard_negative_nce", weight=1, temperature=0.1, beta=beta)
        expected = slow_hard_negative(scores, clips, 0.1, beta)
        assert term.value(batch_of(scores, clips)).item() == pytest.approx(expected, rel=1e-10)
        if beta == 0:
            plain = NtXent(kind="nt_xent", weight=1, temperature=0.1)
            expected = plain.value(batch_of(scores, clips)).item()
            assert term.value(batch_of(scores, clips)).item() == pytest.approx(expected)


@pytest.mark.parametrize("term", [SIGMOID, HARD])
def test_sigmoid_loss_gradients_match_finite_differences_and_are_finite_without_negatives(term):
    clips = [0, 1, 0, 2]

    def loss(scores: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """The loss of scores and learned parameters."""
        batch = batch_of(scores, clips)
        object.__setattr__(batch, "learned", {"sigmoid_log_scale": scale, "sigmoid_bias": bias})
        result: torch.Tensor = term.value(batch)
        return result + 0 * (scale + bias)

    values = [torch.rand(4, 4, dtype=torch.float64), torch.tensor(0.5).double(), torch.tensor(-1.0).double()]
    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in values])
    for scores in (torch.ones(3, 3), torch.zeros(3, 3)):
        scores = scores.double().requires_grad_()
        value = term.value(batch_of(scores, [5, 5, 5]))
        if isinstance(term, HardNegativeNce):
            assert value.item() == pytest.approx(0, abs=1e-9), "without negatives"
        value.backward()
        assert scores.grad.isfinite().all()


def test_hard_negatives_have_larger_gradients_with_a_larger_beta():
    scores = torch.tensor([[0.5, 0.4, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5]], dtype=torch.float64)
    shares = []
    for beta in (0.0, 1.0):
        leaf = scores.clone().requires_grad_()
        term = HardNegativeNce(kind="hard_negative_nce", weight=1, temperature=0.2, beta=beta)
        term.value(batch_of(leaf)).backward()
        shares.append(float(leaf.grad[0, 1] / leaf.grad[0, 2]))
    assert shares[1] > 2 * shares[0] > 0


def test_learned_parameters_of_the_loss_are_trained_saved_and_resumed(tmp_path, monkeypatch):
    import augmented
    from outcomes import digest

    manifest = tiny.make_world(tmp_path / "world", {"development": 16, "validation": 8, "evaluation": 12})
    stage = tiny.stage(epochs=2, steps_per_epoch=3, losses=[{"kind": "sigmoid", "weight": 1, "scale": 5, "bias": -3}])
    later = tiny.stage(epochs=1, steps_per_epoch=2, losses=[NT_XENT])
    later |= {"start_from": {"kind": "stage", "stage": "first", "checkpoint": "last"}}
    content = tiny.recipe(manifest, tmp_path, first=stage, second=later)
    path = tiny.write_recipe(tmp_path / "recipe.yaml", content)
    losses = [{"kind": "sigmoid", "weight": 1, "scale": scale, "bias": -3} for scale in (5, 7)]
    both = content | {"stages": {"first": stage | {"losses": losses}, "second": later | {"losses": losses[1:]}}}
    start = load_recipe(tiny.write_recipe(tmp_path / "both.yaml", both)).recipe.learned
    assert start["sigmoid_log_scale"] == pytest.approx(math.log(5)), "of the first term"
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    weights = load_file(tmp_path / "run/first/e0002.safetensors")
    scale, bias = (float(weights[f"learned.sigmoid_{name}"]) for name in ("log_scale", "bias"))
    assert 0 < abs(scale - math.log(5)) < 1
    assert 0 < abs(bias + 3) < 1
    augmented.killed_and_resumed(path, tmp_path / "again", 4, monkeypatch)
    assert digest(tmp_path / "again") == digest(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "exported")]) == 0
    other = tiny.stage(epochs=1, steps_per_epoch=2, start_from={"kind": "model", "folder": str(tmp_path / "exported")})
    fresh = tiny.write_recipe(tmp_path / "other.yaml", tiny.recipe(manifest, tmp_path, only=other))
    assert main(["run", "--until=training", str(fresh), "--out", str(tmp_path / "other")]) == 0, (
        "a loss without these parameters"
    )
    assert len(json.loads((tmp_path / "other/only/done.json").read_text())["lines"]) == 1
