"""Interface of a loss term.

The interface of a term of the training loss: its settings, and its value for a batch. Never imports torch.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field

from data_tools.settings import Strict

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = "torch.Tensor"

Temperature = Annotated[float, Field(gt=0, le=1)]  # scores are divided by it

# B items of a batch, each a clip with one or several captions; N captions of the batch in all


class FrameScores(NamedTuple):
    """Scores and true labels of the frames of clips, each clip with one sentence.

    scores: (B, T), the score of each frame for the clip's sentence. lengths: (B,) numbers of frames without padding.
    labels: (B, T) bool, whether a frame is in a true moment. enter, leave: The log weights of entering and of leaving a
    moment: one number each, or (B, T) if they depend on the frame.
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
    row_of: (N,) index of the item to which each caption belongs.
    same_clip: (B, B) bool, whether items i and j have the same audio (true on the diagonal). Only the loss nt_xent with
    its setting same_clip `negatives` uses such pairs as negatives.
    margin_factors: (B, B), factors r(c_ij) in [0, 1] on the margin of a loss; None if no loss term needs them. c_ij is
    the CIDEr-D of the captions of item i (candidates) with the captions of item j (references).
    clip_scores: Function that returns the scores (B, B) between any two clips.
    each_caption_scores: Function that returns the scores (N, N) between any two single captions. With the score
    `frame_word`, this table and the table of clip_scores may not be symmetric. This score compares the frames of a clip
    with the words of a caption. In these two tables, the vectors of a row's clip or caption are used as frames, and
    those of a column's clip or caption as words.
    temperature: Temperature that is trained with the model; its absolute value is used. None if the model has none.
    teachers: Dict from the teacher's name to its cosines (B, N) of every clip and every single caption.
    learned: Dict from name to each parameter of a loss that is trained with the model, such as a scale.
    frames: For a batch of moments, the scores of frames; item i is clip i with one sentence. In such a batch, no
    gradient flows through `scores_by_caption`.
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

    def require_frames(self) -> FrameScores:
        """Return the frame scores of a batch of moments. Raises ValueError for a batch without moments."""
        if self.frames is None:
            raise ValueError("this loss needs a batch of moments; set unit: moment in the stage")
        return self.frames

    @cached_property
    def caption_average(self) -> Tensor:
        """Weights (N, B) that average the scores of each item's captions.

        Column j has 1 / n for each of the n captions of item j, and 0 elsewhere.
        """
        from torch.nn.functional import one_hot

        membership = one_hot(self.row_of, len(self.scores_by_caption)).to(self.scores_by_caption.dtype)
        return membership / membership.sum(0)

    @cached_property
    def scores(self) -> Tensor:
        """Mean scores (B, B) of every clip i with the captions of every item j; matching pairs are on the diagonal.

        Source: "Take it easy" (2022), section 4, second equation.
        """
        return self.scores_by_caption @ self.caption_average

    def divisor(self, temperature: "float | Literal['learned']") -> "float | Tensor":
        """Return the divisor of scores: `temperature`, or, if it is "learned", the model's trained temperature."""
        if temperature != "learned":
            return temperature
        if self.temperature is None:
            raise ValueError(
                "temperature: learned needs a model with a trained temperature; set model.learned_temperature"
            )
        return self.temperature.abs()

    def teacher_scores(self, names: "Sequence[str]") -> Tensor:
        """Return the scores (B, B) of every clip with every item's captions, as a mean over the teachers `names`.

        The score of an item with several captions is the mean over its captions.
        """
        import torch

        return torch.stack([self.teachers[name] for name in names]).mean(0) @ self.caption_average

    @property
    def caption_scores(self) -> Tensor:
        """Mean scores (B, B) of the captions of any two items with each other.

        The value at (i, j) is the mean over all pairs of a caption of item i and a caption of item j.
        """
        return self.caption_average.T @ self.each_caption_scores() @ self.caption_average


class Term(Strict):
    """Settings of one loss in a recipe; a subclass defines its `kind`. weight: factor in the sum of the losses."""

    kind: str
    weight: float = Field(gt=0)

    @property
    def needs_relevance(self) -> bool:
        """Whether the loss uses relevance: factors on its margins, from the CIDEr-D between captions."""
        return False

    @property
    def learned_temperature(self) -> bool:
        """Whether the loss uses the temperature that is trained with the model."""
        return False

    @property
    def learned(self) -> dict[str, float]:
        """Dict from name to start value of each parameter of the loss that is trained with the model.

        Loss terms whose parameters have equal names share one parameter, with the start value of the first term.
        """
        return {}

    @property
    def taught_by(self) -> "Sequence[str]":
        """Names of the recipe's teachers whose scores the loss uses as targets."""
        return ()

    @property
    def idle_setting(self) -> str | None:
        """Message about a setting that has no effect because of another setting; None without such a setting."""
        return None

    of_moments: ClassVar[bool] = False  # whether it reads the frames of a batch of moments, and nothing else

    @property
    def hinge_margin(self) -> float | None:
        """Margin of the loss's hinges; None for a loss without a margin.

        The training log reports the share of negatives that violate this margin.
        """
        return None

    @abstractmethod
    def value(self, batch: BatchScores) -> Tensor:
        """Return the unweighted loss of a batch, a tensor that can be differentiated."""
