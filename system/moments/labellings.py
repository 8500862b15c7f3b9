"""Two-state labellings of frames.

A labelling gives each frame of a recording one of two states, none (0) or moment (1). This file computes the likelihood
of a labelling, and the posterior that some frames are one whole moment.

A labelling y of T frames has the weight exp(sum_t y_t e_t + enter #(0 -> 1) + leave #(1 -> 0)). Here y_t is the state
of frame t, e_t is its score, and # is the number of such transitions from one frame to the next. A moment that begins
with the first frame has no transition 0 -> 1; a moment that ends with the last frame has no transition 1 -> 0. Z is the
sum of the weights of all 2^T labellings. The weights of transitions are two numbers, or depend on the frame: enter_t
and leave_t belong to the step from frame t - 1 to frame t. Their values for frame 0 have no effect.

Source: a linear-chain conditional random field (Lafferty, McCallum and Pereira, 2001) of two states; its posteriors of
segments as in semi-Markov models (Sarawagi and Cohen, 2004). All computations use logarithms, in the data type of the
scores.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

RAISED_BY, BISECTIONS = 64.0, 30  # most that scores are raised by; the error is 64 / 2^30

# B recordings with a query each, T frames; scores e (B, T), lengths (B,) >= 1, enter and leave () or (B, T)


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """Return the mask (B, size) of padded series.

    It is true up to each length.
    """
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def forward_weights(scores: Tensor, lengths: Tensor, enter: Tensor, leave: Tensor) -> Tensor:
    """Sum the weights of all labellings up to each frame.

    This is the forward algorithm. Frames after a recording's end have the values of its last frame; their scores, even
    NaN, are ignored.

    Returns:
        Log sums (B, T, 2), of frame t outside and in a moment.
    """
    scores = scores.masked_fill(~length_mask(lengths, scores.shape[1]), 0.0)
    enter, leave = enter.expand_as(scores), leave.expand_as(scores)
    steps = [torch.stack((torch.zeros_like(scores[:, 0]), scores[:, 0]), -1)]
    for t in range(1, scores.shape[1]):
        none, moment = steps[-1].unbind(-1)
        stays_none = torch.logaddexp(none, moment + leave[:, t])
        now = torch.stack((stays_none, torch.logaddexp(none + enter[:, t], moment) + scores[:, t]), -1)
        steps.append(torch.where((t < lengths)[:, None], now, steps[-1]))
    return torch.stack(steps, 1)


def log_partition(scores: Tensor, lengths: Tensor, enter: Tensor, leave: Tensor) -> Tensor:
    """Compute log Z, (B,), at least 0.

    The probability that a recording has a moment is 1 - exp(-log Z). The result is exact near 0, unlike that of
    logsumexp in float32.
    """
    return torch.logaddexp(*forward_weights(scores, lengths, enter, leave)[:, -1].unbind(-1))


def raise_scores(
    scores: Tensor, lengths: Tensor, enter: Tensor, leave: Tensor, probability: float, frame_share: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Raise scores until a moment has a given probability.

    Frames and starts are raised by the smallest d >= 0 in [0, 64]. A bisection in float64 finds d, since log Z rises
    with d.

    Source: this kit, for decoding if the query is known to be heard.

    Args:
        probability: In (0, 1).
        frame_share: k in [0, 1]: scores are raised by k d, and `enter` by (1 - k) d.

    Returns:
        scores + k d and enter + (1 - k) d, both (B, T) float64.
    """
    scores, leave = scores.double(), leave.double()
    enter = enter.double().expand_as(scores)

    def raised(rise: Tensor) -> tuple[Tensor, Tensor]:
        return scores + frame_share * rise[:, None], enter + (1 - frame_share) * rise[:, None]

    def is_probable(rise: Tensor) -> Tensor:
        more, entered = raised(rise)
        return log_partition(more, lengths, entered, leave) >= -math.log1p(-probability)

    low = torch.zeros(len(scores), dtype=torch.float64, device=scores.device)
    high = torch.full_like(low, RAISED_BY)
    is_enough = is_probable(low)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        reaches = is_probable(middle)
        low, high = torch.where(reaches, low, middle), torch.where(reaches, middle, high)
    return raised(torch.where(is_enough, 0.0, high))


def log_likelihood(scores: Tensor, lengths: Tensor, labels: Tensor, enter: Tensor, leave: Tensor) -> Tensor:
    """Compute the log probability (B,) of labels of frames.

    Args:
        labels: (B, T) bool, false after a recording's end.
    """
    earlier, inside = F.pad(labels[:, :-1], (1, 0)), length_mask(lengths, scores.shape[1])
    steps = inside & (torch.arange(scores.shape[1], device=scores.device) > 0)
    taken = ((scores, labels & inside), (enter, labels & ~earlier & steps), (leave, earlier & ~labels & steps))
    weights = [one.expand_as(scores).masked_fill(~mask, 0.0).sum(1) for one, mask in taken]
    return torch.stack(weights).sum(0) - log_partition(scores, lengths, enter, leave)


class Posteriors(NamedTuple):
    """Posteriors of the frames and the moments of recordings."""

    frames: Tensor  # (B, T) probability that a frame is in a moment; 0 after a recording's end
    # For j >= i, begin_i + end_j is the log probability that frames i to j, both included, are one whole moment. Values
    # after a recording's end have no meaning.
    begin: Tensor  # (B, T)
    end: Tensor  # (B, T)


def posteriors(scores: Tensor, lengths: Tensor, enter: Tensor, leave: Tensor) -> Posteriors:
    """Compute the posteriors of frames and of whole moments."""
    size, enter, leave = scores.shape[1], enter.expand_as(scores), leave.expand_as(scores)
    forward = forward_weights(scores, lengths, enter, leave)
    total = torch.logaddexp(*forward[:, -1].unbind(-1))[:, None]
    frames = torch.arange(size, device=scores.device)
    turned = (lengths[:, None] - 1 - frames) % size  # reversed, with padding still at the end
    steps = (lengths[:, None] - frames) % size  # the step between two reversed frames
    back = forward_weights(scores.gather(1, turned), lengths, leave.gather(1, steps), enter.gather(1, steps))
    backward = back.gather(1, turned[..., None].expand_as(back))
    mask = length_mask(lengths, size)
    scores = scores.masked_fill(~mask, 0.0)
    inside = (forward[..., 1] + backward[..., 1] - scores - total).exp().masked_fill(~mask, 0.0)
    before = F.pad(forward[:, :-1, 0] + enter[:, 1:], (1, 0))
    behind = F.pad(backward[:, 1:, 0] + leave[:, 1:], (0, 1))
    behind = behind.masked_fill(frames == lengths[:, None] - 1, 0.0)
    sums = scores.cumsum(1)
    return Posteriors(inside, before - F.pad(sums[:, :-1], (1, 0)) - total, sums + behind)
