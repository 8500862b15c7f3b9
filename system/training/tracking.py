"""TensorBoard or Weights & Biases: they get the lines of metrics.jsonl, which is complete in any case."""

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Literal

from data_tools.errors import KitError
from submission.runs.record import EpochLine
from system.runs.folder import Run

Track = Callable[[Sequence[EpochLine]], None]  # gets all lines so far
Tracker = Literal["tensorboard", "wandb"]

log = logging.getLogger(__name__)


def require_tracker(name: str | None) -> None:
    """Raise KitError for a tracker whose package is not installed."""
    if name and find_spec(name) is None:
        raise KitError(f"the package {name} of --track is not installed; pip install {name}")


def track_nowhere(lines: Sequence[EpochLine]) -> None:
    """Send nothing."""


def open_tracker(name: Tracker | None, run: Run) -> Track:
    """Return the function that sends new lines of metrics.jsonl to a tracker.

    A resumed run goes on where it was: TensorBoard's files are written anew, W&B finds the run by its id. W&B's own
    settings count, such as WANDB_MODE=offline and a stored login. A tracker that fails is left with a warning.
    """
    if name is None:
        return track_nowhere
    try:
        sent, send = (0, _tensorboard(run)) if name == "tensorboard" else _wandb(run)
    except Exception as error:  # without a login or a network; training does not need them
        log.warning("%s cannot be used: %s", name, error)
        return track_nowhere

    def track(lines: Sequence[EpochLine]) -> None:
        nonlocal sent
        for step, values in list(metrics_by_step(lines)):
            if step > sent >= 0:
                try:
                    send(values, step)
                    sent = step
                except Exception as error:  # of a server, a network, a full disk: training does not need them
                    log.warning("%s failed and gets no more data of this run: %s", name, error)
                    sent = -1

    return track


def _tensorboard(run: Run) -> Callable[[dict[str, float], int], None]:
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(run.folder / "tensorboard", ignore_errors=True)
    writer = SummaryWriter(run.folder / "tensorboard")

    def send(values: dict[str, float], step: int) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return send


def _wandb(run: Run) -> tuple[int, Callable[[dict[str, float], int], None]]:
    """Return the last step that W&B has of this run, and the function that sends the values of a step."""
    import wandb

    noted = run.read_provenance()
    key = hashlib.sha256(f"{run.folder.name} {noted.began} {noted.machine}".encode()).hexdigest()[:16]
    tracked = wandb.init(id=key, name=run.folder.name, dir=str(run.folder), resume="allow", reinit=True)
    return max(0, tracked.step - 1), lambda values, step: tracked.log(values, step=step)


def metrics_by_step(lines: Sequence[EpochLine]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield (step, metrics) of every line; steps are counted over all stages.

    Names are such as `finetune/loss` and `finetune/validation/mAP@10`.
    """
    before = done = 0
    stage = None
    for line in lines:
        if line.stage != stage:
            stage, before = line.stage, done
        done = before + (line.step or line.epoch)
        numbers = {name: value for name, value in line.document().items() if isinstance(value, int | float)}
        numbers |= {f"validation/{name}": value for name, value in line.validation.items()}
        named = {f"{stage}/{name}": value for name, value in numbers.items() if name not in ("epoch", "step")}
        yield done, {"epoch": line.epoch, **named}
