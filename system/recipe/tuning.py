"""Settings of fine-tuning.

Settings of a stage that change how weights are trained: low-rank adapters, and a moving average. Never imports torch.
"""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.settings import Positive, Strict


class Lora(Strict):
    """Low-rank adapters. All layers of the published networks are frozen. For each adapted linear layer, two thin
    matrices are trained, and their product times alpha / rank is added to the layer's weights. Needs the package peft.
    Checkpoints contain the sums, so that they are used and exported like the checkpoints of other stages.

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2022), which adapts the layers of queries
    and values.
    """

    networks: Annotated[list[Literal["audio", "text"]], Field(min_length=1)]  # encoders with adapters
    rank: Positive  # width of the thin matrices
    alpha: float = Field(gt=0)  # the product is multiplied by alpha / rank
    dropout: float = Field(0.0, ge=0, lt=1)  # of the inputs of the thin matrices
    layers: list[str] | None = None  # ends of the names of adapted linear layers, such as query; null: all


class Average(Strict):
    """An exponential moving average of the weights, which is validated, ranked and exported in their place."""

    decay: float = Field(gt=0, lt=1)  # share that an average keeps per step; smaller in the first steps
