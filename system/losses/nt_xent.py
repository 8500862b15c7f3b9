"""Normalised temperature-scaled cross entropy: each clip's caption among all of the batch, and the other way."""

from typing import Literal

from pydantic import Field

from system.losses.base import BatchScores, Tensor, Term


class NtXent(Term):
    """Cross entropy of finding each clip's captions, and each caption's clip, in the batch; in [0, inf).

    -(1/B) sum_i [ln softmax_j(s_ij / t)_i + ln softmax_j(s_ji / t)_i] with directions `sum`, as the paper writes it,
    half of it with `mean`, as in public code.
    same_clip: other items of the batch that show the same audio are left out, or are negatives as in public code.
    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), equation 7, which is `sum` with same_clip
    `negatives`; its public code takes the `mean`. Deviation of same_clip `masked`: other items that show the same audio
    are left out of the denominators, which can only lower it; the public code meant to, but its mask has no effect.
    """

    kind: Literal["nt_xent"]
    temperature: float = Field(gt=0, le=1)  # scores are divided by it
    same_clip: Literal["masked", "negatives"] = "masked"
    directions: Literal["mean", "sum"] = "mean"  # of the two: clip to caption, and caption to clip

    def value(self, batch: BatchScores) -> Tensor:
        import torch
        import torch.nn.functional as F

        logits = batch.scores / self.temperature
        targets = torch.arange(len(logits), device=logits.device)
        if self.same_clip == "masked":
            others = batch.same_clip.clone().fill_diagonal_(False)
            logits = logits.masked_fill(others, -torch.inf)
        both = F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)
        return both / 2 if self.directions == "mean" else both
