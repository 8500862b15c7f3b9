"""Parts of a model with learning rates of their own, and parts that are frozen at the start of a stage."""

from typing import Any

from torch import nn

from system.models.retrieval import RetrievalModel
from system.recipe import schema


def parameter_groups(model: RetrievalModel, settings: schema.AdamW) -> tuple[list[dict[str, Any]], list[float]]:
    """The trainable parameters as an optimizer takes them, and the base rate of each group.

    The first group has `lr`, and what no part with a rate of its own holds; it may be empty.
    """
    parts, parameters = model.parts(), [p for p in model.parameters() if p.requires_grad]
    named = {id(p): part for part in settings.lr_by_part for p in parts[part].parameters()}
    groups = [{"params": [p for p in parameters if named.get(id(p)) == part]} for part in (None, *settings.lr_by_part)]
    return groups, [settings.lr, *settings.lr_by_part.values()]


class FrozenStart:
    """Parts that stay as they are for the first steps of a stage.

    A frozen part has no gradients, so that it has no update, no weight decay and no moments, and computes as in
    evaluation: the statistics of its batch norms stay, and it has no dropout. A function of the step alone.
    """

    def __init__(self, model: RetrievalModel, settings: schema.AdamW) -> None:
        self.model, parts = model, model.parts()
        self.parts: list[tuple[nn.Module, list[nn.Parameter], int]] = [
            (parts[name], [p for p in parts[name].parameters() if p.requires_grad], steps)
            for name, steps in settings.frozen_start.items()
        ]

    def begin_step(self, step: int) -> None:
        """Put every part of a model in training into the state of a step (from 0)."""
        if not any(step <= steps for *_, steps in self.parts):
            return
        self.model.train()
        for part, parameters, steps in self.parts:
            if step < steps:
                part.eval()
            for parameter in parameters:
                parameter.requires_grad_(step >= steps)

    def end(self) -> None:
        """Have all parts trainable again, for the next stage."""
        for _, parameters, _ in self.parts:
            for parameter in parameters:
                parameter.requires_grad_()
