"""The terms of a training loss.

Each is a class with its settings and its value for a batch. s_ij is the score of clip i and the captions of item j, of
B items; matching pairs are on the diagonal. Items with the same audio are never negatives of each other, unless a
setting says so. Values and gradients equal those of the public codes by 1e-9 (tests/golden).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, log
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from data_tools.settings import Strict
from system.kinds import OfKind
from system.moments.labellings import length_mask, log_likelihood


class LearnedTemperature(Strict):
    """A temperature that is trained with the model.

    All terms share it, and divide by its absolute value.
    """

    start: float = Field(gt=0, le=1)  # its first value


Temperature = Annotated[float, Field(gt=0, le=1)] | LearnedTemperature
Negatives = Literal[
    "all", "hardest", "semi_hard", "random", "random_apart", "text_hard", "text_easy", "audio_hard", "audio_easy"
]


class FrameScores(NamedTuple):
    """Scores and true labels of frames, one sentence per clip."""

    scores: Tensor  # (B, T)
    lengths: Tensor  # (B,) frames without padding
    labels: Tensor  # (B, T) bool, whether a frame is in a true moment
    enter: Tensor  # log weight of entering a moment, () or (B, T)
    leave: Tensor  # log weight of leaving a moment


@dataclass(frozen=True)
class BatchScores:
    """Scores of a batch of B items with N captions."""

    scores_by_caption: Tensor  # (B, N) float32
    row_of: Tensor  # (N,) item of each caption
    same_clip: Tensor  # (B, B) bool, whether two items have the same audio
    margin_factors: Tensor | None  # (B, B) in [0, 1], by CIDEr-D of candidates i and references j
    clip_scores: Callable[[], Tensor]  # (B, B) of any two clips
    each_caption_scores: Callable[[], Tensor]  # (N, N) of any two captions
    teachers: Mapping[str, Tensor] = field(default_factory=dict)  # cosines (B, N) by teacher
    learned: Mapping[str, Tensor] = field(default_factory=dict)  # numbers of losses that are trained with the model
    frames: FrameScores | None = None  # of a batch of moments; no gradient flows through its scores_by_caption

    @cached_property
    def caption_average(self) -> Tensor:
        """Weights (N, B) that average each item's captions."""
        membership = F.one_hot(self.row_of, len(self.scores_by_caption)).to(self.scores_by_caption.dtype)
        return membership / membership.sum(0)

    @cached_property
    def scores(self) -> Tensor:
        """Scores s (B, B), means over an item's captions.

        Source: "Take it easy" (2022), section 4.
        """
        return self.scores_by_caption @ self.caption_average

    @property
    def caption_scores(self) -> Tensor:
        """Mean scores (B, B) of the captions of two items."""
        return self.caption_average.T @ self.each_caption_scores() @ self.caption_average

    def divided(self, scores: Tensor, by: Temperature) -> Tensor:
        """Divide scores by a temperature."""
        return scores / (by if isinstance(by, float) else self.learned["temperature"].abs())


class Term(OfKind):
    """Settings of one loss, and its value for a batch."""

    weight: float = Field(gt=0)  # factor in the sum of the losses

    of_moments: ClassVar[bool] = False  # whether it reads the frames of a batch of moments, and nothing else

    @property
    def needs_relevance(self) -> bool:
        """Whether CIDEr-D relaxes its margins."""
        return getattr(self, "relax", "none") == "cider"

    @property
    def taught_by(self) -> Sequence[str]:
        """Teachers whose cosines are its targets."""
        return getattr(self, "teachers", ())

    @property
    def learned(self) -> dict[str, float]:
        """Start values of numbers that are trained with the model.

        Terms that name the same number share it.
        """
        by = getattr(self, "temperature", None)
        return {"temperature": by.start} if isinstance(by, LearnedTemperature) else {}

    @abstractmethod
    def value(self, batch: BatchScores) -> Tensor:
        """Return the unweighted loss of a batch."""


class Matching(Term):
    """Matching similarity: -mean_i s_ii, in [-1, 1] for cosines.

    Source: "Take it easy" (2022), section 4.
    """

    kind: Literal["matching"]

    def value(self, batch: BatchScores) -> Tensor:
        return -batch.scores.diagonal().mean()


