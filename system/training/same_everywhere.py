"""Check that all processes agree.

They must have the same settings, code, data and state. The checks are made before the processes wait for each other.
"""

import json
import logging
from collections.abc import Mapping

from data_tools.cli import version
from data_tools.errors import KitError, SaidElsewhere
from system.compute.distributed import gather_objects, is_first, process_count, require_equal
from system.models.retrieval import RetrievalModel
from system.networks.weights import weights_sha256
from system.recipe import schema
from system.recipe.data import Data
from system.recipe.differing import differing
from system.recipe.load import Loaded
from system.runs.folder import Run
from system.runs.provenance import commit, contents_checksum

SHOWN = 3  # settings that differ

log = logging.getLogger(__name__)


def require_same_start(verb: str, recipes: Mapping[str, Loaded]) -> None:
    """Raise KitError if processes have different settings, verbs or versions. It is called before any other work.

    Args:
        verb: Verb of the command.
        recipes: Dict from name to each recipe that the verb runs. All settings are compared, also changes by --set.
    Raises: KitError in the first process if another process has a different verb, setting, commit, or version of the
        kit or of torch. Its message names the rank and both values. All other processes raise SaidElsewhere, which
        prints no message.
    """
    if process_count() == 1:
        return
    import torch

    versions = {"verb": verb, "commit": commit(), "lbar-kit": version(), "torch": str(torch.__version__)}
    settings = {name: json.loads(loaded.resolved()) for name, loaded in recipes.items()}
    order = {  # random draws depend on it
        f"order of stages and experts of {name}": [*loaded.recipe.stages, *loaded.recipe.model.audio.experts]
        for name, loaded in recipes.items()
    }
    every = gather_objects(versions | settings | order)
    for number, other in enumerate(every):
        if differences := list(differing(every[0], other)):
            if not is_first():
                raise SaidElsewhere(
                    "the first process has printed how the settings of the processes differ; read its message"
                )
            differing_settings = ", ".join(
                f"{key} is {value!r} on rank 0 and {there!r} on rank {number}"
                for key, value, there in differences[:SHOWN]
            )
            if len(differences) > SHOWN:
                differing_settings += f", and {len(differences) - SHOWN} more"
            raise KitError(
                f"rank {number} of {process_count()} differs from rank 0: {differing_settings}; start every "
                "process with the same command, recipe and code"
            )


def require_same_work(name: str, stage: schema.Stage, data: Data) -> None:
    """Raise KitError if processes read different clips, or if there are more processes than items in a batch.

    name: Name of the stage.
    """
    if process_count() == 1:
        return
    if stage.batch_size < process_count():
        if is_first():
            raise KitError(
                f"stage {name}: batch_size {stage.batch_size} is less than the {process_count()} processes; start at "
                f"most {stage.batch_size} processes, or use a larger batch"
            )
        raise SaidElsewhere("the first process has printed that the batch is too small; read its message")
    contents = {source: contents_checksum(clips, data.features.keys) for source, clips in data.clips.items()}
    require_equal(
        contents, "the two ranks read different manifests or audio files", "all processes must read the same files"
    )


def require_same_state(name: str, step: int, model: RetrievalModel, run: Run) -> None:
    """Raise KitError if processes resume from different weights or steps.

    name: Name of the stage.
    """
    if process_count() > 1:
        where = f"{run.folder} must be the same folder for all processes, on a disk that all machines share"
        require_equal((step, weights_sha256(model)), f"this rank would resume stage {name} from another state", where)


def warn_of_batch_shares(name: str, recipe: schema.Recipe) -> None:
    """Log a warning if the trained model depends on how several processes divide a batch among them."""
    if process_count() > 1 and recipe.model.batch_properties:
        properties = " and ".join(recipe.model.batch_properties)
        log.warning(
            "stage %s: each of %d processes computes %s from its share of a batch, so the result differs from "
            "training with one process",
            name,
            process_count(),
            properties,
        )
