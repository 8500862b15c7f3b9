"""Short summaries of runs, finished or not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from data_tools.errors import DataError
from data_tools.files import is_locked, read_json, require_folder
from submission.editions import format_metric
from submission.runs.reading import read_provenance, read_result
from submission.runs.record import EpochLine, MomentsResult, RankedResult, Record, RunResult
from system.runs.folder import Run

CHOSEN_BY = ("mAP@10", "mAP@16", "recall_sum", "R1@0.7", "loss")  # validation metrics, the first available one is shown
LOWER_IS_BETTER = {"loss"}


class Figure(Record):
    """A value of a metric. where: Stage and epoch that were validated, or name of the ranked entry that was scored."""

    metric: str
    value: float
    where: str


class RunOverview(Record):
    """Summary of a run, finished or not.

    Attributes:
        run: Folder of the run.
        changes: Settings of the recipe that --set changed.
        state: `finished`, `running`, `unfinished` or `damaged`.
        stage: Last trained stage.
        epoch: Last epoch of this stage.
        validation: Metric of the best epoch of this stage.
        test: Primary metric of the first ranked entry.
        seconds: Duration of the training steps of all epochs. The computation of the experts' frames, validation and
            ranking are not included.
        problem: Reason why a damaged run cannot be read.
    """

    run: str
    recipe: str | None = None
    seed: int | None = None
    changes: list[str] = Field(default_factory=list)
    state: str
    stage: str | None = None
    epoch: int | None = None
    validation: Figure | None = None
    test: Figure | None = None
    seconds: float | None = None
    problem: str | None = None


def overviews(runs: Path) -> Iterator[RunOverview]:
    """Yield a summary of every run in the folder `runs` and in its direct subfolders (studies), sorted by path.

    If the folder itself is a run, yield only its summary.
    """
    recipes = [*runs.glob("*/resolved.json"), *runs.glob("*/*/resolved.json")]  # the second for studies
    yield from map(overview, [runs] if (runs / "resolved.json").exists() else sorted(path.parent for path in recipes))


def overview(folder: Path) -> RunOverview:
    """Return a summary of one run; a damaged run gets the state `damaged` instead of an error."""
    try:
        return _read_overview(folder)
    except DataError as error:
        return RunOverview(run=str(folder), state="damaged", problem=str(error).splitlines()[0])


def _read_overview(folder: Path) -> RunOverview:
    """Read the files in the folder of a run and return a summary. Raises DataError for damaged files."""
    recipe = read_json(folder / "resolved.json")
    run = Run(folder)
    epochs = run.read_metrics() if run.metrics.exists() else []
    result = read_result(folder) if (folder / "result.json").exists() else None
    return RunOverview(
        run=str(folder),
        recipe=recipe["name"],
        seed=recipe["seed"],
        changes=read_provenance(folder).changes if (folder / "provenance.json").exists() else [],
        state="finished" if result else "running" if is_locked(folder / "lock") else "unfinished",
        stage=epochs[-1].stage if epochs else None,
        epoch=epochs[-1].epoch if epochs else None,
        validation=_best_epoch(epochs),
        test=_test_figure(result) if result else None,
        seconds=sum(line.seconds for line in epochs) if epochs else None,
    )


def _test_figure(result: RunResult) -> Figure | None:
    """Return the value of the primary metric of a run's first entry with metrics; None without such an entry.

    Entries that rank clips come before entries that find moments.
    """
    entries: dict[str, RankedResult | MomentsResult] = {**result.rank, **result.moments}
    for name, entry in entries.items():
        if entry.figures is not None and entry.metric in entry.figures:
            return Figure(metric=entry.metric, value=entry.figures[entry.metric], where=name)
    return None


def _best_epoch(epochs: list[EpochLine]) -> Figure | None:
    """Return the validation metric of the best epoch of the last training stage; None if no epoch was validated.

    The metric is the first one of the list CHOSEN_BY, such as mAP@10, that was computed in this stage.
    """
    last = [line for line in epochs if line.stage == epochs[-1].stage]
    for metric in CHOSEN_BY:
        if measured := [line for line in last if metric in line.validation]:
            sign = -1 if metric in LOWER_IS_BETTER else 1
            best = max(measured, key=lambda line: sign * line.validation[metric])
            where = f"{best.stage} epoch {best.epoch}"
            return Figure(metric=metric, value=best.validation[metric], where=where)
    return None


def print_runs(folder: Path, sort: str = "name") -> None:
    """Print a table of all runs."""
    require_folder(folder, "name the folder that contains all runs")
    runs = sorted(overviews(folder), key=SORTED_BY[sort])
    if not runs:
        print(f"{folder}: no run yet; make a run with lbar run RECIPE")
        return
    header = ("run", "state", "trained", "validation", "test", "training hours", "changes")
    rows = [header, *(_row(entry, folder) for entry in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(*("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), sep="\n")


def _row(entry: RunOverview, runs: Path) -> tuple[str, ...]:
    """Return the texts of a run in the table of runs; its name is its path below `runs`."""
    return (
        Path(entry.run).name if Path(entry.run) == runs else Path(entry.run).relative_to(runs).as_posix(),
        entry.state,
        f"{entry.stage} {entry.epoch}" if entry.stage else "-",
        _format_figure(entry.validation),
        _format_figure(entry.test),
        "-" if entry.seconds is None else f"{entry.seconds / 3600:.2f}",
        entry.problem or " ".join(entry.changes) or "-",
    )


def _format_figure(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.metric} {format_metric(figure.metric, figure.value)}"


SORTED_BY: dict[str, Callable[[RunOverview], Any]] = {
    "name": lambda run: run.run,
    "validation": lambda run: -run.validation.value if run.validation else 0.0,
    "test": lambda run: -run.test.value if run.test else 0.0,
    "time": lambda run: -(run.seconds or 0.0),
}
