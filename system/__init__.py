"""Train models from recipes, rank clips, find moments, search.

    from system import evaluate, load_model, run_recipe, table_of_runs

The names are imported at their first use, because torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data_tools.errors import KitError as KitError
    from system.bridges.export import export_run as export_run
    from system.experiments.rank import evaluate as evaluate
    from system.experiments.run import run_recipe as run_recipe
    from system.retriever import Retriever as Retriever
    from system.retriever import load_model as load_model
    from system.runs.overview import table_of_runs as table_of_runs

_PLACES = {
    "KitError": "data_tools.errors",
    "evaluate": "system.experiments.rank",
    "export_run": "system.bridges.export",
    "run_recipe": "system.experiments.run",
    "Retriever": "system.retriever",
    "load_model": "system.retriever",
    "table_of_runs": "system.runs.overview",
}


def __dir__() -> list[str]:
    return list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
