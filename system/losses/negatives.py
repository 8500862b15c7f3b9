"""Choices of negatives.

Choices of negatives: the caption and the clip of a batch that a ranking loss uses as an item's negatives.

The functions marked `@choice` are the closed list; a new choice is one more function. Each gets the scores of a batch
and returns the (B,) columns of the negative captions, and the (B,) rows of the negative clips. Items of one clip are
never negatives of each other. An item without any other clip in its batch gets an index of its own clip, which the loss
leaves out. If several indexes are equally good, the first is chosen. No gradient flows through a choice.

Source: Xie et al., "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), section 3, for all but
`random_apart`, which is that of the DCASE 2022 baseline. Deviations: none in the choices. The papers only have pairs;
here the score of an item with several captions is their mean. The functions import torch, this file does not.
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
    """Decorate a function that chooses negatives, so that recipes may name it."""
    NEGATIVES[function.__name__] = function
    return function


def _highest(values: Tensor, batch: BatchScores) -> Tensor:
    """Return the column of the highest value in every row, among other clips.

    Returns: (B,).
    """
    return values.masked_fill(batch.same_clip, -inf).argmax(1)


@choice
def hardest(batch: BatchScores) -> Indices:
    """Choose as negatives the caption and the clip with the highest scores.

    They are the caption j of the highest s_ij, and the clip k of the highest s_ki.
    """
    scores = batch.scores.detach()
    return _highest(scores, batch), _highest(scores.T, batch)


@choice
def semi_hard(batch: BatchScores) -> Indices:
    """Choose as negatives those whose scores are closest to the matching pair's.

    They are the caption j of the smallest |s_ij - s_ii|, and the clip k of the smallest |s_ki - s_ii|.
    Unlike in face recognition, where the term comes from, their scores may exceed the matching pair's.
    """
    scores = batch.scores.detach()
    matching_scores = scores.diagonal()[:, None]
    return _highest(-(scores - matching_scores).abs(), batch), _highest(-(scores.T - matching_scores).abs(), batch)


def _drawn(allowed: Tensor) -> Tensor:
    """Draw one allowed column of every row, with equal probability.

    allowed: (B, B). The random numbers are those of torch's global CPU generator.
    Returns: (B,) columns.
    """
    import torch

    draw = torch.rand(len(allowed), dtype=torch.float64)
    nth = (draw * allowed.sum(1).cpu()).long().to(allowed.device) + 1
    found = torch.searchsorted(allowed.cumsum(1), nth[:, None])[:, 0]
    return found.clamp(max=len(allowed) - 1)  # for a row without an allowed column


@choice
def random(batch: BatchScores) -> Indices:
    """Choose a random caption and a random clip of other items as negatives.

    They are independent and have equal probability.
    """
    allowed = ~batch.same_clip
    return _drawn(allowed), _drawn(allowed)


@choice
def random_apart(batch: BatchScores) -> Indices:
    """Choose random negatives, but never the caption and the clip of the same item.

    If there is no third item, it draws as `random` does.
    Source: the DCASE 2022 baseline's public code, which never ends on a batch without a third item.
    """
    import torch

    allowed = ~batch.same_clip
    captions = _drawn(allowed)
    others = allowed.scatter(1, captions[:, None], False)
    return captions, _drawn(torch.where(others.any(1, keepdim=True), others, allowed))


def _alike(batch: BatchScores, scores: "Callable[[], Tensor]", sign: int) -> Indices:
    """Choose the other item most (sign 1) or least (-1) similar to each item, for caption and clip.

    Similarity is the score within one modality.
    """
    import torch

    with torch.no_grad():
        indices = _highest(sign * scores(), batch)
    return indices, indices


@choice
def text_hard(batch: BatchScores) -> Indices:
    """Choose caption and clip of the item whose captions are most similar to the item's own."""
    return _alike(batch, lambda: batch.caption_scores, 1)


@choice
def text_easy(batch: BatchScores) -> Indices:
    """Choose caption and clip of the item whose captions are least similar to the item's own."""
    return _alike(batch, lambda: batch.caption_scores, -1)


@choice
def audio_hard(batch: BatchScores) -> Indices:
    """Choose caption and clip of the item whose clip is most similar to the item's own."""
    return _alike(batch, batch.clip_scores, 1)


@choice
def audio_easy(batch: BatchScores) -> Indices:
    """Choose as negatives the caption and clip of the other item whose clip is least similar."""
    return _alike(batch, batch.clip_scores, -1)
