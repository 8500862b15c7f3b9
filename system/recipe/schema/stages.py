"""How a model is trained: what a stage starts from, its data, batches, rates, end, and what is watched."""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.strict import Positive, Strict
from system.losses import Loss

# recall_sum: R@1 + R@5 + R@10 of captions that look for their clip, in [0, 3]
Metric = Literal["loss", "m1", "m2", "mAP@10", "recall_sum"]
Checkpoint = Literal["last", "loss", "m1", "m2", "mAP@10", "recall_sum"]  # the last, or the best by a monitored metric
LOWER_IS_BETTER = {"loss"}


class FromScratch(Strict):
    kind: Literal["scratch"]


class FromStage(Strict):
    kind: Literal["stage"]
    stage: str
    checkpoint: Checkpoint


class FromModel(Strict):
    kind: Literal["model"]
    folder: str  # an exported model


class Train(Strict):
    data: Annotated[list[str], Field(min_length=1)]
    mix: Literal["equal", "size"]  # every source equally often, or every item equally often


class Monitor(Strict):
    """Validation after every epoch; a checkpoint is kept while it is among the `keep` best by any of `metrics`."""

    data: Annotated[list[str], Field(min_length=1)]
    metrics: Annotated[list[Metric], Field(min_length=1)]
    keep: Positive
    test_split: Literal["acknowledged"] | None = None


class AdamW(Strict):
    kind: Literal["adamw"]
    lr: float = Field(gt=0, le=1)
    weight_decay: float = Field(ge=0, le=1)


class Schedule(Strict):
    """Factor on the learning rate: rises linearly over `warmup_steps`, then stays, or falls along a half cosine to
    0."""

    kind: Literal["constant", "cosine"]
    warmup_steps: int = Field(ge=0, le=1_000_000_000)


class StepDecay(Strict):
    """The learning rate is multiplied by `factor` behind every `every_epochs` epochs."""

    kind: Literal["step"]
    every_epochs: Positive
    factor: float = Field(gt=0, lt=1)


class Plateau(Strict):
    """The learning rate is multiplied by `factor` once a monitored metric has been no better than its best for more
    than `patience` epochs; then the count begins anew. It never falls below `min_lr`.

    better: by more than `threshold`, as a difference. Source: torch's ReduceLROnPlateau with threshold_mode "abs".
    """

    kind: Literal["plateau"]
    metric: Metric
    factor: float = Field(gt=0, lt=1)
    patience: int = Field(ge=0)
    threshold: float = Field(ge=0)
    min_lr: float = Field(ge=0)


class EarlyStopping(Strict):
    """The stage ends once a monitored metric has not been better than its best for `epochs` epochs."""

    kind: Literal["early_stopping"]
    metric: Metric
    epochs: Positive


class StdPlateau(Strict):
    """The stage ends once the standard deviation of a metric's last `epochs` values is at most `deviation`, not before
    `at_least` epochs. Source: Ray Tune's TrialPlateauStopper, which the public code of both CRNN systems uses."""

    kind: Literal["std_plateau"]
    metric: Metric
    epochs: Annotated[int, Field(ge=2)]
    deviation: float = Field(ge=0)
    at_least: Positive


class Stage(Strict):
    start_from: Annotated[FromScratch | FromStage | FromModel, Field(discriminator="kind")]
    train: Train
    unit: Literal["clip", "pair"]  # a batch is made of clips with n captions each, or of (clip, caption) pairs
    captions_per_clip: Positive | Literal["all"] | None = None  # for clips: n drawn anew at every visit
    batch_size: int = Field(ge=2, le=1_000_000)
    grad_cache_chunk: Positive | None  # items embedded at a time, so that less memory gives the same gradients
    epochs: Positive
    steps_per_epoch: Positive | Literal["all"]  # "all": as many as the items fill
    losses: Annotated[list[Loss], Field(min_length=1)]
    optimizer: AdamW
    schedule: Annotated[Schedule | StepDecay | Plateau, Field(discriminator="kind")]
    stop: Annotated[EarlyStopping | StdPlateau | None, Field(discriminator="kind")] = None  # null: all epochs
    max_grad_norm: Annotated[float, Field(gt=0)] | None  # largest norm of all gradients together
    precision: Literal["float32", "bf16", "fp16"]  # 16 bits on CUDA only; elsewhere float32 is used and said
    monitor: Monitor
