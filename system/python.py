"""Recipes from Python: what `lbar run` does."""

import logging
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from data_tools.errors import kit_errors
from system.compute.device import device_of
from system.experiments import run
from system.recipe.load import as_change, load_recipe
from system.runs.folder import Run


@kit_errors
def run_recipe(
    recipe: str | PathLike[str],
    changes: Mapping[str, Any] | None = None,
    name: str | None = None,
    runs: str | PathLike[str] = "runs",
    device: str | None = None,
) -> Run:
    """Run the steps of a recipe that are not finished, and return the run.

    `metrics` has the metrics of its rank entries, `folder` what `load_model` opens.

    Args:
        changes: Settings by key, such as {"stages.train.epochs": 2}.
        name: Of the run's folder in `runs`; None: NAME_sSEED of the recipe.
        device: cuda, cuda:1, mps or cpu; None: CUDA if the machine has a GPU, else the CPU.
    """
    for floor in ("data_tools", "submission", "system"):  # for the run's log.txt
        logging.getLogger(floor).setLevel(logging.INFO)
    loaded = load_recipe(Path(recipe), [as_change(key, value) for key, value in (changes or {}).items()])
    out = Path(runs) / name if name else None
    return run.run_recipe(loaded, Path(runs), out, device_of(device) if device else None)
