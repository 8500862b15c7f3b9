"""Learning rates, frozen parts, and a stage's early end.

Everything is a function of the step and the validation values so far, so that a resumed stage equals a whole one.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from system.models.retrieval import RetrievalModel
from system.recipe import schema

History = Sequence[dict[str, float]]  # validation values of every finished epoch, oldest first


def parameter_groups(model: RetrievalModel, settings: schema.AdamW) -> list[dict[str, Any]]:
    """Group the trained parameters by learning rate.

    `base_lr` is a group's rate before the schedule.
    """
    parts, trained = model.parts(), [p for p in model.parameters() if p.requires_grad]
    part_of = {id(p): part for part in settings.lr_by_part for p in parts[part].parameters()}
    return [
        {"params": [p for p in trained if part_of.get(id(p)) == part], "lr": lr, "base_lr": lr}
        for part, lr in [(None, settings.lr), *settings.lr_by_part.items()]
    ]


def set_training_mode(
    model: RetrievalModel, settings: schema.AdamW, step: int, trained: Iterable[nn.Parameter]
) -> None:
    """Put a model in training mode, except for frozen parts.

    A part that `frozen_start` still freezes has no gradient, no update and no weight decay; it computes in evaluation
    mode, without dropout, and the statistics of its batch norms stay.

    Args:
        trained: Parameters of the whole model that the stage trains.
    """
    model.train()
    parts = [model.parts()[name] for name, steps in settings.frozen_start.items() if step < steps]
    frozen = {id(parameter) for part in parts for parameter in part.parameters()}
    for part in parts:
        part.eval()
    for parameter in trained if settings.frozen_start else ():
        parameter.requires_grad_(id(parameter) not in frozen)


def learning_rate(stage: schema.Stage, base: float, step: int, steps_per_epoch: int, history: History) -> float:
    """Return the learning rate of a step (from 0).

    constant, cosine: base * (step + 1) / warmup_steps in the first warmup_steps steps; then base, or half a cosine
    from base to 0. epochs: from start_lr to base, then to floor_lr until until_epoch. step: base * factor ^
    (finished epochs // every_epochs). plateau: base * factor ^ (plateaus of the metric), at least min_lr / lr of it.

    Args:
        base: The rate that the recipe gives to the group of parameters.
    """
    schedule, epoch = stage.schedule, step / steps_per_epoch
    if isinstance(schedule, schema.EpochSchedule):
        if epoch < schedule.warmup_epochs:
            return schedule.start_lr + (base - schedule.start_lr) * epoch / schedule.warmup_epochs
        fallen = min(1.0, (epoch - schedule.warmup_epochs) / (schedule.until_epoch - schedule.warmup_epochs))
        left = 1 - fallen if schedule.shape == "linear" else _half_cosine(fallen)
        return schedule.floor_lr + (base - schedule.floor_lr) * left
    if isinstance(schedule, schema.StepDecay):
        return base * schedule.factor ** (step // steps_per_epoch // schedule.every_epochs)
    if isinstance(schedule, schema.Plateau):
        return base * max(schedule.factor ** _plateaus(schedule, history), min(1, schedule.min_lr / stage.optimizer.lr))
    if step < schedule.warmup_steps:
        return base * ((step + 1) / schedule.warmup_steps)
    rest = max(1, stage.epochs * steps_per_epoch - schedule.warmup_steps)
    return base if schedule.kind == "constant" else base * _half_cosine((step - schedule.warmup_steps) / rest)


def _half_cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))


def _plateaus(schedule: schema.Plateau, history: History) -> int:
    """Count a metric's plateaus.

    A plateau is more than `patience` epochs without a better value (torch's ReduceLROnPlateau, abs).
    """
    plateaus = bad = 0
    best = math.inf
    for cost in _costs(schedule.metric, history):
        best, bad = (cost, 0) if cost < best - schedule.threshold else (best, bad + 1)
        if bad > schedule.patience:
            plateaus, bad = plateaus + 1, 0
    return plateaus


def ends_early(stop: schema.EarlyStopping | schema.StdPlateau | None, history: History) -> bool:
    """Return whether a stage ends after its epochs so far."""
    if stop is None:
        return False
    costs = _costs(stop.metric, history)
    if isinstance(stop, schema.EarlyStopping):
        return bool(costs) and len(costs) - 1 - costs.index(min(costs)) >= stop.epochs
    enough = len(costs) >= max(stop.at_least, stop.epochs)
    return enough and statistics.pstdev(costs[-stop.epochs :]) <= stop.deviation


def _costs(metric: str, history: History) -> list[float]:
    """Return a metric's values, so that lower is better."""
    return [values[metric] if metric in schema.LOWER_IS_BETTER else -values[metric] for values in history]
