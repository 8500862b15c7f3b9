"""The table of all runs, finished or not."""

import os
from pathlib import Path
from typing import Any

import pandas as pd

from data_tools.errors import KitError
from data_tools.files import is_locked, read_json, require_folder
from system.runs.folder import Run, best_epochs

CHOSEN_BY = ("mAP@10", "mAP@16", "recall_sum", "R1@0.7", "loss")  # validation metrics; the first known one is shown
COLUMNS = ["run", "state", "stage", "epoch", "validation", "by", "test", "of", "hours", "changes"]
SORTED_BY = {"validation": "validation", "test": "test", "time": "hours"}


def table_of_runs(folder: str | os.PathLike[str] = "runs") -> pd.DataFrame:
    """Return a table of the runs in a folder.

    It has a row per run. `validation` is the best value of the last stage by the metric `by`, `test` the
    metric `of` of the first ranked entry, and `hours` the time of training and validation. `changes` are the settings
    that --set changed, or what is damaged.
    """
    folder = Path(folder)
    require_folder(folder, "name the folder that contains all runs")
    recipes = sorted([*folder.glob("*/resolved.json"), *folder.glob("*/*/resolved.json")])
    rows = [_row(path.parent) | {"run": path.parent.relative_to(folder).as_posix()} for path in recipes]
    if (folder / "resolved.json").exists():
        rows = [_row(folder) | {"run": folder.name}]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(folder: Path) -> dict[str, Any]:
    run = Run(folder)
    try:
        read_json(run.resolved)
        epochs = run.read_metrics()
        entries = run.results if run.result.exists() else None
        changes = run.read_provenance().changes if run.provenance.exists() else []
    except KitError as error:
        return {"state": "damaged", "changes": str(error).splitlines()[0].removeprefix(f"{folder}/")}
    state = "finished" if entries is not None else "running" if is_locked(folder / "lock") else "unfinished"
    row: dict[str, Any] = {"state": state, "changes": " ".join(changes) or None}
    if epochs:
        last = epochs[-1]
        row |= {"stage": last.stage, "epoch": last.epoch, "hours": sum(line.seconds for line in epochs) / 3600}
        for metric in [one for one in CHOSEN_BY if one in last.validation][:1]:
            best, _ = best_epochs([line for line in epochs if line.stage == last.stage], metric)[0]
            row |= {"by": metric, "validation": best}
    for entry in [one for one in (entries or {}).values() if one.figures and one.metric in one.figures][:1]:
        row |= {"of": entry.metric, "test": (entry.figures or {})[entry.metric]}
    return row


def print_runs(folder: Path, sort: str = "name") -> None:
    """Print the table by name, or the best run first."""
    table = table_of_runs(folder)
    if not len(table):
        print(f"{folder}: no run yet; make a run with lbar run RECIPE")
        return
    if sort in SORTED_BY:
        table = table.sort_values(SORTED_BY[sort], ascending=False, kind="stable")
    table["epoch"] = table["epoch"].map("{:.0f}".format, na_action="ignore")
    print(table.to_string(index=False, na_rep="-", float_format="{:.4f}".format, max_colwidth=60))
