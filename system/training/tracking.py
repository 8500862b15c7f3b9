"""What metrics.jsonl gets, for those who watch runs in TensorBoard, MLflow, or Weights & Biases.

metrics.jsonl stays the record; a tracker that fails is given up with a warning, and training goes on.
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

Status = Literal["FINISHED", "FAILED", "KILLED"]  # how a run ended, in MLflow's words
log = logging.getLogger(__name__)


class Tracker(ABC):
    """Takes the figures of one epoch after the other. last: the step of the last epoch it has, of earlier processes
    too.

    package: that it needs; brought_by: the command that installs it. needs: environment variables, one of which names
    its destination; none for a folder of the run.
    """

    package: ClassVar[str]
    brought_by: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    last = -1

    @classmethod
    def has_destination(cls) -> bool:
        """Whether the environment names where it writes; without that it would ask, and a job would wait for ever."""
        return not cls.needs or any(os.environ.get(variable) for variable in cls.needs)

    @abstractmethod
    def __init__(self, run: Run) -> None: ...

    @abstractmethod
    def write(self, values: dict[str, float], step: int) -> None: ...

    @abstractmethod
    def close(self, status: Status) -> None: ...


class TensorBoard(Tracker):
    """Into the run's folder `tensorboard`, written anew by every process, so that no step is there twice."""

    package, brought_by = "tensorboard", 'pip install -e ".[tracking]"'

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(run.folder / "tensorboard", ignore_errors=True)
        self.writer: Any = SummaryWriter(run.folder / "tensorboard")

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, status: Status) -> None:
        self.writer.close()


class MLflow(Tracker):
    """Its run carries the tag `lbar_kit`, by which another process finds it. It allows no @ in names."""

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
        self.mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in values.items()}, step=step)

    def close(self, status: Status) -> None:
        self.mlflow.end_run(status)


class WandB(Tracker):
    """Its run has the identity of ours, and goes on where it was."""

    package, brought_by = "wandb", "pip install wandb"
    needs = ("WANDB_PROJECT", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")

    @classmethod
    def has_destination(cls) -> bool:
        """Also in a mode that needs no login, and after `wandb login`, which writes ~/.netrc."""
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
        self.run.log(values, step=step)

    def close(self, status: Status) -> None:
        self.run.finish(exit_code=int(status != "FINISHED"))


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def tracker(name: str) -> type[Tracker]:
    """The tracker of a name. KitError for another name, and where its package or its environment variable is absent."""
    if name not in TRACKERS:
        raise KitError(f"no tracker {name!r}; there are {', '.join(TRACKERS)}")
    kind = TRACKERS[name]
    if find_spec(kind.package) is None:
        raise KitError(f"the package {kind.package} is not installed; install it with: {kind.brought_by}")
    if not kind.has_destination():
        login = ", WANDB_MODE=offline, or log in by `wandb login`" if kind is WandB else ""
        raise KitError(f"{name} has no destination: set {' or '.join(kind.needs)}{login}")
    return kind


def _identity(run: Run) -> str:
    """The same in every process that works on the run, whatever it is to rank by then; another one for every other
    run."""
    noted = run.read_provenance()
    return hashlib.sha256(f"{run.folder.name} {noted.began} {noted.machine}".encode()).hexdigest()[:16]


def figures(lines: Sequence[EpochLine]) -> Iterator[tuple[int, dict[str, float]]]:
    """The updates done after each line of metrics.jsonl, those of earlier stages with them, and its figures by name,
    such as `finetune/loss` and `finetune/validation/mAP@10`."""
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
    """The trackers of a run, which get all that its metrics.jsonl holds and they do not have."""

    def __init__(self, run: Run, kinds: Sequence[type[Tracker]]) -> None:
        self.run, self.kinds = run, kinds
        self.trackers: list[Tracker] = []

    def __enter__(self) -> Self:
        try:
            for kind in self.kinds:
                try:
                    self.trackers.append(kind(self.run))
                except Exception as error:  # of a server, a network, a full disk: nothing that training needs
                    _give_up(kind, error)
        except BaseException as error:
            self._close(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        for one in self.trackers:
            try:
                one.close(_status_after(error))
            except Exception as failure:
                _give_up(type(one), failure)

    def update(self) -> None:
        """Send the epochs that are new."""
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
    """A tracker that fails while it begins leaves no run active, which would stand in the way of the next one."""
    try:
        yield
    except BaseException as error:
        with suppress(Exception):
            one.close(_status_after(error))
        raise


def _status_after(error: BaseException | None) -> Status:
    return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED" if error else "FINISHED"


def _give_up(kind: type[Tracker], error: Exception) -> None:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    log.warning("%s gets no more of this run (%s); metrics.jsonl has all of it", kind.package, reason)
