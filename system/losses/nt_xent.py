"""NT-Xent loss.

Normalised temperature-scaled cross entropy: classify each clip's caption among all captions of the batch, and each
caption's clip among all clips.
"""

from typing import Literal

from system.losses.base import BatchScores, Temperature, Tensor, Term


class NtXent(Term):
    """Cross entropy of classifying each clip's captions, and each caption's clip, within the batch; in [0, inf).

    -(1/B) sum_i [ln softmax_j(s_ij / t)_i + ln softmax_j(s_ji / t)_i] with directions `sum`, as in the paper; half of
    this with `mean`, as in public code. B is the number of items, s_ij the score of clip i and the captions of item j,
    and t the temperature.
    same_clip: other items of the batch with the same audio are left out (`masked`), are negatives as in public code
    (`negatives`), or are positives (`positives`) of equal weight. With positives, let P be the n pairs (i, j) of the
    same audio, i = j included. The loss is -(1/n) sum_P [ln softmax_j(s_ij / t) + ln softmax_i(s_ij / t)]. It is a mean
    over pairs, so that k items of the same audio count k^2 times, and each of these items is in the denominators of the
    other items.
    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), equation 7, which is `sum` with same_clip
    `negatives`; its public code uses `mean`. Deviation of same_clip `masked`: other items with the same audio are left
    out of the denominators, which can only lower the loss. The public code has a mask for this, but it has no effect.
    `positives` with `mean` is the loss of the DCASE 2025 baseline and of SALSA (2024), stage 1; values and gradients
    agree to 1e-9.
    """

    kind: Literal["nt_xent"]
    temperature: Temperature | Literal["learned"]  # scores are divided by it; learned: the model's
    same_clip: Literal["masked", "negatives", "positives"] = "masked"
    directions: Literal["mean", "sum"] = "mean"  # of the two: clip to caption, and caption to clip

    @property
    def learned_temperature(self) -> bool:
        """Whether the loss uses the temperature that is trained with the model."""
        return self.temperature == "learned"

    def value(self, batch: BatchScores) -> Tensor:
        """Return the loss of a batch, a tensor that can be differentiated."""
        import torch
        import torch.nn.functional as F

        logits = batch.scores / batch.divisor(self.temperature)
        if self.same_clip == "positives":
            pairs = [F.log_softmax(logits, dim)[batch.same_clip].mean() for dim in (0, 1)]
            both = -torch.stack(pairs).sum()
        else:
            targets = torch.arange(len(logits), device=logits.device)
            if self.same_clip == "masked":
                others = batch.same_clip.clone().fill_diagonal_(False)
                logits = logits.masked_fill(others, -torch.inf)
            both = F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)
        return both / 2 if self.directions == "mean" else both
