"""Choices of negatives.

A choice selects the caption and the clip of a batch that a ranking loss uses as an item's negatives.

Recipes can name the functions marked `@choice`. Each function gets the scores of a batch and returns two arrays: the
columns (B,) of the negative captions, and the rows (B,) of the negative clips. Items of the same clip are never
negatives of each other. If a batch has no other clip than an item's clip, the item gets an index of its own clip, which
the loss leaves out. If several indexes are equally good, the first is chosen. No gradient flows through a choice.

Source: Xie et al., "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), section 3, for all choices
except `random_apart`, which is from the DCASE 2022 baseline. Deviations: none in the choices. In the papers an item has
one caption; here the score of an item with several captions is their mean. torch is only imported by the functions.
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
    """Decorator that registers a function that chooses negatives, so that recipes may name it."""
    NEGATIVES[function.__name__] = function
    return function


def _highest_column(values: Tensor, batch: BatchScores) -> Tensor:
    """Return the column (B,) of the highest value in each row of a table (B, B), among items with another clip."""
    return values.masked_fill(batch.same_clip, -inf).argmax(1)


@choice
def hardest(batch: BatchScores) -> Indices:
    """Return two negatives per item, as indexes: the captions and the clip with the highest scores.

    s_ij is the score of clip i and the captions of item j. For item i, the negatives are the captions of the item j
    with the highest s_ij, and the clip k with the highest s_ki.
    """
    scores = batch.scores.detach()
    return _highest_column(scores, batch), _highest_column(scores.T, batch)


@choice
def semi_hard(batch: BatchScores) -> Indices:
    """Return two negatives per item, as indexes: the captions and the clip that score closest to the matching pair.

    Let s_ij be the score of clip i and the captions of item j. For item i, the captions are those of the item j with
    the smallest |s_ij - s_ii|. The clip is that of the item k with the smallest |s_ki - s_ii|. The scores of negatives
    may exceed the score of the matching pair, unlike in face recognition, where the name comes from.
    """
    scores = batch.scores.detach()
    matching_scores = scores.diagonal()[:, None]
    return _highest_column(-(scores - matching_scores).abs(), batch), _highest_column(
        -(scores.T - matching_scores).abs(), batch
    )


def _draw_columns(allowed: Tensor) -> Tensor:
    """Draw one allowed column for every row, with equal probability.

    allowed: (B, B) bool. The random numbers come from torch's global CPU generator. Returns: (B,) columns.
    """
    import torch

    draw = torch.rand(len(allowed), dtype=torch.float64)
    counts = allowed.sum(1)
    counts = counts.cpu() if counts.device.type == "mps" else counts  # which has no float64
    nth = (draw.to(counts.device, non_blocking=True) * counts).long().to(allowed.device) + 1
    found = torch.searchsorted(allowed.cumsum(1), nth[:, None])[:, 0]
    return found.clamp(max=len(allowed) - 1)  # for a row without an allowed column


@choice
def random(batch: BatchScores) -> Indices:
    """Return two random negatives per item, as indexes: the captions of another item, and the clip of another item.

    Both are drawn independently, with equal probability for all other items.
    """
    allowed = ~batch.same_clip
    return _draw_columns(allowed), _draw_columns(allowed)


@choice
def random_apart(batch: BatchScores) -> Indices:
    """Return two random negatives per item, as indexes: captions and a clip, from two different other items.

    If the batch has no third item, the caption and the clip may be from the same item, as in `random`.
    Source: the DCASE 2022 baseline's public code, which never ends on a batch without a third item.
    """
    import torch

    allowed = ~batch.same_clip
    captions = _draw_columns(allowed)
    others = allowed.scatter(1, captions[:, None], False)
    return captions, _draw_columns(torch.where(others.any(1, keepdim=True), others, allowed))


def _choose_by_similarity(batch: BatchScores, scores: "Callable[[], Tensor]", sign: int) -> Indices:
    """Return two negatives per item: clip and captions of the other item that is most (`sign` 1) or least (-1) similar.

    scores: Function that returns the similarity (B, B) of the items, by their clips or by their captions.
    """
    import torch

    with torch.no_grad():
        indices = _highest_column(sign * scores(), batch)
    return indices, indices


@choice
def text_hard(batch: BatchScores) -> Indices:
    """Return each item's negative clip and captions, as indexes: those of the item with the most similar captions."""
    return _choose_by_similarity(batch, lambda: batch.caption_scores, 1)


@choice
def text_easy(batch: BatchScores) -> Indices:
    """Return each item's negative clip and captions, as indexes: those of the item with the least similar captions."""
    return _choose_by_similarity(batch, lambda: batch.caption_scores, -1)


@choice
def audio_hard(batch: BatchScores) -> Indices:
    """Return each item's negative clip and captions, as indexes: those of the item with the most similar clip."""
    return _choose_by_similarity(batch, batch.clip_scores, 1)


@choice
def audio_easy(batch: BatchScores) -> Indices:
    """Return each item's negative clip and captions, as indexes: those of the item with the least similar clip."""
    return _choose_by_similarity(batch, batch.clip_scores, -1)
