"""Score frames against words.

Scores of clips against captions, computed from all pairs of a frame and a word.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from system.models.embeddings import Embedded, Embeddings, Ragged, length_mask_of

# B clips, N captions, L frames, W words, D embedding; F frames of all clips together

MAX_DOT_PRODUCTS = 1 << 24  # most dot products of frames and words in memory at a time: 64 MiB in float32
_LONG = 2048  # frames; captions are grouped for clips of at most this length, and longer clips are processed in pieces
_FRAMES_AT_ONCE = 128  # in the search for best words, so that the compared values fit into a core's cache


class _Words(NamedTuple):
    """Vectors of the words of some captions.

    vectors: (V, D), including a vector of zeros. indices: (N, W) index of the vector of each word of a caption; padding
    has the index of the vector of zeros. counts: (N,) numbers of words without padding.
    """

    vectors: torch.Tensor
    indices: torch.Tensor
    counts: torch.Tensor

    @property
    def values_per_frame(self) -> int:
        """Maximum number of values (dot products or scores) that are in memory for each scored frame.

        A frame has a dot product with each word vector, and then one score per caption.
        """
        return max(len(self.vectors), len(self.indices))

    def values_per_clip(self, longest: int) -> int:
        """Return the maximum number of values in memory while one clip of `longest` frames is scored.

        longest: Number of frames of the clip.
        """
        return max(self.values_per_frame * longest, self.indices.numel())


def _collect_words(captions: Embeddings) -> _Words:
    """Collect the words of captions. If they need no gradient, repeated words share one vector."""
    mask = length_mask_of(captions)
    words = captions.values if isinstance(captions, Ragged) else captions.values[mask]
    vectors = torch.cat([words.new_zeros(1, words.shape[1]), words])
    indices = mask.flatten().cumsum(0).view_as(mask) * mask
    if not captions.values.requires_grad:
        vectors, number = torch.unique(vectors, dim=0, return_inverse=True)
        indices = number[indices]
    return _Words(vectors, indices, mask.sum(1))


def _word_groups(captions: Embeddings, longest: int) -> list[_Words]:
    """Divide captions into groups whose dot products with a clip of `longest` frames fit into memory.

    longest: Number of frames of the clip.
    """
    words = _collect_words(captions)
    if words.values_per_clip(longest) <= MAX_DOT_PRODUCTS or len(words.indices) == 1:
        return [words]
    halves = torch.arange(len(words.indices), device=words.indices.device).chunk(2)
    return [group for half in halves for group in _word_groups(captions.rows(half), longest)]


def _score_against_words(frames: torch.Tensor, counts: torch.Tensor, words: _Words, reduce: str) -> torch.Tensor:
    """Score padded clips against captions, (B, N). reduce: Rule for combining dot products.

    frames: (B, L, D) of clips. counts: (B,) numbers of frames without padding.
    Padded frames are set to zero, so that their dot products are 0. This changes no sum or maximum, since all dot
    products are clamped at 0.
    """
    frames = frames.masked_fill(~length_mask_of(Embedded(frames, counts))[..., None], 0.0)
    counts = counts.clamp(min=1)
    pieces = frames.split(max(1, MAX_DOT_PRODUCTS // (len(frames) * words.values_per_frame)), 1)
    reduced = _reduce_piece(pieces[0], words, reduce)
    for piece in pieces[1:]:
        other = _reduce_piece(piece, words, reduce)
        reduced = torch.maximum(reduced, other) if reduce == "best_frame" else reduced + other
    scores: torch.Tensor
    if reduce == "best_word":
        scores = (reduced / counts).T
        return scores
    by_word = reduced if reduce == "best_frame" else reduced / counts
    scores = by_word[words.indices].sum(1).T / words.counts.clamp(min=1)
    return scores


def _reduce_piece(frames: torch.Tensor, words: _Words, reduce: str) -> torch.Tensor:
    """Compute the dot products of words with some frames of clips, and reduce them by the rule `reduce`.

    frames: (B, L, D), for B clips.
    The result depends on `reduce`. `best_word`: (N, B) for N captions, the highest product of each frame, summed over
    frames. `best_frame`: (V, B) for V words, the highest product over frames. `mean`: (V, B), sums over frames.
    """
    dots = (words.vectors @ frames.flatten(0, 1).T).relu_()  # (V, B L)
    if reduce == "best_word":
        best: torch.Tensor = _BestWord.apply(dots, words.indices, words.counts)
        by_caption: torch.Tensor = best.unflatten(1, frames.shape[:2]).sum(2)
        return by_caption
    dots = dots.unflatten(1, frames.shape[:2])
    by_word: torch.Tensor = dots.amax(2) if reduce == "best_frame" else dots.sum(2)
    return by_word


class _BestWord(torch.autograd.Function):
    """Finds the highest dot product of each frame with the words of each caption: (V, F) -> (N, F).

    The input has the dot products of V different words and F frames; the output has a row for each of N captions. The
    words of the captions are given by indices (N, W) and counts (N,), as in _Words.

    With operations of torch, this would need more memory: they store every comparison for the backward pass, or a
    tensor (N, W, F).
    """

    @staticmethod
    def forward(ctx: Any, dots: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the highest dot product of each frame with the words of each caption, (N, F)."""
        best = dots.new_empty(len(indices), dots.shape[1])
        order = counts.argsort(descending=True)  # so that those with an n-th word come first
        having = (counts[:, None] > torch.arange(indices.shape[1], device=counts.device)).sum(0).tolist()
        columns = indices[order].T.contiguous()
        for part, out in zip(dots.split(_FRAMES_AT_ONCE, 1), best.split(_FRAMES_AT_ONCE, 1), strict=True):
            highest, other = part.index_select(0, columns[0]), part.new_empty(len(indices), part.shape[1])
            for column, n in zip(columns[1:], having[1:], strict=True):
                found = torch.index_select(part, 0, column[:n], out=other[:n])
                torch.maximum(highest[:n], found, out=highest[:n])
            out[order] = highest
        ctx.save_for_backward(dots, indices, best)
        return best

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Pass the gradient of a maximum to the best word of the caption only.

        If several words are equally good, the first of them gets the gradient.
        """
        dots, indices, best = ctx.saved_tensors
        found, left = torch.zeros_like(dots), gradient
        for column in indices.T:
            share = left.where(dots.index_select(0, column) == best, 0.0)
            found.index_add_(0, column, share)
            left = left - share
        return found, None, None


def frame_word(
    clips: Embeddings, captions: Embeddings, reduce: Literal["mean", "best_frame", "best_word"]
) -> torch.Tensor:
    """Score clips against captions by the dot products of frames and words. reduce: Rule for combining the products.

    Series (B, L, D) and (N, W, D) with their lengths -> (B, N).
    With x_lw = max(0, frame_l . word_w) of a pair's frames and words without padding: `mean`: mean_lw x_lw;
    `best_frame`: mean_w max_l x_lw; `best_word`: mean_l max_w x_lw. Scores are in [0, 1] for vectors of length 1; a
    series of length 0 scores 0. Clips can also be scored against clips, and captions against captions: the vectors of
    the first argument then count as frames, and those of the second as words.

    At most `MAX_DOT_PRODUCTS` dot products are in memory at a time, or those of one frame and one caption if these are
    more. If the total is larger, the backward pass computes the dot products again. Clips with different numbers of
    frames are scored in groups of similar length.

    Sources: Xie et al., "Unsupervised Audio-Caption Aligning" (2022), whose public code calls the three reductions
    STSQ, MTSQ and MQST in this order, and "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), section
    4.2: `mean`. Deviation: padding never counts here, while the public code counts it in training. An encoder with
    `padding: counted` declares padding as frames and thus matches the public code.
    """
    longest = length_mask_of(clips).shape[1]
    groups = _word_groups(captions, min(longest, _LONG))
    if isinstance(clips, Embedded):
        return _score_padded_clips(clips, groups, reduce)
    found = [(index, _score_padded_clips(part, groups, reduce)) for index, part in clips.padded_parts()]
    order = torch.cat([index for index, _ in found]).argsort()
    return torch.cat([scores for _, scores in found])[order]


def _score_padded_clips(clips: Embedded, groups: list[_Words], reduce: str) -> torch.Tensor:
    """Score padded clips, (B, L, D), against groups of captions: (B, N) scores."""
    longest = clips.values.shape[1]
    counts = length_mask_of(clips).sum(1)
    again = (
        torch.is_grad_enabled()
        and len(counts) * sum(group.values_per_clip(longest) for group in groups) > MAX_DOT_PRODUCTS
    )
    work: Callable[..., torch.Tensor] = _score_against_words
    if again:
        work = partial(checkpoint, work, use_reentrant=False, preserve_rng_state=False)
    columns = []
    for group in groups:
        largest = max(group.values_per_clip(longest), clips.values[0].numel())  # a part's frames are copied, too
        size = max(1, MAX_DOT_PRODUCTS // largest)
        parts = zip(clips.values.split(size), counts.split(size), strict=True)
        columns.append(
            torch.cat([work(part[:, : max(1, int(count.max()))], count, group, reduce) for part, count in parts])
        )
    return torch.cat(columns, dim=1)
