"""TensorBoard, MLflow, Weights & Biases.

Send the lines of metrics.jsonl to TensorBoard, MLflow, or Weights & Biases.

metrics.jsonl remains the record. If a tracker fails, a warning is logged, and training continues without it.
"""

import hashlib
import logging
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from data_tools.errors import KitError
from submission.runs.record import EpochLine
from system.runs.folder import Run

Status = Literal["FINISHED", "FAILED", "KILLED"]  # MLflow's names for the end of a run
log = logging.getLogger(__name__)


class Tracker(ABC):
    """Receives the metrics of one epoch after the other.

    last: The step of its last epoch, including those of earlier processes. package: The required package. brought_by:
    The command that installs it. needs: Environment variables; one of them must name the destination. It is empty for
    a tracker that writes into the run's folder.
    """

    package: ClassVar[str]
    brought_by: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    last = -1

    @classmethod
    def has_destination(cls) -> bool:
        """Return whether environment variables state where metrics are to be sent.

        Otherwise the tracker would wait for input forever.
        """
        return not cls.needs or any(os.environ.get(variable) for variable in cls.needs)

    @abstractmethod
    def __init__(self, run: Run) -> None: ...

    @abstractmethod
    def write(self, values: dict[str, float], step: int) -> None:
        """Send metrics of a step."""
        ...

    @abstractmethod
    def close(self, status: Status) -> None:
        """End the tracked run with a status."""
        ...


class TensorBoard(Tracker):
    """Writes the run's folder `tensorboard`. Every process rewrites it, so that no step is duplicated."""

    package, brought_by = "tensorboard", 'pip install -e ".[tracking]"'

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(run.folder / "tensorboard", ignore_errors=True)
        self.writer: Any = SummaryWriter(run.folder / "tensorboard")

    def write(self, values: dict[str, float], step: int) -> None:
        """Write metrics of a step to the run's folder."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, status: Status) -> None:
        """Close the files that metrics are written to."""
        self.writer.close()


class MLflow(Tracker):
    """Writes to MLflow. Other processes find the run by its tag `lbar_kit`. MLflow allows no @ in names."""

    package, brought_by, needs = "mlflow", "pip install mlflow", ("MLFLOW_TRACKING_URI",)

    def __init__(self, run: Run) -> None:
        import mlflow

        key = _identity(run)
        found = mlflow.search_runs(filter_string=f"tags.lbar_kit = '{key}'", output_format="list")
        self.mlflow, known = mlflow, {"run_id": found[0].info.run_id} if found else {"run_name": run.folder.name}
        run_id = mlflow.start_run(**known).info.run_id
        with _closed_on_error(self):
            mlflow.set_tag("lbar_kit", key)
            history = mlflow.MlflowClient().get_metric_history(run_id, "epoch")
        self.last = max((entry.step for entry in history), default=-1)

    def write(self, values: dict[str, float], step: int) -> None:
        """Send metrics of a step to MLflow."""
        self.mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in values.items()}, step=step)

    def close(self, status: Status) -> None:
        """End the MLflow run with a status."""
        self.mlflow.end_run(status)


class WandB(Tracker):
    """Writes to Weights & Biases. The tracked run has the same identity as ours, and is resumed."""

    package, brought_by = "wandb", "pip install wandb"
    needs = ("WANDB_PROJECT", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")

    @classmethod
    def has_destination(cls) -> bool:
        """Return whether Weights & Biases can be used without asking for a login.

        True also in a mode that needs no login, and after `wandb login`, which writes ~/.netrc.
        """
        if os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun") or super().has_destination():
            return True
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
        files = (Path(os.environ.get("NETRC") or "~/.netrc").expanduser(), Path("~/_netrc").expanduser())
        with suppress(OSError, NetrcParseError):
            return any(host in netrc(path).hosts for path in files if path.is_file())
        return False

    def __init__(self, run: Run) -> None:
        import wandb

        self.run = wandb.init(id=_identity(run), name=run.folder.name, dir=str(run.folder), resume="allow")
        with _closed_on_error(self):
            self.last = self.run.step - 1

    def write(self, values: dict[str, float], step: int) -> None:
        """Send metrics of a step to Weights & Biases."""
        self.run.log(values, step=step)

    def close(self, status: Status) -> None:
        """End the tracked run with a status."""
        self.run.finish(exit_code=int(status != "FINISHED"))


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def tracker(name: str) -> type[Tracker]:
    """Return the class of the tracker with this name.

    Raises KitError for an unknown name, and if the package or the environment variable is missing.
    """
    if name not in TRACKERS:
        raise KitError(f"unknown tracker {name!r}; choose one of {', '.join(TRACKERS)}")
    kind = TRACKERS[name]
    if find_spec(kind.package) is None:
        raise KitError(f"the package {kind.package} is not installed; install it with: {kind.brought_by}")
    if not kind.has_destination():
        login = ", WANDB_MODE=offline, or log in with `wandb login`" if kind is WandB else ""
        variables = " or ".join(kind.needs)
        raise KitError(f"the tracker {name} has no destination; set the environment variable {variables}{login}")
    return kind


def _identity(run: Run) -> str:
    """Return a text that identifies the run in trackers.

    It is the same in every process and after changes of the ranking.
    """
    noted = run.read_provenance()
    return hashlib.sha256(f"{run.folder.name} {noted.began} {noted.machine}".encode()).hexdigest()[:16]


def figures(lines: Sequence[EpochLine]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield, for each line of metrics.jsonl, the step and a dict from names to the numbers of the line.

    The step is the number of updates up to the line, counted over all stages. Names are such as `finetune/loss` and
    `finetune/validation/mAP@10`.
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


class Tracking:
    """The trackers of a run. They receive the lines of its metrics.jsonl that they do not have yet."""

    def __init__(self, run: Run, kinds: Sequence[type[Tracker]]) -> None:
        self.run, self.kinds = run, kinds
        self.trackers: list[Tracker] = []

    def __enter__(self) -> Self:
        try:
            for kind in self.kinds:
                try:
                    self.trackers.append(kind(self.run))
                except Exception as error:  # of a server, a network, a full disk: training does not need them
                    _give_up(kind, error)
        except BaseException as error:
            self._close(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        """Close all trackers after the training, or after an error."""
        for one in self.trackers:
            try:
                one.close(_status_after(error))
            except Exception as failure:
                _give_up(type(one), failure)

    def update(self) -> None:
        """Send the metrics of new epochs to all trackers."""
        if not self.trackers or not self.run.metrics.exists():
            return
        for step, values in figures(self.run.read_metrics()):
            for one in [one for one in self.trackers if step > one.last]:
                try:
                    one.write(values, step)
                except Exception as error:
                    self.trackers.remove(one)
                    _give_up(type(one), error)
                    with suppress(Exception):
                        one.close("FAILED")
                one.last = step


@contextmanager
def _closed_on_error(one: Tracker) -> Iterator[None]:
    """Context manager that closes the tracker `one` if its block fails, since an open run would block the next one.

    A run that remains active would block the next one.
    """
    try:
        yield
    except BaseException as error:
        with suppress(Exception):
            one.close(_status_after(error))
        raise


def _status_after(error: BaseException | None) -> Status:
    """Return the status, for a tracker, of a run that ended with `error`, or without an error."""
    return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED" if error else "FINISHED"


def _give_up(kind: type[Tracker], error: Exception) -> None:
    """Warn that a tracker has failed, and that it gets no more data."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    log.warning(
        "the tracker %s failed and gets no more data of this run (%s); metrics.jsonl has all data", kind.package, reason
    )
