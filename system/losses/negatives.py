"""Which caption and which clip of a batch a ranking loss takes as an item's negatives.

A new choice is a function here, marked `@choice`: these are the closed list. Each sees the scores of a batch and gives
two places an item: the (B,) columns of the negative captions, and the (B,) rows of the negative clips. Items of one
clip are never negatives of each other; an item without any other clip in its batch gets a place of its own clip, which
the loss leaves out. Of several places equally good, the first is taken. No gradient flows through a choice.

Source: Xie et al., "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), section 3, for all but
`random_apart`, the DCASE 2022 baseline's. Deviations: none in the choices; the papers know pairs only, here the score
of an item with several captions is their mean. The functions import torch, this file does not.
"""

from collections.abc import Callable
from math import inf
from typing import TypeAlias

from system.losses.base import BatchScores, Tensor

# B items of a batch; s_ij the score of clip i and item j's captions

Indices: TypeAlias = "tuple[Tensor, Tensor]"
Choice: TypeAlias = Callable[[BatchScores], Indices]
NEGATIVES: dict[str, Choice] = {}


def choice(function: Choice) -> Choice:
    """A decorator: a recipe may name the function."""
    NEGATIVES[function.__name__] = function
    return function


def _highest(values: Tensor, batch: BatchScores) -> Tensor:
    """(B,) the column of every row's highest value among other clips."""
    return values.masked_fill(batch.same_clip, -inf).argmax(1)


@choice
def hardest(batch: BatchScores) -> Indices:
    """The caption j of the highest s_ij, the clip k of the highest s_ki."""
    scores = batch.scores.detach()
    return _highest(scores, batch), _highest(scores.T, batch)


@choice
def semi_hard(batch: BatchScores) -> Indices:
    """The caption j of the least |s_ij - s_ii|, the clip k of the least |s_ki - s_ii|: above the matching pair's score
    or below, unlike what the word meant in face recognition."""
    scores = batch.scores.detach()
    matching_scores = scores.diagonal()[:, None]
    return _highest(-(scores - matching_scores).abs(), batch), _highest(-(scores.T - matching_scores).abs(), batch)


def _drawn(allowed: Tensor) -> Tensor:
    """(B,) one allowed column of every row of (B, B), each as likely; drawn from torch's global CPU generator."""
    import torch

    draw = torch.rand(len(allowed), dtype=torch.float64)
    nth = (draw * allowed.sum(1).cpu()).long().to(allowed.device) + 1
    found = torch.searchsorted(allowed.cumsum(1), nth[:, None])[:, 0]
    return found.clamp(max=len(allowed) - 1)  # a row that allows none


@choice
def random(batch: BatchScores) -> Indices:
    """A caption and a clip of other clips, each as likely, drawn apart from each other."""
    allowed = ~batch.same_clip
    return _drawn(allowed), _drawn(allowed)


@choice
def random_apart(batch: BatchScores) -> Indices:
    """As `random`, but never the caption and the clip of one item, unless there is no third one.

    Source: the DCASE 2022 baseline's public code, which never ends on such a batch.
    """
    import torch

    allowed = ~batch.same_clip
    captions = _drawn(allowed)
    others = allowed.scatter(1, captions[:, None], False)
    return captions, _drawn(torch.where(others.any(1, keepdim=True), others, allowed))


def _alike(batch: BatchScores, scores: "Callable[[], Tensor]", sign: int) -> Indices:
    """The item of the highest (sign 1) or lowest (-1) within-modality score, for the caption and for the clip."""
    import torch

    with torch.no_grad():
        indices = _highest(sign * scores(), batch)
    return indices, indices


@choice
def text_hard(batch: BatchScores) -> Indices:
    """Caption and clip of the item whose captions score highest against the item's own."""
    return _alike(batch, lambda: batch.caption_scores, 1)


@choice
def text_easy(batch: BatchScores) -> Indices:
    """Caption and clip of the item whose captions score lowest against the item's own."""
    return _alike(batch, lambda: batch.caption_scores, -1)


@choice
def audio_hard(batch: BatchScores) -> Indices:
    """Caption and clip of the item whose clip scores highest against the item's own."""
    return _alike(batch, batch.clip_scores, 1)


@choice
def audio_easy(batch: BatchScores) -> Indices:
    """Caption and clip of the item whose clip scores lowest against the item's own."""
    return _alike(batch, batch.clip_scores, -1)
