"""What several parts of a recipe share: names, counts, metrics."""

from typing import Annotated, Literal

from pydantic import Field

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]  # it becomes part of keys and file names
Positive = Annotated[int, Field(ge=1, le=1_000_000)]  # a count: of epochs, steps, items
Size = Annotated[int, Field(ge=1, le=65_536)]  # of a layer; the widest networks there are have 16,384
Depth = Annotated[int, Field(ge=1, le=1_000)]  # layers one behind the other
# recall_sum: R@1 + R@5 + R@10 of captions that look for their clip, in [0, 3]
Metric = Literal["loss", "m1", "m2", "mAP@10", "recall_sum"]
Checkpoint = Literal["last", "loss", "m1", "m2", "mAP@10", "recall_sum"]  # the last, or the best by a monitored metric
LOWER_IS_BETTER = {"loss"}
