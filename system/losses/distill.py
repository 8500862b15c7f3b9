"""Distillation: the batch's scores are to be spread over clips and captions as those of teachers are."""

from typing import Annotated, Literal

from pydantic import Field

from system.losses.base import BatchScores, Temperature, Tensor, Term


class Distill(Term):
    """Cross entropy between the teachers' distributions and the model's, in both directions; in [0, inf).

    With s the model's scores, T the mean of the teachers' cosines, t and u their temperatures:
    -(1/2B) sum_i [sum_j softmax_j(T_ij / u) ln softmax_j(s_ij / t) + the same of the transposed matrices].
    No ground truth enters. Its least value is the entropy of the teachers' distributions, which is not taken off.

    Source: SALSA (2024), stage 2 with `loss_weight` 0: to 1e-9 with gradients, also that of a learned temperature,
    which is the teachers' too. Deviations: terms are added by plain weights (there, loss_weight counts squared once it
    distils: 0.5 as 0.25); two clips with equal captions have each its own row of a teacher (there, the one written
    last, which makes the loss 6.13 instead of 7.73 on a made example whose teacher embeds them otherwise).
    """

    kind: Literal["distill"]
    teachers: Annotated[list[str], Field(min_length=1)]  # names of the recipe's teachers, whose cosines are averaged
    temperature: Temperature | Literal["learned"]  # scores are divided by it; learned: the model's
    teacher_temperature: Temperature | None = None  # the teachers' are divided by it; null: the same

    @property
    def learned_temperature(self) -> bool:
        return self.temperature == "learned"

    @property
    def taught_by(self) -> list[str]:
        return self.teachers

    def value(self, batch: BatchScores) -> Tensor:
        import torch.nn.functional as F

        student = batch.over(self.temperature)
        logits = batch.scores / student
        targets = batch.taught(self.teachers) / (self.teacher_temperature or student)
        both = F.cross_entropy(logits, targets.softmax(1)) + F.cross_entropy(logits.T, targets.T.softmax(1))
        return both / 2
