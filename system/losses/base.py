"""Interface of a loss term.

The interface of a term of the training loss: settings, and its value for a batch. Never imports torch.
"""

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

# B items of a batch, each a clip with one or several captions; N captions of the batch in all


class FrameScores(NamedTuple):
    """Frames of clips, each scored for one sentence.

    scores: (B, T). lengths: (B,) numbers of frames without padding. labels: (B, T) bool, whether a frame is in a true
    moment. enter, leave: The log weights of entering and of leaving a moment, () or (B, T).
    """

    scores: Tensor
    lengths: Tensor
    labels: Tensor
    enter: Tensor
    leave: Tensor


@dataclass(frozen=True)
class BatchScores:
    """The inputs of all loss terms for one batch.

    scores_by_caption: (B, N) float32, the score of every clip and every single caption; higher is better.
    row_of: (N,) the item of each caption.
    same_clip: (B, B) bool, whether items i and j have the same audio (true on the diagonal). Such pairs are never
    negatives.
    margin_factors: (B, B), r(c_ij) in [0, 1] with the captions of item i as candidates and those of item j as
    references; None if no term needs it.
    clip_scores, each_caption_scores: Functions that return the (B, B) and (N, N) within-modality scores. `frame_word`
    reads rows as clips and columns as captions, so that with `best_frame` and `best_word` they are not symmetric.
    temperature: Trained with the model; its absolute value is used. None if the model has none.
    teachers: (B, N) by the teacher's name, its cosines of every clip and every single caption.
    learned: Parameters of losses that are trained with the model, by their names; see Term.learned.
    frames: Scores of a batch of moments, whose item i is clip i and its one sentence. Then `scores_by_caption` has no
    gradient.
    """

    scores_by_caption: Tensor
    row_of: Tensor
    same_clip: Tensor
    margin_factors: "Tensor | None"
    clip_scores: "Callable[[], Tensor]"
    each_caption_scores: "Callable[[], Tensor]"
    temperature: "Tensor | None" = None
    teachers: "Mapping[str, Tensor]" = field(default_factory=dict)
    learned: "Mapping[str, Tensor]" = field(default_factory=dict)
    frames: FrameScores | None = None

    def of_frames(self) -> FrameScores:
        """Return the scores of the frames of a batch of moments. Raises ValueError for a batch without moments."""
        if self.frames is None:
            raise ValueError("this loss needs moments, but the batch has none; set unit: moment in the stage")
        return self.frames

    @cached_property
    def average(self) -> Tensor:
        """Weights (N, B) that average the scores of each item's captions.

        Column j has 1 / n for each of the n captions of item j, and 0 elsewhere.
        """
        from torch.nn.functional import one_hot

        membership = one_hot(self.row_of, len(self.scores_by_caption)).to(self.scores_by_caption.dtype)
        return membership / membership.sum(0)

    @cached_property
    def scores(self) -> Tensor:
        """Scores (B, B) of every clip with every item's captions.

        s_ij is the mean score of clip i with the captions of item j. The matching pairs are on the diagonal.
        Source: "Take it easy" (2022), section 4, second equation.
        """
        return self.scores_by_caption @ self.average

    def over(self, temperature: "float | Literal['learned']") -> "float | Tensor":
        """Return the divisor of scores: the number `temperature`, or, if that is "learned", the trained tensor."""
        if temperature != "learned":
            return temperature
        if self.temperature is None:
            raise ValueError(
                "temperature: learned needs a model with a trained temperature; set model.learned_temperature"
            )
        return self.temperature.abs()

    def taught(self, names: "Sequence[str]") -> Tensor:
        """Return the mean scores of the teachers `names`: (B, B) for clip i and the captions of item j.

        The scores of item j are the mean over its captions.
        """
        import torch

        return torch.stack([self.teachers[name] for name in names]).mean(0) @ self.average

    @property
    def caption_scores(self) -> Tensor:
        """Scores (B, B) between the captions of any two items.

        The value at (i, j) is the mean over all pairs of a caption of item i and a caption of item j.
        """
        return self.average.T @ self.each_caption_scores() @ self.average


class Term(Strict):
    """Settings of one loss in a recipe; a subclass defines its `kind`. weight: factor in the sum of the losses."""

    kind: str
    weight: float = Field(gt=0)

    @property
    def needs_relevance(self) -> bool:
        """Whether the loss needs the margin factors of a batch, and thus the recipe's `relevance`."""
        return False

    @property
    def learned_temperature(self) -> bool:
        """Whether the loss uses the temperature that is trained with the model."""
        return False

    @property
    def learned(self) -> dict[str, float]:
        """Start values of parameters of the loss that are trained with the model, by their names.

        Terms with equal names share one parameter, which has the start value of the first of them.
        """
        return {}

    @property
    def taught_by(self) -> "Sequence[str]":
        """Names of the recipe's teachers whose scores the loss uses as targets."""
        return ()

    @property
    def idle_setting(self) -> str | None:
        """A setting that changes nothing because of another one, and why; None without such a setting."""
        return None

    of_moments: ClassVar[bool] = False  # whether it reads the frames of a batch of moments, and nothing else

    @property
    def hinge_margin(self) -> float | None:
        """Margin of the loss's hinges; None for a loss without a margin.

        The log counts the negatives that violate this margin.
        """
        return None

    @abstractmethod
    def value(self, batch: BatchScores) -> Tensor:
        """Return the unweighted loss of a batch, a tensor that can be differentiated."""
