"""Send a run's metrics to TensorBoard or Weights & Biases.

metrics.jsonl is complete without them.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from data_tools.errors import KitError
from submission.runs.record import EpochLine
from system.runs.folder import Run

Tracker = Literal["tensorboard", "wandb"]
Send = Callable[[dict[str, float], int], None]  # values of a step

EVERY = 10  # steps between two points of loss and rate

log = logging.getLogger(__name__)


def require_tracker(name: str | None) -> None:
    """Raise KitError for a tracker whose package is not installed."""
    if name and find_spec(name) is None:
        raise KitError(f"the package {name} of --track is not installed; pip install {name}")


class Tracking:
    """Sends the numbers of a run, each step once.

    A tracker that fails is left with a warning. A resumed run goes on where it was: TensorBoard's files are written
    anew, from the lines of metrics.jsonl; W&B finds the run by its id. W&B's own settings count, such as
    WANDB_MODE=offline and a stored login.
    """

    def __init__(self, name: Tracker | None, run: Run, profile_steps: int = 0) -> None:
        self.name, self._send, self._sent = name, None, 0
        self._profile_steps = profile_steps
        if name:
            with self._leaving():
                self._sent, self._send = _tensorboard(run) if name == "tensorboard" else _wandb(run)

    def step(self, step: int, values: dict[str, float]) -> None:
        """Send the values of a step, counted over all stages."""
        if self._send and step > self._sent:
            with self._leaving():
                self._send(values, step)
                self._sent = step

    def lines(self, lines: Sequence[EpochLine]) -> None:
        """Send what is new in all epochs' lines."""
        for step, values in metrics_by_step(lines):
            self.step(step, values)

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Leave a tracker that fails.

        It may lack a login, a network or disk space; training does not need it.
        """
        try:
            yield
        except Exception as error:
            log.warning("%s failed and gets no more data of this run: %s", self.name, error)
            self._send = None

    @contextmanager
    def profiled(self, folder: Path) -> Iterator[Callable[[], object]]:
        """Write torch's trace of some steps to trace.json.

        Yields:
            A function to call after each step.
        """
        if not self._profile_steps:
            yield lambda: None
            return
        import torch.profiler as torch_profiler

        steps = torch_profiler.schedule(wait=1, warmup=1, active=self._profile_steps, repeat=1)

        def write(profiler: torch_profiler.profile) -> None:
            profiler.export_chrome_trace(str(folder / "trace.json"))
            log.info("wrote %s; open it in chrome://tracing or ui.perfetto.dev", folder / "trace.json")

        with torch_profiler.profile(schedule=steps, on_trace_ready=write) as profiler:
            yield profiler.step


def _tensorboard(run: Run) -> tuple[int, Send]:
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(run.folder / "tensorboard", ignore_errors=True)
    writer = SummaryWriter(run.folder / "tensorboard")

    def send(values: dict[str, float], step: int) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return 0, send


def _wandb(run: Run) -> tuple[int, Send]:
    """Return W&B's last step, and a function that sends."""
    import wandb

    noted = run.read_provenance()
    key = hashlib.sha256(f"{run.folder.name} {noted.began} {noted.machine}".encode()).hexdigest()[:16]
    tracked = wandb.init(id=key, name=run.folder.name, dir=str(run.folder), resume="allow", reinit=True)
    return max(0, tracked.step - 1), lambda values, step: tracked.log(values, step=step)


def metrics_by_step(lines: Sequence[EpochLine]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield (step, metrics) of every line.

    Steps are counted over all stages. Metrics have names such as `finetune/loss` and `finetune/validation/mAP@10`.
    """
    before = done = 0
    stage = None
    for line in lines:
        if line.stage != stage:
            stage, before = line.stage, done
        done = before + (line.step or line.epoch)
        numbers = {name: value for name, value in line.document().items() if isinstance(value, int | float)}
        numbers |= {f"validation/{name}": value for name, value in line.validation.items()}
        numbers |= {f"seconds/{name}": value for name, value in line.times.items()}
        named = {f"{stage}/{name}": value for name, value in numbers.items() if name not in ("epoch", "step")}
        yield done, {"epoch": line.epoch, **named}
