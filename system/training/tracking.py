"""TensorBoard, MLflow, Weights & Biases.

These trackers receive the lines of metrics.jsonl.

If a tracker fails, a warning is logged, and training continues without it. metrics.jsonl is complete in any case.
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
    """Base of the classes that send a run's metrics to a tracker, epoch after epoch.

    last: Step of the last epoch that the tracker has, also from earlier processes. package: Required Python package.
    brought_by: Command that installs the package. needs: Environment variables; one of them must be set, to name the
    destination. `needs` is empty for a tracker that writes to the run's folder.
    """

    package: ClassVar[str]
    brought_by: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    last = -1

    @classmethod
    def has_destination(cls) -> bool:
        """Return whether an environment variable tells where to send metrics, or the tracker needs no such variable.

        Without a destination, the tracker would wait for input forever.
        """
        return not cls.needs or any(os.environ.get(variable) for variable in cls.needs)

    @abstractmethod
    def __init__(self, run: Run) -> None:
        """Open the tracker for a run."""

    @abstractmethod
    def write(self, values: dict[str, float], step: int) -> None:
        """Send the metrics of an epoch whose last training step is number `step`."""
        ...

    @abstractmethod
    def close(self, status: Status) -> None:
        """End the tracked run with a status, such as FINISHED."""
        ...


class TensorBoard(Tracker):
    """Writes metrics to the run's folder `tensorboard`. A resumed run writes it again, so that no step occurs twice."""

    package, brought_by = "tensorboard", 'pip install -e ".[tracking]"'

    def __init__(self, run: Run) -> None:
        """Delete the run's folder `tensorboard`, and open it for writing."""
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(run.folder / "tensorboard", ignore_errors=True)
        self.writer: Any = SummaryWriter(run.folder / "tensorboard")

    def write(self, values: dict[str, float], step: int) -> None:
        """Write the metrics of an epoch whose last training step is number `step` to the run's folder."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, status: Status) -> None:
        """Close the files in the folder `tensorboard`."""
        self.writer.close()


class MLflow(Tracker):
    """Sends metrics to MLflow. A resumed run is found by its tag `lbar_kit`. In names, @ is replaced by _at_."""

    package, brought_by, needs = "mlflow", "pip install mlflow", ("MLFLOW_TRACKING_URI",)

    def __init__(self, run: Run) -> None:
        """Find the run in MLflow by its tag, or start a new MLflow run."""
        import mlflow

        key = _run_id(run)
        found = mlflow.search_runs(filter_string=f"tags.lbar_kit = '{key}'", output_format="list")
        self.mlflow, known = mlflow, {"run_id": found[0].info.run_id} if found else {"run_name": run.folder.name}
        run_id = mlflow.start_run(**known).info.run_id
        with _close_on_error(self):
            mlflow.set_tag("lbar_kit", key)
            history = mlflow.MlflowClient().get_metric_history(run_id, "epoch")
        self.last = max((entry.step for entry in history), default=-1)

    def write(self, values: dict[str, float], step: int) -> None:
        """Send the metrics of an epoch whose last training step is number `step` to MLflow."""
        self.mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in values.items()}, step=step)

    def close(self, status: Status) -> None:
        """End the MLflow run with a status, such as FINISHED."""
        self.mlflow.end_run(status)


class WandB(Tracker):
    """Sends metrics to Weights & Biases. A resumed run is found by its id."""

    package, brought_by = "wandb", "pip install wandb"
    needs = ("WANDB_PROJECT", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")

    @classmethod
    def has_destination(cls) -> bool:
        """Return whether Weights & Biases can be used without asking for a login.

        There are three such cases: an environment variable in `needs` is set; WANDB_MODE is a mode without login; or
        `wandb login` has written ~/.netrc.
        """
        if os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun") or super().has_destination():
            return True
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
        files = (Path(os.environ.get("NETRC") or "~/.netrc").expanduser(), Path("~/_netrc").expanduser())
        with suppress(OSError, NetrcParseError):
            return any(host in netrc(path).hosts for path in files if path.is_file())
        return False

    def __init__(self, run: Run) -> None:
        """Find the run in Weights & Biases by its id, or start a new run."""
        import wandb

        self.run = wandb.init(id=_run_id(run), name=run.folder.name, dir=str(run.folder), resume="allow")
        with _close_on_error(self):
            self.last = self.run.step - 1

    def write(self, values: dict[str, float], step: int) -> None:
        """Send the metrics of an epoch whose last training step is number `step` to Weights & Biases."""
        self.run.log(values, step=step)

    def close(self, status: Status) -> None:
        """End the tracked run with a status, such as FINISHED."""
        self.run.finish(exit_code=int(status != "FINISHED"))


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def tracker_class(name: str) -> type[Tracker]:
    """Return the class of the tracker `name`: tensorboard, mlflow or wandb.

    Raises KitError for an unknown name, or if a required package or environment variable is missing.
    """
    if name not in TRACKERS:
        raise KitError(f"unknown tracker {name!r}; choose one of {', '.join(TRACKERS)}")
    kind = TRACKERS[name]
    if find_spec(kind.package) is None:
        raise KitError(f"the package {kind.package} is not installed; install it with: {kind.brought_by}")
    if not kind.has_destination():
        other_ways = ", set WANDB_MODE=offline, or log in with `wandb login`" if kind is WandB else ""
        raise KitError(
            f"the tracker {name} has no destination; set the environment variable {' or '.join(kind.needs)}{other_ways}"
        )
    return kind


def _run_id(run: Run) -> str:
    """Return a text that identifies the run in trackers.

    The text does not change if the run is resumed, or ranked again with other settings.
    """
    noted = run.read_provenance()
    return hashlib.sha256(f"{run.folder.name} {noted.began} {noted.machine}".encode()).hexdigest()[:16]


def metrics_by_step(lines: Sequence[EpochLine]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield, for each line of metrics.jsonl, its step and a dict from the names of its metrics to their values.

    The step is the number of updates until the end of the line's epoch, counted over all stages. Examples of names are
    `finetune/loss` and `finetune/validation/mAP@10`.
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
    """Context manager that opens and closes the trackers of a run. `update` sends new lines of metrics.jsonl."""

    def __init__(self, run: Run, kinds: Sequence[type[Tracker]]) -> None:
        """Store the run and the classes of its trackers (`kinds`), without opening trackers."""
        self.run, self.kinds = run, kinds
        self.trackers: list[Tracker] = []

    def __enter__(self) -> Self:
        """Open all trackers. If a tracker fails, warn and continue without it."""
        try:
            for kind in self.kinds:
                try:
                    self.trackers.append(kind(self.run))
                except Exception as error:  # of a server, a network, a full disk: training does not need them
                    _warn_of_failure(kind, error)
        except BaseException as error:
            self._close(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close all trackers, with a status that tells whether the training has failed."""
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        """Close all trackers. error: Error that ended the training; None if it succeeded."""
        for one in self.trackers:
            try:
                one.close(_status_after(error))
            except Exception as failure:
                _warn_of_failure(type(one), failure)

    def update(self) -> None:
        """Send each tracker the lines of metrics.jsonl that are new for this tracker."""
        if not self.trackers or not self.run.metrics.exists():
            return
        for step, values in metrics_by_step(self.run.read_metrics()):
            for one in [one for one in self.trackers if step > one.last]:
                try:
                    one.write(values, step)
                except Exception as error:
                    self.trackers.remove(one)
                    _warn_of_failure(type(one), error)
                    with suppress(Exception):
                        one.close("FAILED")
                one.last = step


@contextmanager
def _close_on_error(one: Tracker) -> Iterator[None]:
    """Context manager that closes the tracker `one` if its block fails.

    A tracked run that stays open would block the next run.
    """
    try:
        yield
    except BaseException as error:
        with suppress(Exception):
            one.close(_status_after(error))
        raise


def _status_after(error: BaseException | None) -> Status:
    """Return the status of a tracked run that ended with `error`; None: without an error."""
    return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED" if error else "FINISHED"


def _warn_of_failure(kind: type[Tracker], error: Exception) -> None:
    """Log a warning that a tracker has failed, and gets no more data of the run."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    log.warning(
        "the tracker %s failed (%s) and gets no more data of this run; metrics.jsonl has all data", kind.package, reason
    )