class Ranking(Term):
    """Contrastive ranking loss: hinges of negative captions and clips.

    The hinges are [m r_ij + s_ij - s_ii]_+ of captions and [m r_ij + s_ji - s_ii]_+ of clips. With `relax: cider`, the
    recipe's `relevance` lowers the margin m by r_ij between clips with similar captions. An item's hinges are summed,
    or averaged, or [mean_j (m r_ij + s_ij - s_ii)]_+ is taken (`reduce: hinge_of_mean`); with one negative per item all
    three are equal. An item without any negative adds 0.

    Sources: `sum`: "Take it easy" (2022), section 4, and "On Metric Learning for Audio-Text Cross-Modal Retrieval"
    (2022), equations 2 and 3 (`negatives: hardest`). `hinge_of_mean`: "On Negative Sampling for Contrastive Audio-Text
    Retrieval" (2023), equation 4; `mean`: its public code. Deviation: pairs of the same clip are left out, as in both
    public codes.
    """

    kind: Literal["ranking"]
    margin: float = Field(ge=0, le=2)  # wanted difference between the scores of a matching pair and of others
    relax: Literal["none", "cider"]  # cider: lower margins for captions that resemble each other
    negatives: Negatives = "all"  # all of the batch, or one caption and one clip per item
    reduce: Literal["sum", "mean", "hinge_of_mean"] = "sum"  # of the hinges of a batch

    def value(self, batch: BatchScores) -> Tensor:
        gaps, negative = margin_violations(batch, self.margin, self.needs_relevance), ~batch.same_clip
        if self.negatives == "all":
            both = [self._of_items(gap, negative) for gap in gaps]
        else:
            chosen = zip(gaps, choose_negatives(batch, self.negatives), strict=True)
            both = [self._of_items(gap.gather(1, j[:, None]), negative.gather(1, j[:, None])) for gap, j in chosen]
        return (both[0] + both[1]).mean()

    def _of_items(self, gap: Tensor, negative: Tensor) -> Tensor:
        """Reduce the violations (B, K) of each item's negatives, (B,)."""
        counted = gap if self.reduce == "hinge_of_mean" else gap.relu()
        total = counted.masked_fill(~negative, 0.0).sum(1)
        return total if self.reduce == "sum" else (total / negative.sum(1).clamp(min=1)).relu()


def margin_violations(batch: BatchScores, margin: float, relaxed: bool) -> tuple[Tensor, Tensor]:
    """Compute how much negative captions and clips violate the margin.

    Returns:
        (B, B) of captions, and (B, B) of clips.
    """
    factors = batch.margin_factors if relaxed and batch.margin_factors is not None else 1
    matching = batch.scores.diagonal()[:, None]
    return factors * margin + batch.scores - matching, factors * margin + batch.scores.T - matching


def choose_negatives(batch: BatchScores, how: str) -> tuple[Tensor, Tensor]:
    """Choose a negative caption and a negative clip per item.

    Sources: Xie et al., "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), section 3; `random_apart`
    is of the DCASE 2022 baseline's public code, which never ends on a batch without a third item.

    Args:
        how: hardest: the highest s_ij and s_ji. semi_hard: those closest to s_ii, above or below it. random:
            independent draws; random_apart: from two different items, if there are two. text and audio, hard and easy:
            both of the item whose captions, or whose clip, are the most or least similar.

    Returns:
        Items of the captions and of the clips, (B,) each; an item without negatives has itself. The first of equals
        counts.
    """
    allowed, scores = ~batch.same_clip, batch.scores.detach()
    if how in ("random", "random_apart"):
        captions, others = _draw(allowed), allowed
        if how == "random_apart":
            apart = allowed.scatter(1, captions[:, None], False)
            others = torch.where(apart.any(1, keepdim=True), apart, allowed)
        return captions, _draw(others)
    if how in ("hardest", "semi_hard"):
        tables, matching = (scores, scores.T), scores.diagonal()[:, None]
        closest = [-(one - matching).abs() for one in tables]
        found = [_highest(one, batch) for one in (tables if how == "hardest" else closest)]
        return found[0], found[1]
    with torch.no_grad():
        similar = batch.caption_scores if how.startswith("text") else batch.clip_scores()
        both = _highest(similar if how.endswith("hard") else -similar, batch)
    return both, both


def _highest(table: Tensor, batch: BatchScores) -> Tensor:
    return table.masked_fill(batch.same_clip, -inf).argmax(1)


def _draw(allowed: Tensor) -> Tensor:
    """Draw one allowed column per row, by torch's CPU generator."""
    return torch.rand(allowed.shape).to(allowed.device).masked_fill(~allowed, -1.0).argmax(1)


