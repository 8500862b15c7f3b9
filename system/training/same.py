"""Checks that the processes of one training have the same data and state, before they wait for each other."""

from data_tools.errors import KitError, SaidElsewhere
from system.compute.distributed import count, is_first, require_alike
from system.models.retrieval import RetrievalModel
from system.networks.weights import weights_sha256
from system.recipe import schema
from system.recipe.data import Data
from system.runs.folder import Run
from system.runs.provenance import contents_of


def require_same_work(name: str, stage: schema.Stage, data: Data) -> None:
    """KitError where a process would have nothing of a batch, and where processes read other clips. name: of the
    stage."""
    if count() == 1:
        return
    if stage.batch_size < count():
        problem = f"stage {name}: batch_size {stage.batch_size} is less than the {count()} processes"
        if is_first():
            raise KitError(f"{problem}; start {stage.batch_size}, or take a larger batch")
        raise SaidElsewhere(problem)
    contents = {source: contents_of(clips, data.features.keys) for source, clips in data.clips.items()}
    require_alike(contents, "its manifests or its audio are other ones; all processes need the same")


def require_same_state(name: str, step: int, model: RetrievalModel, run: Run) -> None:
    """KitError where processes go on from other weights, or from another step. name: of the stage."""
    if count() > 1:
        where = f"{run.folder} has to be one folder for all of them, on a disk that their machines share"
        require_alike((step, weights_sha256(model)), f"it has another state of stage {name} to go on from; {where}")
