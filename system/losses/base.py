"""What a term of the training loss is: settings, and a number from the scores of a batch. Never imports torch."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field

from data_tools.documents.strict import Strict

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = "torch.Tensor"

Temperature = Annotated[float, Field(gt=0, le=1)]  # scores are divided by it

# B items of a batch: clip i and its caption, or its several captions; N captions of the batch in all


class FrameScores(NamedTuple):
    """Of clips with a sentence each.

    scores: (B, T) of every frame. lengths: (B,) real ones. labels: (B, T) bool, whether a frame is in a true moment.
    enter, leave: the log weights of entering and of leaving a moment.
    """

    scores: Tensor
    lengths: Tensor
    labels: Tensor
    enter: Tensor
    leave: Tensor


@dataclass(frozen=True)
class BatchScores:
    """All that a term may need of a batch.

    each: (B, N), the score of every clip and every single caption, higher is better, float32.
    row_of: (N,) the item each caption belongs to.
    same_clip: (B, B) bool, items i and j show the same audio (true on the diagonal): such pairs are never negatives.
    relax: (B, B), r(c_ij) in [0, 1] with the captions of item i as candidates and those of item j as references; None
    where no term asks for it.
    clip_scores, each_caption_scores: give the (B, B) and (N, N) within-modality scores when called; `frame_word` reads
    rows as clips and columns as captions, so that with `best_frame` and `best_word` they are not symmetric.
    temperature: the one that is trained with the model, whose absolute value counts; None where none is.
    teachers: (B, N) by name, the cosines of every clip and every single caption by a model that is learned from.
    frames: of a batch of moments, in which item i is clip i and its one sentence; then `each` has no gradient.
    """

    each: Tensor
    row_of: Tensor
    same_clip: Tensor
    relax: "Tensor | None"
    clip_scores: "Callable[[], Tensor]"
    each_caption_scores: "Callable[[], Tensor]"
    temperature: "Tensor | None" = None
    teachers: "Mapping[str, Tensor]" = field(default_factory=dict)
    frames: FrameScores | None = None

    def of_frames(self) -> FrameScores:
        """`frames`, which a batch of moments has."""
        if self.frames is None:
            raise ValueError("a loss of moments needs a batch of moments")
        return self.frames

    @cached_property
    def average(self) -> Tensor:
        """(N, B) weights that average an item's captions: 1 / n for its own n captions, 0 elsewhere."""
        from torch.nn.functional import one_hot

        membership = one_hot(self.row_of, len(self.each)).to(self.each.dtype)
        return membership / membership.sum(0)

    @cached_property
    def scores(self) -> Tensor:
        """(B, B), s_ij of clip i and item j, the mean over j's captions; the diagonal holds the matching pairs.

        Source: "Take it easy" (2022), section 4, second equation.
        """
        return self.each @ self.average

    def over(self, temperature: "float | Literal['learned']") -> "float | Tensor":
        """The number that scores are divided by."""
        if temperature != "learned":
            return temperature
        if self.temperature is None:
            raise ValueError("a learned temperature needs a model that has one")
        return self.temperature.abs()

    def taught(self, names: "Sequence[str]") -> Tensor:
        """(B, B) of clip i and item j: the mean over these teachers, and over j's captions."""
        import torch

        return torch.stack([self.teachers[name] for name in names]).mean(0) @ self.average

    @property
    def caption_scores(self) -> Tensor:
        """(B, B) scores between captions, the mean over all pairs of item i's and item j's."""
        return self.average.T @ self.each_caption_scores() @ self.average


class Term(Strict):
    """Settings of one term, as a recipe gives them; a subclass names its `kind`. weight: in the sum of the terms."""

    kind: str
    weight: float = Field(gt=0)

    @property
    def relaxed(self) -> bool:
        """Whether it asks for the relax factors of a batch, and so for the recipe's `relevance`."""
        return False

    @property
    def learned_temperature(self) -> bool:
        """Whether it asks for the temperature that is trained with the model."""
        return False

    @property
    def taught_by(self) -> "Sequence[str]":
        """The recipe's teachers that it learns from, by name."""
        return ()

    of_moments: ClassVar[bool] = False  # whether it reads the frames of a batch of moments, and nothing else

    @property
    def hinge_margin(self) -> float | None:
        """The margin of its hinges, whose violations are counted for people to read; None for a term without."""
        return None

    @abstractmethod
    def value(self, batch: BatchScores) -> Tensor:
        """One number, with its gradient; before it is weighted."""
