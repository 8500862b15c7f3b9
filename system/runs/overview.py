"""The table of all runs, finished or not."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data_tools.errors import DataError
from data_tools.files import is_locked, read_json, require_folder
from submission.editions import format_metric
from submission.runs.record import MomentsResult, RankedResult, RunResult
from system.recipe.schema import LOWER_IS_BETTER
from system.runs.folder import Run

CHOSEN_BY = ("mAP@10", "mAP@16", "recall_sum", "R1@0.7", "loss")  # validation metrics; the first known one is shown
HEADER = ("run", "state", "trained", "validation", "test", "training hours", "changes")


class Figure(NamedTuple):
    """A value of a metric."""

    metric: str
    value: float

    def __str__(self) -> str:
        """Format the value."""
        return f"{self.metric} {format_metric(self.metric, self.value)}"


class Overview(NamedTuple):
    """A run, finished or not."""

    folder: Path
    state: str  # finished, running, unfinished or damaged
    trained: str = "-"  # last stage and epoch
    validation: Figure | None = None  # of the best epoch of this stage
    test: Figure | None = None  # primary metric of the first ranked entry
    seconds: float | None = None  # of training and validation
    changes: str = "-"  # settings that --set changed, or what is damaged

    def texts(self, runs: Path) -> list[str]:
        """Return a row of the table; the run's name is its path below `runs`."""
        name = self.folder.name if self.folder == runs else self.folder.relative_to(runs).as_posix()
        hours = "-" if self.seconds is None else f"{self.seconds / 3600:.2f}"
        return [name, self.state, self.trained, str(self.validation or "-"), str(self.test or "-"), hours, self.changes]


def overview(folder: Path) -> Overview:
    """Read the overview of a run."""
    run = Run(folder)
    try:
        read_json(run.resolved)
        epochs = run.read_metrics() if run.metrics.exists() else []
        result = run.read_result() if run.result.exists() else None
        changes = run.read_provenance().changes if run.provenance.exists() else []
    except DataError as error:
        return Overview(folder, "damaged", changes=str(error).splitlines()[0])
    state = "finished" if result else "running" if is_locked(folder / "lock") else "unfinished"
    return Overview(
        folder,
        state,
        f"{epochs[-1].stage} {epochs[-1].epoch}" if epochs else "-",
        _best_epoch([line.validation for line in epochs if line.stage == epochs[-1].stage]),
        _test_figure(result) if result else None,
        sum(line.seconds for line in epochs) if epochs else None,
        " ".join(changes) or "-",
    )


def _best_epoch(epochs: Sequence[dict[str, float]]) -> Figure | None:
    """Return the best value of the first known metric of CHOSEN_BY."""
    for metric in CHOSEN_BY:
        if values := [one[metric] for one in epochs if metric in one]:
            return Figure(metric, min(values) if metric in LOWER_IS_BETTER else max(values))
    return None


def _test_figure(result: RunResult) -> Figure | None:
    entries: list[RankedResult | MomentsResult] = [*result.rank.values(), *result.moments.values()]
    for entry in entries:
        if entry.figures is not None and entry.metric in entry.figures:
            return Figure(entry.metric, entry.figures[entry.metric])
    return None


SORTED_BY: dict[str, Callable[[Overview], Any]] = {
    "name": lambda run: str(run.folder),
    "validation": lambda run: -run.validation.value if run.validation else 0.0,
    "test": lambda run: -run.test.value if run.test else 0.0,
    "time": lambda run: -(run.seconds or 0.0),
}


def print_runs(folder: Path, sort: str = "name") -> None:
    """Print the table of the runs in a folder and in its studies, or of the run that it is."""
    require_folder(folder, "name the folder that contains all runs")
    recipes = [*folder.glob("*/resolved.json"), *folder.glob("*/*/resolved.json")]
    folders = [folder] if (folder / "resolved.json").exists() else sorted(path.parent for path in recipes)
    if not folders:
        print(f"{folder}: no run yet; make a run with lbar run RECIPE")
        return
    rows = [HEADER, *(run.texts(folder) for run in sorted(map(overview, folders), key=SORTED_BY[sort]))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(*("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), sep="\n")
