"""What a term of the training loss is: settings, and a number from the scores of a batch. Never imports torch."""

from abc import abstractmethod

from pydantic import Field

from data_tools.strict import Strict
from system.losses.batch_scores import BatchScores, Tensor


class Term(Strict):
    """Settings of one term, as a recipe gives them; a subclass names its `kind`. weight: in the sum of the terms."""

    kind: str
    weight: float = Field(gt=0)

    @property
    def relaxed(self) -> bool:
        """Whether it asks for the relax factors of a batch, and so for the recipe's `relevance`."""
        return False

    @property
    def hinge_margin(self) -> float | None:
        """The margin of its hinges, whose violations are counted for people to read; None for a term without."""
        return None

    @abstractmethod
    def value(self, batch: BatchScores) -> Tensor:
        """One number, with its gradient; before it is weighted."""
