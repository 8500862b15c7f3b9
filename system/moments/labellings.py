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
from torch import Tensor

RAISED_BY, BISECTIONS = 64.0, 30  # most that scores are raised by; the error is 64 / 2^30

# B recordings with a query each, T frames; scores e (B, T), lengths (B,) >= 1, enter and leave () or (B, T)


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """Return the mask (B, size) of padded series with `lengths` (B,): true up to each length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def forward_weights(scores: Tensor, lengths: Tensor, enter: Tensor, leave: Tensor) -> Tensor:
    """Sum the weights of all labellings up to each frame; return the log sum per frame, in and outside a moment.

    This is the forward algorithm. A labelling gives every frame state 1 (in a moment) or 0. Its weight depends on
    `scores`, (B, T) for T frames of B recordings, and on the weights `enter` and `leave` of moment starts and ends.
    lengths: (B,) numbers of frames without padding. Returns: (B, T, 2); the last axis is the state of frame t.
    Frames after a recording's end have the values of its last frame. Scores after the end, even NaN, are ignored.
    """
    scores = scores.masked_fill(~length_mask(lengths, scores.shape[1]), 0.0)
    none, moment = torch.zeros_like(scores[:, 0]), scores[:, 0]
    steps = [torch.stack((none, moment), -1)]
    for t in range(1, scores.shape[1]):
        before = steps[-1]
        none, moment = before.unbind(-1)
        stays_none = torch.logaddexp(none, moment + _weight_at_step(leave, t))
        now = torch.stack((stays_none, torch.logaddexp(none + _weight_at_step(enter, t), moment) + scores[:, t]), -1)
        steps.append(torch.where((t < lengths)[:, None], now, before))
    return torch.stack(steps, 1)


def log_partition(scores: Tensor, lengths: Tensor, enter: Tensor, leave: Tensor) -> Tensor:
    """Compute log Z, (B,): Z is the total weight of all labellings. enter, leave: Weights of moment starts and ends.

    There are B recordings. A labelling gives every frame state 1 (in a moment) or 0. Its log weight is the sum of the
    scores of its frames in state 1, plus `enter` for each start of a moment and `leave` for each end. The labelling
    without any moment has the weight 1. Thus log Z >= 0. The probability that the recording has a moment is 1 -
    exp(-log Z).
    """
    return _total_weight(forward_weights(scores, lengths, enter, leave))


def _weight_at_step(transition: Tensor, t: int) -> Tensor:
    """Return the weight of a transition, () or (B,), at the step from frame t - 1 to frame t."""
    return transition if transition.dim() == 0 else transition[:, t]


def raise_scores(
    scores: Tensor,
    lengths: Tensor,
    enter: Tensor,
    leave: Tensor,
    probability: float,
    frame_share: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Raise the frame scores and the weights of moment starts until a moment has at least the given probability.

    Moment starts have the weights `enter`. The scores and `enter` are raised by the smallest constant d >= 0 that is
    sufficient. A bisection in [0, 64], in float64, finds d, since log Z rises with d. The probability of a moment is
    1 - exp(-log Z).

    probability: In (0, 1). k is frame_share, in [0, 1]: scores are raised by k d, and `enter` by (1 - k) d. Returns:
    scores + k d, (B, T) for T frames of B recordings, and enter + (1 - k) d, both float64. The latter has the shape ()
    if k is 1 and `enter` is a number, else (B, T).
    Source: this kit, for decoding if the query is known to be heard.
    """
    scores, enter, leave = scores.double(), enter.double(), leave.double()

    def raise_by(rise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the frame scores and `enter`, the weights of moment starts, raised by the constants `rise`, (B,)."""
        entered = enter if frame_share == 1 else (enter + (1 - frame_share) * rise[:, None]).expand_as(scores)
        return scores + frame_share * rise[:, None], entered

    def is_probable(rise: Tensor) -> Tensor:
        """Return, (B,) bool, whether a moment is probable enough if scores are raised by the constants `rise`."""
        more, entered = raise_by(rise)
        return log_partition(more, lengths, entered, leave) >= -math.log1p(-probability)

    low = torch.zeros(len(scores), dtype=torch.float64, device=scores.device)
    high = torch.full_like(low, RAISED_BY)
    is_enough = is_probable(low)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        reaches = is_probable(middle)
        low, high = torch.where(reaches, low, middle), torch.where(reaches, middle, high)
    return raise_by(torch.where(is_enough, 0.0, high))


def _total_weight(forward: Tensor) -> Tensor:
    """Return log Z, (B,), of the sum Z of the weights of all labellings. forward: (B, T, 2), from `forward_weights`.

    B: recordings; T: frames. The result is exact near 0, unlike the result of logsumexp in float32.
    """
    return torch.logaddexp(*forward[:, -1].unbind(-1))


def log_likelihood(scores: Tensor, lengths: Tensor, labels: Tensor, enter: Tensor, leave: Tensor) -> Tensor:
    """Compute the log probability, (B,), of labels of frames. enter, leave: Weights of moment starts and ends.

    The probability is a labelling's weight divided by the sum of the weights of all labellings. labels: (B, T) bool for
    T frames of B recordings, true in moments, false after a recording's end.
    """
    mask = length_mask(lengths, scores.shape[1])
    weight = scores.masked_fill(~(labels & mask), 0.0).sum(1)
    inside = mask[:, 1:]
    entered = _sum_of_steps(enter, ~labels[:, :-1] & labels[:, 1:] & inside)
    left = _sum_of_steps(leave, labels[:, :-1] & ~labels[:, 1:] & inside)
    return weight + entered + left - log_partition(scores, lengths, enter, leave)


def _sum_of_steps(transition: Tensor, taken: Tensor) -> Tensor:
    """Return the sum (B,) of a transition's weights over the steps between frames where the mask `taken` is true."""
    if transition.dim() == 0:
        return transition * taken.sum(1)
    return transition[:, 1:].masked_fill(~taken, 0.0).sum(1)


class Posteriors(NamedTuple):
    """Posteriors of the frames and the moments of recordings.

    frames: (B, T) probability that each of the T frames of B recordings is in a moment; 0 after a recording's end.
    begin, end: (B, T) terms of log probabilities. For j >= i, begin_i + end_j is the log probability that frames i to
    j, both included, are one whole moment. Values of begin and end after a recording's end have no meaning.
    """

    frames: Tensor
    begin: Tensor
    end: Tensor


def posteriors(scores: Tensor, lengths: Tensor, enter: Tensor, leave: Tensor) -> Posteriors:
    """Compute the probability of each frame to be in a moment, and of each range of frames to be a whole moment.

    Arguments as in forward_weights.
    """
    size = scores.shape[1]
    forward, backward = _forward_and_backward(scores, lengths, enter, leave)
    mask = length_mask(lengths, size)
    scores = scores.masked_fill(~mask, 0.0)
    sums, total = scores.cumsum(1), _total_weight(forward)
    inside = (forward[..., 1] + backward[..., 1] - scores - total[:, None]).exp().masked_fill(~mask, 0.0)
    zero = torch.zeros_like(total)[:, None]
    enters, leaves = (one if one.dim() == 0 else one[:, 1:] for one in (enter, leave))
    before = torch.cat((zero, forward[:, :-1, 0] + enters), 1)
    behind = torch.cat((backward[:, 1:, 0] + leaves, zero), 1)
    frames = torch.arange(size, device=scores.device)
    behind = torch.where(frames == lengths[:, None] - 1, 0.0, behind)
    return Posteriors(inside, before - torch.cat((zero, sums[:, :-1]), 1) - total[:, None], sums + behind)


def _forward_and_backward(scores: Tensor, lengths: Tensor, enter: Tensor, leave: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the weights of all labellings up to each frame, and from each frame on; return both log sums, (B, T, 2).

    The arguments are those of forward_weights.

    A labelling gives each frame the state 0 or 1. Both results are (B, T, 2) for T frames of B recordings; the last
    axis is the state of frame t: 0 (no moment) or 1 (in a moment).
    """
    frames = torch.arange(scores.shape[1], device=scores.device)
    turned = (lengths[:, None] - 1 - frames) % scores.shape[1]  # reversed, with padding still at the end
    steps = (lengths[:, None] - frames) % scores.shape[1]  # the step between two reversed frames
    left, entered = (one if one.dim() == 0 else one.gather(1, steps) for one in (leave, enter))
    backward = forward_weights(scores.gather(1, turned), lengths, left, entered)
    return forward_weights(scores, lengths, enter, leave), backward.gather(1, turned[..., None].expand_as(backward))
