"""Check that several processes of one command were started with the same settings, code and versions."""

import json
from collections.abc import Mapping

from data_tools.cli import version
from data_tools.errors import KitError, SaidElsewhere
from system.compute.distributed import count, gather_objects, is_first
from system.recipe.differing import differing
from system.recipe.load import Loaded
from system.runs.provenance import commit

SHOWN = 3  # settings that differ


def require_same_start(verb: str, recipes: Mapping[str, Loaded]) -> None:
    """Compare what the processes were started with, before any work.

    Args:
        verb: of the command.
        recipes: by name, those that it runs; all resolved settings are compared, changes by --set included.
    Raises: KitError in the first process if another one has a different verb, setting, commit, or version of the kit
        or of torch, naming the rank and both values; SaidElsewhere in the others.
    """
    if count() == 1:
        return
    import torch

    here = {"verb": verb, "commit": commit(), "lbar-kit": version(), "torch": str(torch.__version__)}
    settings = {name: json.loads(loaded.resolved()) for name, loaded in recipes.items()}
    order = {  # decides draws
        f"order of stages and experts of {name}": [*loaded.recipe.stages, *loaded.recipe.model.audio.experts]
        for name, loaded in recipes.items()
    }
    every = gather_objects(here | settings | order)
    for number, other in enumerate(every):
        if found := list(differing(every[0], other)):
            if not is_first():
                raise SaidElsewhere("the processes were started with other settings")
            shown = ", ".join(
                f"{key} is {value!r} on rank 0 and {there!r} there" for key, value, there in found[:SHOWN]
            )
            more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            hint = "start every process with the same command, recipe and code"
            raise KitError(f"rank {number} of {count()} differs from rank 0: {shown}{more}; {hint}")
