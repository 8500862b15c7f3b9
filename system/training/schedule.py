"""Learning rates and early stopping.

Compute learning rates, and decide whether a stage ends early, from the validation values of its finished epochs.

history: Validation values of every finished epoch of the stage, oldest first. No other state is used, so that a resumed
stage has the same results as an uninterrupted stage.
"""

import math
import statistics
from collections.abc import Sequence

from data_tools.cli import counted
from system.recipe import schema

History = Sequence[dict[str, float]]


def learning_rates(
    stage: schema.Stage, bases: Sequence[float], step: int, steps_per_epoch: int, history: History
) -> list[float]:
    """Return the learning rates of a training step, one per parameter group.

    step: Number of the training step, from 0. bases: For each group, the learning rate that the recipe sets, before the
    schedule changes it. history: Validation values of every finished epoch, oldest first.
    """
    if isinstance(stage.schedule, schema.EpochSchedule):
        return [_rate_at_epoch(stage.schedule, base, step / steps_per_epoch) for base in bases]
    factor = _rate_factor(stage, stage.schedule, step, steps_per_epoch, history)
    return [base * factor for base in bases]


def _rate_at_epoch(schedule: schema.EpochSchedule, base: float, epoch: float) -> float:
    """Return the learning rate of an epoch schedule after `epoch` epochs of the stage, a number such as 1.5.

    base: Learning rate at the end of the warm-up.
    """
    if epoch < schedule.warmup_epochs:
        return schedule.start_lr + (base - schedule.start_lr) * epoch / schedule.warmup_epochs
    fallen = min(1.0, (epoch - schedule.warmup_epochs) / (schedule.until_epoch - schedule.warmup_epochs))
    left = 1 - fallen if schedule.shape == "linear" else (1 + math.cos(math.pi * fallen)) / 2
    return schedule.floor_lr + (base - schedule.floor_lr) * left


def _rate_factor(
    stage: schema.Stage,
    schedule: schema.Schedule | schema.StepDecay | schema.Plateau,
    step: int,
    steps_per_epoch: int,
    history: History,
) -> float:
    """Return the factor of a schedule in a training step. All learning rates are multiplied by this factor.

    step: Number of the training step, from 0. history: Validation values of every finished epoch, oldest first.
    Kinds constant and cosine: (step + 1) / warmup_steps in the first warmup_steps steps. Then 1 (constant), or half a
    cosine from 1 to 0 (cosine).
    Kind step: factor ^ (finished epochs // every_epochs).
    Kind plateau: factor ^ (number of plateaus of the metric), but at least min_lr / lr.
    """
    if isinstance(schedule, schema.StepDecay):
        return schedule.factor ** (step // steps_per_epoch // schedule.every_epochs)
    if isinstance(schedule, schema.Plateau):
        return max(schedule.factor ** _count_plateaus(schedule, history), schedule.min_lr / stage.optimizer.lr)
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.kind == "constant":
        return 1.0
    rest = max(1, stage.epochs * steps_per_epoch - schedule.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * (step - schedule.warmup_steps) / rest))


def _count_plateaus(schedule: schema.Plateau, history: History) -> int:
    """Count the plateaus of a metric. A plateau is more than `patience` epochs in a row without a better value.

    A value is better if it improves the best earlier value by more than `threshold`.
    """
    plateaus = bad = 0
    best = math.inf
    for cost in _values_to_minimise(schedule.metric, history):
        if cost < best - schedule.threshold:
            best, bad = cost, 0
        else:
            bad += 1
        if bad > schedule.patience:
            plateaus, bad = plateaus + 1, 0
    return plateaus


def ends_early(stop: schema.EarlyStopping | schema.StdPlateau | None, history: History) -> bool:
    """Return whether a stage ends early now, by its setting `stop` and the validation values of its epochs."""
    if stop is None:
        return False
    costs = _values_to_minimise(stop.metric, history)
    if isinstance(stop, schema.EarlyStopping):
        return len(costs) - 1 - costs.index(min(costs)) >= stop.epochs if costs else False
    enough = len(costs) >= max(stop.at_least, stop.epochs)
    return enough and statistics.pstdev(costs[-stop.epochs :]) <= stop.deviation


def describe_stop(stop: schema.EarlyStopping | schema.StdPlateau) -> str:
    """Return the reason for the log why a stage ends early."""
    if isinstance(stop, schema.EarlyStopping):
        return f"{stop.metric} has not improved for {counted(stop.epochs, 'epoch')}"
    return f"the standard deviation of {stop.metric} over {counted(stop.epochs, 'epoch')} is at most {stop.deviation:g}"


def _values_to_minimise(metric: str, history: History) -> list[float]:
    """Return a metric's values in all epochs, negated if higher is better, so that lower is always better."""
    return [values[metric] if metric in schema.LOWER_IS_BETTER else -values[metric] for values in history]
