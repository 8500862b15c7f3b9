"""Learning rates by part, frozen starts.

Prepare a model for a stage: separate learning rates of its parts, parts that are frozen at the start, synchronised
batch norms, and compiled networks.
"""

from typing import Any

from torch import nn

from system.compute.distributed import process_count
from system.models.retrieval import RetrievalModel
from system.networks.synchronised import synchronise
from system.recipe import schema


def parameter_groups(model: RetrievalModel, settings: schema.AdamW) -> tuple[list[dict[str, Any]], list[float]]:
    """Group the trainable parameters by learning rate; return the groups and the base learning rate of each group.

    The first group has the rate `lr`. It contains all parameters outside the parts in `lr_by_part`, and may be empty.
    """
    parts, parameters = model.parts(), [p for p in model.parameters() if p.requires_grad]
    named = {id(p): part for part in settings.lr_by_part for p in parts[part].parameters()}
    groups = [{"params": [p for p in parameters if named.get(id(p)) == part]} for part in (None, *settings.lr_by_part)]
    return groups, [settings.lr, *settings.lr_by_part.values()]


class FrozenStart:
    """Freezes parts of a model for the first steps of a stage.

    A frozen part has no gradients, and thus no update, no weight decay, and no moments in the optimizer. It computes in
    evaluation mode: the statistics of its batch norms do not change, and it has no dropout. Only the number of the step
    determines which parts are frozen.
    """

    def __init__(self, model: RetrievalModel, settings: schema.AdamW) -> None:
        """Store the parts of the model that the setting `frozen_start` names, each with its number of frozen steps."""
        self.model, parts = model, model.parts()
        self.parts: list[tuple[nn.Module, list[nn.Parameter], int]] = [
            (parts[name], [p for p in parts[name].parameters() if p.requires_grad], steps)
            for name, steps in settings.frozen_start.items()
        ]

    def begin_step(self, step: int) -> None:
        """Freeze or unfreeze each part in `frozen_start` for a training step, counted from 0."""
        if not any(step <= steps for *_, steps in self.parts):
            return
        self.model.train()
        for part, parameters, steps in self.parts:
            if step < steps:
                part.eval()
            for parameter in parameters:
                parameter.requires_grad_(step >= steps)

    def end(self) -> None:
        """End the frozen start: make all parts of the model trainable again, for the next stage."""
        for _, parameters, _ in self.parts:
            for parameter in parameters:
                parameter.requires_grad_()


def prepare_for_stage(model: RetrievalModel, stage: schema.Stage) -> None:
    """Prepare a model for a stage: synchronise the batch norms of several processes, and compile its networks.

    The network of the audio encoder is compiled, and also the network of the text encoder if it is trained.
    """
    if process_count() > 1:
        synchronise(model, stage.batch_norm == "synchronised")
    networks: list[Any] = [model.audio.parts().get("network", model.audio), getattr(model.text, "trained", None)]
    for network in filter(None, networks):
        network._compiled_call_impl = None  # remove that of the previous stage
        if stage.compile and model.device.type == "cuda":
            network.compile()  # in place, so that tensors keep their names
