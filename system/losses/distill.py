"""Distillation from teachers.

Distillation: train the distributions of scores over clips and captions to match those of teachers.
"""

from typing import Annotated, Literal

from pydantic import Field

from system.losses.base import BatchScores, Temperature, Tensor, Term


class Distill(Term):
    """Cross entropy between the teachers' distributions and the model's, in both directions; in [0, inf).

    s_ij is the model's score of clip i and the captions of item j, with the temperature t. T_ij is the mean of the
    teachers' cosines, with the temperature u. B is the number of items:
    -(1/2B) sum_i [sum_j softmax_j(T_ij / u) ln softmax_j(s_ij / t) + the same for the transposed matrices].
    It uses no ground truth. Its minimum is the entropy of the teachers' distributions, which is not subtracted.

    Source: SALSA (2024), stage 2 with `loss_weight` 0. Values and gradients agree with SALSA's to 1e-9. This includes
    the gradient of a learned temperature t if u = t, as in SALSA. Deviations: loss terms are added with their weights
    (SALSA squares loss_weight in distillation: 0.5 counts as 0.25). If two clips have equal captions, each clip has its
    own caption embedding of a teacher. SALSA uses the embedding written last for both clips. On a synthetic example
    whose teacher embeds these captions differently, SALSA's loss is 6.13 instead of 7.73.
    """

    kind: Literal["distill"]
    teachers: Annotated[list[str], Field(min_length=1)]  # names of the recipe's teachers, whose cosines are averaged
    temperature: Temperature | Literal["learned"]  # scores are divided by it; learned: the model's
    teacher_temperature: Temperature | None = None  # the teachers' are divided by it; null: the same

    @property
    def learned_temperature(self) -> bool:
        """Whether the loss uses the temperature that is trained with the model."""
        return self.temperature == "learned"

    @property
    def taught_by(self) -> list[str]:
        """Names of the teachers whose scores the loss uses as targets."""
        return self.teachers

    def value(self, batch: BatchScores) -> Tensor:
        """Return the loss of a batch, a tensor that can be differentiated."""
        import torch.nn.functional as F

        student = batch.divisor(self.temperature)
        logits = batch.scores / student
        targets = batch.teacher_scores(self.teachers) / (self.teacher_temperature or student)
        both = F.cross_entropy(logits, targets.softmax(1)) + F.cross_entropy(logits.T, targets.T.softmax(1))
        return both / 2