class WeightedTriplet(Term):
    """Maximum polynomial loss, of matching pairs and their hardest negatives.

    P is a polynomial of a pair's score, and N of its hardest negative's, h_i or h'_i. clamp sum, as in the paper:
    mean_i [P(s_ii) + N(h_i)]_+ + [P(s_ii) + N(h'_i)]_+. clamp each, as in the public code: mean_i ([P(s_ii)]_+ +
    [N(h_i)]_+ where h_i + m > s_ii) + the same of h'_i. An item without any negative adds 0.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), equations 4 to 6. Deviations: max{N^q} is
    the power of the hardest negative's score, which only differs for scores below 0. The public code fails on a pair
    with s_ii >= 1 - 1e-5; here it counts like all others.
    """

    kind: Literal["weighted_triplet"]
    margin: float = Field(ge=0, le=2)  # m, read by clamp `each`
    positive: Annotated[list[float], Field(min_length=1)]  # coefficients of P, starting with that of s^0
    negative: Annotated[list[float], Field(min_length=1)]  # coefficients of N, starting with that of s^0
    clamp: Literal["sum", "each"]  # clamp the sum of P and N at 0, or each of them

    def value(self, batch: BatchScores) -> Tensor:
        matching = batch.scores.diagonal()
        positive, total = _polynomial(self.positive, matching), matching.new_zeros(len(matching))
        for scores, index in zip((batch.scores, batch.scores.T), choose_negatives(batch, "hardest"), strict=True):
            highest = scores.gather(1, index[:, None])[:, 0]
            counts = ~batch.same_clip.gather(1, index[:, None])[:, 0]
            negative = _polynomial(self.negative, highest)
            if self.clamp == "each":
                counts &= highest + self.margin > matching
            found = (positive + negative).relu() if self.clamp == "sum" else positive.relu() + negative.relu()
            total = total + found.masked_fill(~counts, 0.0)
        return total.mean()


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    return torch.stack([coefficient * x**power for power, coefficient in enumerate(coefficients)]).sum(0)


class NtXent(Term):
    """Cross entropy of each clip's captions and each caption's clip.

    They are classified among all of the batch: -mean_i [ln softmax_j(s_ij / t)_i + ln softmax_j(s_ji / t)_i], or half
    of it. Other items of the same audio are left out (`same_clip: masked`), are negatives, or positives of equal
    weight: the mean is then over all pairs of the same audio.

    Sources: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), equation 7, is `sum` and `negatives`; its
    public code is `mean`, and its mask of items of the same audio has no effect. `positives` and `mean` are the DCASE
    2025 baseline's and SALSA's (2024), stage 1.
    """

    kind: Literal["nt_xent"]
    temperature: Temperature  # t, by which scores are divided; {start: t}: learned
    same_clip: Literal["masked", "negatives", "positives"] = "masked"
    directions: Literal["mean", "sum"] = "mean"  # of the two: clip to caption, and caption to clip

    def value(self, batch: BatchScores) -> Tensor:
        logits = batch.divided(batch.scores, self.temperature)
        if self.same_clip == "positives":
            both = -torch.stack([F.log_softmax(logits, dim)[batch.same_clip].mean() for dim in (0, 1)]).sum()
        else:
            if self.same_clip == "masked":
                logits = logits.masked_fill(batch.same_clip.clone().fill_diagonal_(False), -inf)
            targets = torch.arange(len(logits), device=logits.device)
            both = F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)
        return both / 2 if self.directions == "mean" else both


class HardNegativeNce(Term):
    """`nt_xent` with weighted negatives.

    It is -mean_i ln(e^l_ii / (e^l_ii + sum_j w_ij e^l_ij)), averaged over both directions. Here l_ij = s_ij / t and
    w_ij = n_i e^(beta l_ij) / sum_k e^(beta l_ik) over an item's n_i negatives.

    Source: Radenovic et al., "Filtering, Distillation, and Hard Negatives for Vision-Language Pre-Training" (2023),
    equations 4 to 6 with alpha 1. Deviation: items with the same audio are no negatives.
    """

    kind: Literal["hard_negative_nce"]
    temperature: Temperature  # t, by which scores are divided; {start: t}: learned
    beta: float = Field(ge=0, le=10)  # 0: all negatives count equally

    def value(self, batch: BatchScores) -> Tensor:
        logits = batch.divided(batch.scores, self.temperature)
        return (self._one_way(logits, batch.same_clip) + self._one_way(logits.T, batch.same_clip)) / 2

    def _one_way(self, logits: Tensor, same_clip: Tensor) -> Tensor:
        matching, counts = logits.diagonal(), (~same_clip).sum(1)
        lowest = torch.finfo(logits.dtype).min / 4  # of no weight, and with finite gradients
        weights = (self.beta * logits).masked_fill(same_clip, lowest)
        weighted = (weights + logits).masked_fill(same_clip, lowest)
        negatives = counts.clamp(min=1).to(logits.dtype).log() + weighted.logsumexp(1) - weights.logsumexp(1)
        return (torch.logaddexp(matching, negatives.masked_fill(counts == 0, lowest)) - matching).mean()


