"""The terms of the training loss. Each sees one thing, the scores of a batch, and gives one number.

A new term is a settings class in the schema and a function here, entered in `TERMS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from system import schema

# B items of a batch: clip i and its caption, or its several captions; N captions of the batch in all


@dataclass(frozen=True)
class BatchScores:
    """All that a term may need of a batch.

    each: (B, N), the score of every clip and every single caption, higher is better, float32.
    row_of: (N,) the item each caption belongs to.
    same_clip: (B, B) bool, items i and j show the same audio (true on the diagonal): such pairs are never negatives.
    relax: (B, B), r(c_ij) in [0, 1] with the captions of item i as candidates and those of item j as references; None
    where no term asks for it.
    clip_scores, each_caption_scores: give the (B, B) and (N, N) within-modality scores when called.
    """

    each: torch.Tensor
    row_of: torch.Tensor
    same_clip: torch.Tensor
    relax: torch.Tensor | None
    clip_scores: Callable[[], torch.Tensor]
    each_caption_scores: Callable[[], torch.Tensor]

    @cached_property
    def average(self) -> torch.Tensor:
        """(N, B) weights that average an item's captions: 1 / n for its own n captions, 0 elsewhere."""
        own = nn.functional.one_hot(self.row_of, len(self.each)).to(self.each.dtype)
        return own / own.sum(0)

    @cached_property
    def scores(self) -> torch.Tensor:
        """(B, B), s_ij of clip i and item j, the mean over j's captions; the diagonal holds the matching pairs.

        Source: "Take it easy" (2022), section 4, second equation.
        """
        return self.each @ self.average

    @cached_property
    def caption_scores(self) -> torch.Tensor:
        """(B, B) scores between captions, the mean over all pairs of item i's and item j's."""
        return self.average.T @ self.each_caption_scores() @ self.average


def hinges(batch: BatchScores, margin: float, relaxed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The (B, B) hinges of both directions, zero where items share a clip: captions as negatives, clips as negatives.

    At (i, j): [m r_ij + s_ij - s_ii]_+, and at (j, i): [m r_ij + s_ji - s_ii]_+; r_ij is 1 unless relaxed.
    """
    own = batch.scores.diagonal()
    margins = _relax_of(batch) * margin if relaxed else torch.full_like(batch.scores, margin)
    captions = margins + batch.scores - own[:, None]
    clips = margins.T + batch.scores - own[None, :]
    return captions.relu().masked_fill(batch.same_clip, 0.0), clips.relu().masked_fill(batch.same_clip, 0.0)


def _relax_of(batch: BatchScores) -> torch.Tensor:
    if batch.relax is None:
        raise ValueError("a relaxed ranking loss needs the relax factors of the batch")
    return batch.relax


def ranking(batch: BatchScores, settings: schema.Ranking) -> torch.Tensor:
    """Contrastive ranking loss over all negatives, both directions, its margin relaxed by CIDEr where asked for.

    (1/B) sum_{i != j} [m r(c_ij) + s_ij - s_ii]_+ + [m r(c_ij) + s_ji - s_ii]_+, in [0, inf); r = 1 without relax.
    Source: "Take it easy" (2022), section 4, first and third equations. Deviation: pairs of one clip that occurs twice
    in the batch are left out of the sum (the paper does not say), which can only lower it.
    """
    captions, clips = hinges(batch, settings.margin, settings.relax == "cider")
    return (captions.sum() + clips.sum()) / len(batch.scores)


def matching(batch: BatchScores, settings: schema.Matching) -> torch.Tensor:
    """Matching similarity, L_M = -(1/B) sum_i s_ii, in [-1, 1] for cosines.

    Source: "Take it easy" (2022), section 4, last equation.
    """
    return -batch.scores.diagonal().mean()


def nt_xent(batch: BatchScores, settings: schema.NtXent) -> torch.Tensor:
    """Cross entropy of finding each clip's captions, and each caption's clip, in the batch; mean of both directions.

    -(1/2B) sum_i [ln softmax_j(s_ij / t)_i + ln softmax_j(s_ji / t)_i], in [0, inf). Source: "On Metric Learning for
    Audio-Text Retrieval" (2022), NT-Xent. Deviation: other items that show the same audio are left out of the
    denominators, which can only lower it; the public code meant to, but its mask has no effect.
    """
    others = batch.same_clip & ~torch.eye(len(batch.scores), dtype=torch.bool, device=batch.scores.device)
    logits = (batch.scores / settings.temperature).masked_fill(others, -torch.inf)
    own = torch.arange(len(logits), device=logits.device)
    return (nn.functional.cross_entropy(logits, own) + nn.functional.cross_entropy(logits.T, own)) / 2


TERMS: dict[str, Callable[..., torch.Tensor]] = {"ranking": ranking, "matching": matching, "nt_xent": nt_xent}


def asks_relax(terms: Sequence[schema.Loss]) -> bool:
    return any(isinstance(term, schema.Ranking) and term.relax == "cider" for term in terms)


def total(batch: BatchScores, terms: Sequence[schema.Loss]) -> torch.Tensor:
    """The weighted sum of a stage's terms."""
    return torch.stack([term.weight * TERMS[term.kind](batch, term) for term in terms]).sum()


@torch.no_grad()
def diagnose(batch: BatchScores, terms: Sequence[schema.Loss]) -> dict[str, torch.Tensor]:
    """What the loss sees, by name; items that share a clip are no negatives.

    positive, hardest_negative: mean score of the matching pairs, and of each item's hardest negative in both
    directions. violations, violations_relaxed: share of all negatives of both directions whose hinge is above zero, by
    the first ranking term with its full margin, and with the relaxed one where it has one.
    """
    negatives = batch.scores.masked_fill(batch.same_clip, -torch.inf)
    found = {
        "positive": batch.scores.diagonal().mean(),
        "hardest_negative": torch.cat([negatives.amax(0), negatives.amax(1)]).clamp(min=-1).mean(),
    }
    ranked = next((term for term in terms if isinstance(term, schema.Ranking)), None)
    if ranked is not None:
        found["violations"] = _violations(batch, ranked.margin, False)
        if ranked.relax == "cider":
            found["violations_relaxed"] = _violations(batch, ranked.margin, True)
    return found


def _violations(batch: BatchScores, margin: float, relaxed: bool) -> torch.Tensor:
    captions, clips = hinges(batch, margin, relaxed)
    return ((captions > 0).sum() + (clips > 0).sum()) / (2 * (~batch.same_clip).sum().clamp(min=1))


def accuracies(batch: BatchScores) -> tuple[float, float]:
    """m1, m2: share of clips whose own captions score highest in the row, of captions whose own clip does in the
    column.

    A tie with another clip's pair counts as a miss, so that a collapsed model scores 0. Source: "Take it easy"
    (2022), section 4; deviation: the paper's `s_ii = max_j s_ij` counts ties as hits, ours is lower by the share of
    tied rows."""
    own = batch.scores.diagonal()
    others = batch.scores.masked_fill(batch.same_clip, -torch.inf)
    m1 = (own > others.amax(1)).float().mean()
    m2 = (own > others.amax(0)).float().mean()
    return float(m1), float(m2)
