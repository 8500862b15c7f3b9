"""Two-state labellings of frames.

Labellings of a recording's frames by two states, none (0) and moment (1): their likelihood, and the posterior that some
frames are one whole moment.

A labelling y of T frames weighs exp(sum_t y_t e_t + enter #(0 -> 1) + leave #(1 -> 0)). A moment that begins with the
first frame, or ends with the last one, has no such transition there. Z is the sum over all 2^T labellings.
The weights of transitions are two numbers, or depend on the frame: enter_t and leave_t are of the step from frame t - 1
to frame t, and those of frame 0 have no effect.

Source: a linear-chain conditional random field (Lafferty, McCallum and Pereira, 2001) of two states; its posteriors of
segments as in semi-Markov models (Sarawagi and Cohen, 2004). All in the logarithm, in the type of the scores.
"""

import math
from typing import NamedTuple

import torch

from system.networks.layers import length_mask

RAISED_BY, BISECTIONS = 64.0, 30  # most that scores are raised by; the error is 64 / 2^30

# B recordings with a query each, T frames; scores e (B, T), lengths (B,) >= 1, enter and leave () or (B, T)


def states(scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor) -> torch.Tensor:
    """Compute, for each frame and each of its two states, the log total weight of all labellings up to the frame.

    A labelling gives every frame state 1 (in a moment) or 0. Returns: (B, T, 2), with frame t in state 0, and in state
    1. Frames after a recording's end have the values of its last frame. Scores after the end, even NaN, are ignored.
    """
    scores = scores.masked_fill(~length_mask(lengths, scores.shape[1]), 0.0)
    none, moment = torch.zeros_like(scores[:, 0]), scores[:, 0]
    steps = [torch.stack((none, moment), -1)]
    for t in range(1, scores.shape[1]):
        before = steps[-1]
        none, moment = before.unbind(-1)
        stays_none = torch.logaddexp(none, moment + _of_step(leave, t))
        now = torch.stack((stays_none, torch.logaddexp(none + _of_step(enter, t), moment) + scores[:, t]), -1)
        steps.append(torch.where((t < lengths)[:, None], now, before))
    return torch.stack(steps, 1)


def log_partition(
    scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor
) -> torch.Tensor:
    """Compute log Z, (B,), the log of the total weight of all labellings of a recording's frames.

    A labelling gives every frame state 1 (in a moment) or 0; the one without any moment has the weight 1. Thus log Z >=
    0, and the probability of any moment is 1 - exp(-log Z).
    """
    return _total(states(scores, lengths, enter, leave))


def _of_step(transition: torch.Tensor, t: int) -> torch.Tensor:
    """Return the weight, () or (B,), of a transition between the frames t - 1 and t."""
    return transition if transition.dim() == 0 else transition[:, t]


def raise_scores(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    enter: torch.Tensor,
    leave: torch.Tensor,
    probability: float,
    frame_share: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Raise the scores of each recording's frames by the smallest constant d >= 0 for which a moment is as probable.

    probability: The least probability of any moment, 1 - exp(-log Z), in (0, 1). frame_share: Share k of d, in [0, 1];
    frames are raised by k d, and `enter` by (1 - k) d. d is in [0, RAISED_BY], found by bisection in float64: log Z
    rises with d. Returns: scores + k d (B, T), and enter + (1 - k) d, () if k is 1 and `enter` is a number, else
    (B, T); both are float64.
    Source: ours; decoding given that the query is heard.
    """
    scores, enter, leave = scores.double(), enter.double(), leave.double()

    def raised(rise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        entered = enter if frame_share == 1 else (enter + (1 - frame_share) * rise[:, None]).expand_as(scores)
        return scores + frame_share * rise[:, None], entered

    def is_probable(rise: torch.Tensor) -> torch.Tensor:
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


def _total(forward: torch.Tensor) -> torch.Tensor:
    """Return log Z, (B,), from `forward`, the log weights (B, T, 2) that `states` returns.

    The result is exact near 0, unlike logsumexp in float32.
    """
    return torch.logaddexp(*forward[:, -1].unbind(-1))


def log_likelihood(
    scores: torch.Tensor, lengths: torch.Tensor, labels: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor
) -> torch.Tensor:
    """Compute the log probability, (B,), of the labels `labels` of the frames.

    labels: (B, T) bool, true in moments, false after a recording's end.
    """
    mask = length_mask(lengths, scores.shape[1])
    weight = scores.masked_fill(~(labels & mask), 0.0).sum(1)
    inside = mask[:, 1:]
    entered = _sum_of_steps(enter, ~labels[:, :-1] & labels[:, 1:] & inside)
    left = _sum_of_steps(leave, labels[:, :-1] & ~labels[:, 1:] & inside)
    return weight + entered + left - log_partition(scores, lengths, enter, leave)


def _sum_of_steps(transition: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
    """Sum a transition's weights (B,) over the steps (B, T - 1) that are taken."""
    if transition.dim() == 0:
        return transition * taken.sum(1)
    return transition[:, 1:].masked_fill(~taken, 0.0).sum(1)


class Posteriors(NamedTuple):
    """Posteriors of the frames and the moments of recordings.

    frames: (B, T) probability that a frame is in a moment; 0 after a recording's end. begin, end: (B, T). For j >= i,
    begin_i + end_j is the log probability that frames i to j, both included, are one whole moment. After a recording's
    end they have no meaning.
    """

    frames: torch.Tensor
    begin: torch.Tensor
    end: torch.Tensor


def posteriors(scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor) -> Posteriors:
    """Compute the posteriors of recordings."""
    size = scores.shape[1]
    forward, backward = _forward_and_backward(scores, lengths, enter, leave)
    mask = length_mask(lengths, size)
    scores = scores.masked_fill(~mask, 0.0)
    sums, total = scores.cumsum(1), _total(forward)
    inside = (forward[..., 1] + backward[..., 1] - scores - total[:, None]).exp().masked_fill(~mask, 0.0)
    zero = torch.zeros_like(total)[:, None]
    enters, leaves = (one if one.dim() == 0 else one[:, 1:] for one in (enter, leave))
    before = torch.cat((zero, forward[:, :-1, 0] + enters), 1)
    behind = torch.cat((backward[:, 1:, 0] + leaves, zero), 1)
    frames = torch.arange(size, device=scores.device)
    behind = torch.where(frames == lengths[:, None] - 1, 0.0, behind)
    return Posteriors(inside, before - torch.cat((zero, sums[:, :-1]), 1) - total[:, None], sums + behind)


def _forward_and_backward(
    scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute two log weights per frame: of all labellings of the frames up to it, and of the frames from it on.

    Both are (B, T, 2): with frame t in state 0 (no moment), and in state 1 (in a moment).
    """
    frames = torch.arange(scores.shape[1], device=scores.device)
    turned = (lengths[:, None] - 1 - frames) % scores.shape[1]  # reversed, with padding still at the end
    steps = (lengths[:, None] - frames) % scores.shape[1]  # the step between two reversed frames
    left, entered = (one if one.dim() == 0 else one.gather(1, steps) for one in (leave, enter))
    backward = states(scores.gather(1, turned), lengths, left, entered)
    return states(scores, lengths, enter, leave), backward.gather(1, turned[..., None].expand_as(backward))