class Sigmoid(Term):
    """Binary cross entropy of all pairs.

    It is -(1/B) sum_ij ln sigmoid(z_ij (a s_ij + b)) with z_ij = 1 on the diagonal, else -1. Other items with the same
    audio are left out. The scale a and the bias b are trained with the model.

    Source: Zhai et al., "Sigmoid Loss for Language Image Pre-Training" (2023), section 3.2: a begins at 10, b at -10.
    """

    kind: Literal["sigmoid"]
    scale: float = Field(10.0, gt=0)  # start value of a
    bias: float = -10.0  # start value of b

    @property
    def learned(self) -> dict[str, float]:
        return {"sigmoid_log_scale": log(self.scale), "sigmoid_bias": self.bias}

    def value(self, batch: BatchScores) -> Tensor:
        logits = batch.scores * batch.learned["sigmoid_log_scale"].exp() + batch.learned["sigmoid_bias"]
        matching = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
        losses = -F.logsigmoid(torch.where(matching, logits, -logits))
        return losses.masked_fill(batch.same_clip & ~matching, 0.0).sum() / len(logits)


class Distill(Term):
    """Cross entropy between the distributions of teachers and the model.

    A teachers' distribution is softmax_j(T_ij / t), where T is the mean of their cosines. The loss is the mean of both
    directions, and uses no ground truth.

    Source: SALSA (2024), stage 2 with `loss_weight` 0. Deviations: terms are added with their weights (SALSA squares
    loss_weight in distillation). If two clips have equal captions, each has its own embedding of a teacher (SALSA uses
    the one written last).
    """

    kind: Literal["distill"]
    teachers: Annotated[list[str], Field(min_length=1)]  # names of the recipe's teachers, whose cosines are averaged
    temperature: Temperature  # t, by which scores are divided; {start: t}: learned

    def value(self, batch: BatchScores) -> Tensor:
        cosines = torch.stack([batch.teachers[name] for name in self.teachers]).mean(0) @ batch.caption_average
        logits, targets = (batch.divided(scores, self.temperature) for scores in (batch.scores, cosines))
        return (F.cross_entropy(logits, targets.softmax(1)) + F.cross_entropy(logits.T, targets.T.softmax(1))) / 2


class TwoState(Term):
    """Negative log likelihood of the true labels of frames.

    It is a mean over the batch; with `per_frame` each recording's is divided by its number of frames, so that long
    recordings do not weigh more.

    Source: a linear-chain conditional random field (Lafferty, McCallum and Pereira, 2001) of two states.
    """

    kind: Literal["two_state"]
    per_frame: bool  # divided by the recording's frames

    of_moments: ClassVar = True

    def value(self, batch: BatchScores) -> Tensor:
        assert batch.frames is not None
        found = -log_likelihood(*batch.frames)
        return (found / batch.frames.lengths if self.per_frame else found).mean()


class FrameCrossEntropy(Term):
    """Binary cross-entropy of the frames' scores.

    It is the mean over a recording's frames, then over the batch. It equals `two_state` with `per_frame` if the weights
    of moment starts and ends are 0, and does not train these.
    """

    kind: Literal["frame_cross_entropy"]

    of_moments: ClassVar = True

    def value(self, batch: BatchScores) -> Tensor:
        assert batch.frames is not None
        scores, lengths, labels, _, _ = batch.frames
        losses = F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
        return (losses.masked_fill(~length_mask(lengths, scores.shape[1]), 0.0).sum(1) / lengths).mean()


def need_relevance(terms: Sequence[Term]) -> bool:
    return any(term.needs_relevance for term in terms)


def total_loss(batch: BatchScores, terms: Sequence[Term]) -> Tensor:
    return torch.stack([term.weight * term.value(batch) for term in terms]).sum()
