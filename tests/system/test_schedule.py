"""Learning rates and ends of stages, by hand and against torch; losses and rates of whole trainings as literals."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from threads import one_thread  # noqa: F401  a fixture
from trainings import NT_XENT

from system.__main__ import main
from system.recipe import schema
from system.training.schedule import History, ends_early, learning_rate


def stage(schedule: Any, epochs: int = 1, lr: float = 1e-3) -> schema.Stage:
    return schema.Stage.model_construct(
        epochs=epochs, schedule=schedule, optimizer=schema.AdamW(kind="adamw", lr=lr, weight_decay=0)
    )


def rate_factor(stage: schema.Stage, step: int, steps_per_epoch: int, history: History) -> float:
    return learning_rate(stage, 1.0, step, steps_per_epoch, history)


def plateau(**changes: Any) -> schema.Plateau:
    values = {"metric": "loss", "factor": 0.1, "patience": 5, "threshold": 0.005, "min_lr": 1e-6}
    return schema.Plateau(kind="plateau", **(values | changes))


def losses_of(*values: float) -> list[dict[str, float]]:
    return [{"loss": value, "m1": -value} for value in values]


def test_constant_cosine_epoch_and_step_schedules_match_hand_values():
    constant = stage(schema.Schedule(kind="constant", warmup_steps=4))
    assert [rate_factor(constant, step, 10, []) for step in (0, 1, 3, 4, 9)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    cosine = stage(schema.Schedule(kind="cosine", warmup_steps=2), epochs=2)
    found = [rate_factor(cosine, step, 5, []) for step in (0, 2, 6, 9)]
    assert found == pytest.approx([0.5, 1.0, 0.5, 0.5 * (1 + math.cos(math.pi * 7 / 8))])
    # From 0.1 to 1 in two epochs of four steps, then to 0.2 in two.
    rates = {"start_lr": 0.1, "floor_lr": 0.2, "warmup_epochs": 2, "until_epoch": 4}
    made = schema.EpochSchedule.model_validate({"kind": "epochs", "shape": "linear"} | rates)
    found = [rate_factor(stage(made), step, 4, []) for step in (0, 2, 4, 8, 10, 12, 16, 20)]
    assert found == pytest.approx([0.1, 0.325, 0.55, 1, 0.8, 0.6, 0.2, 0.2])
    decay = stage(schema.StepDecay(kind="step", every_epochs=20, factor=0.1), epochs=50)
    steps = [0, 20 * 7 - 1, 20 * 7, 40 * 7 - 1, 40 * 7]
    assert [rate_factor(decay, step, 7, []) for step in steps] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_plateau_schedule_matches_torch_scheduler():
    for seed in range(20):
        values = 1 + np.cumsum(np.random.default_rng(seed).normal(-0.002, 0.01, 80))
        settings = plateau(patience=seed % 6, threshold=(0, 0.005)[seed % 2], min_lr=(1e-5, 1e-2)[seed == 19])
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
        theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.1, patience=settings.patience, threshold=settings.threshold, threshold_mode="abs",
            min_lr=settings.min_lr,
        )  # fmt: skip
        for epoch in range(len(values)):
            ours = 1e-3 * rate_factor(stage(settings), 0, 1, losses_of(*values[:epoch]))
            assert ours == pytest.approx(optimizer.param_groups[0]["lr"])
            theirs.step(values[epoch])


def test_plateaus_lower_the_rate_and_stop_training():
    rising = stage(plateau(metric="m1", patience=0, threshold=0))
    assert rate_factor(rising, 0, 1, [{"m1": 0.1}, {"m1": 0.2}]) == 1
    assert rate_factor(rising, 0, 1, [{"m1": 0.2}, {"m1": 0.2}]) == pytest.approx(0.1)
    patience = schema.EarlyStopping(kind="early_stopping", metric="loss", epochs=2)
    assert not ends_early(None, losses_of(1, 1, 1, 1))
    assert not ends_early(patience, [])
    assert not ends_early(patience, losses_of(3, 1, 2))
    assert ends_early(patience, losses_of(3, 1, 2, 1))  # as good as the best is not better
    assert not ends_early(patience, losses_of(3, 1, 2, 0.5))
    steady = schema.StdPlateau(kind="std_plateau", metric="loss", epochs=3, deviation=0.1, at_least=5)
    assert not ends_early(steady, losses_of(1, 1, 1, 1))
    assert ends_early(steady, losses_of(9, 5, 1, 1.1, 0.9))  # deviation 0.082
    assert not ends_early(steady, losses_of(1, 1, 1, 1.2, 0.9))  # 0.125


# Without dropout. Limiting the vector units to AVX2 or SSE4 moves the values by at most 3.2e-6 of their size.
TOLERANCE = 5e-5
EXPECTED: dict[str, list[tuple[float, float, float]]] = json.loads(
    (Path(__file__).parent / "net_training.json").read_text()
)

PLATEAU = {"kind": "plateau", "metric": "loss", "factor": 0.1, "patience": 0, "threshold": 10.0, "min_lr": 1e-6}
SPAN = {"warmup_epochs": 1, "until_epoch": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"only": tiny.stage()},
    "chunks": {"only": tiny.stage(grad_cache_chunk=3)},
    "two stages": {
        "pretrain": tiny.stage(captions_per_clip=1),
        "finetune": tiny.stage(
            epochs=6,
            start_from={"kind": "stage", "stage": "pretrain", "checkpoint": "loss"},
            losses=tiny.RELAXED,
            optimizer={"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01, "lr_by_part": {"text": 1e-4}},
            schedule=PLATEAU,
            stop={"kind": "early_stopping", "metric": "m1", "epochs": 2},
        ),
    },
    "pairs": {
        "only": tiny.stage(
            unit="pair",
            captions_per_clip=None,
            losses=[NT_XENT],
            schedule={"kind": "epochs", "shape": "cosine", "start_lr": 0, "floor_lr": 1e-7} | SPAN,
        )
    },
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return tiny.make_world(tmp_path_factory.mktemp("world"), tiny.SIZES)


def trained(manifest: Path, folder: Path, name: str) -> list[tuple[float, float, float]]:
    """Training loss, validation loss and learning rate of each epoch."""
    content = tiny.recipe(manifest, folder, **SETTINGS[name])
    content["model"]["audio"]["dropout"] = content["model"]["text"]["dropout"] = 0.0
    content["rank"] = {}
    if name == "two stages":
        content["relevance"] = tiny.relevance()
    path = tiny.write_recipe(folder / "recipe.yaml", content)
    assert main(["run", "--until=training", str(path), "--out", str(folder / "run"), "--device", "cpu"]) == 0
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [(line["loss"], line["validation"]["loss"], line["lr"]) for line in lines]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", SETTINGS)
def test_losses_and_rates_of_each_epoch_stay_as_they_are(name, manifest, tmp_path):
    found = trained(manifest, tmp_path, name)
    assert len(found) == len(EXPECTED[name])
    for epoch, expected in zip(found, EXPECTED[name], strict=True):
        assert epoch == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
        assert epoch[2] == pytest.approx(expected[2], rel=1e-9)
