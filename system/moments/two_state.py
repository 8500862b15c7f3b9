"""Two-state labellings of frames.

Labellings of a recording's frames by two states, none (0) and moment (1): their likelihood, and the posterior that some
frames are one whole moment.

A labelling y of T frames weighs exp(sum_t y_t e_t + enter #(0 -> 1) + leave #(1 -> 0)). A moment that begins with the
first frame, or ends with the last one, has no such transition there. Z is the sum over all 2^T labellings.

Source: a linear-chain conditional random field (Lafferty, McCallum and Pereira, 2001) of two states; its posteriors of
segments as in semi-Markov models (Sarawagi and Cohen, 2004). All in the logarithm, in the type of the scores.
"""

import math

import torch

from system.networks.layers import length_mask

RAISED_BY, BISECTIONS = 64.0, 30  # most that scores are raised by; the error is 64 / 2^30

# B recordings with a query each, T frames; scores e (B, T), lengths (B,) >= 1, enter and leave ()


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
        stays_none = torch.logaddexp(none, moment + leave)
        now = torch.stack((stays_none, torch.logaddexp(none + enter, moment) + scores[:, t]), -1)
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


def raise_scores(
    scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor, probability: float
) -> torch.Tensor:
    """Raise the scores of each recording's frames by the smallest constant d >= 0 for which a moment is as probable.

    probability: The least probability of any moment, 1 - exp(-log Z), in (0, 1). d is in [0, RAISED_BY], found by
    bisection in float64: log Z rises with d. Returns: (B, T) float64, scores + d.
    Source: ours; decoding given that the query is heard.
    """
    scores, enter, leave = scores.double(), enter.double(), leave.double()
    wanted = -math.log1p(-probability)
    low = torch.zeros(len(scores), dtype=torch.float64, device=scores.device)
    high = torch.full_like(low, RAISED_BY)
    is_enough = log_partition(scores, lengths, enter, leave) >= wanted
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        reaches = log_partition(scores + middle[:, None], lengths, enter, leave) >= wanted
        low, high = torch.where(reaches, low, middle), torch.where(reaches, middle, high)
    return scores + torch.where(is_enough, 0.0, high)[:, None]


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
    entered = (~labels[:, :-1] & labels[:, 1:] & inside).sum(1)
    left = (labels[:, :-1] & ~labels[:, 1:] & inside).sum(1)
    return weight + enter * entered + leave * left - log_partition(scores, lengths, enter, leave)


def frame_posteriors(
    scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor
) -> torch.Tensor:
    """Compute the probability (B, T) that a frame is in a moment; 0 after a recording's end."""
    forward, backward = _forward_and_backward(scores, lengths, enter, leave)
    mask = length_mask(lengths, scores.shape[1])
    scores = scores.masked_fill(~mask, 0.0)
    total = _total(forward)
    here = forward[..., 1] + backward[..., 1] - scores - total[:, None]
    return here.exp().masked_fill(~mask, 0.0)


def moment_posteriors(
    scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor
) -> torch.Tensor:
    """Compute the log probability (B, T, T) that frames i to j, both included, are one whole moment.

    It is -inf if j < i, or if i or j is after the recording's end.
    """
    size = scores.shape[1]
    forward, backward = _forward_and_backward(scores, lengths, enter, leave)
    mask = length_mask(lengths, size)
    sums = scores.masked_fill(~mask, 0.0).cumsum(1)
    total = _total(forward)
    zero = torch.zeros_like(total)[:, None]
    before = torch.cat((zero, forward[:, :-1, 0] + enter), 1)
    behind = torch.cat((backward[:, 1:, 0] + leave, zero), 1)
    frames = torch.arange(size, device=scores.device)
    behind = torch.where(frames == lengths[:, None] - 1, 0.0, behind)
    begin = before - torch.cat((zero, sums[:, :-1]), 1) - total[:, None]
    table = begin[:, :, None] + (sums + behind)[:, None, :]
    in_order = frames[:, None] <= frames
    return table.masked_fill_(~(in_order & mask[:, None, :]), -torch.inf)


def _forward_and_backward(
    scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute two log weights per frame: of all labellings of the frames up to it, and of the frames from it on.

    Both are (B, T, 2): with frame t in state 0 (no moment), and in state 1 (in a moment).
    """
    frames = torch.arange(scores.shape[1], device=scores.device)
    turned = (lengths[:, None] - 1 - frames) % scores.shape[1]  # reversed, with padding still at the end
    backward = states(scores.gather(1, turned), lengths, leave, enter)
    return states(scores, lengths, enter, leave), backward.gather(1, turned[..., None].expand_as(backward))
