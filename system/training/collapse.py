"""The collapse watch: whether a model gives all clips, or all captions, one embedding, or none, or one score."""

import torch
import torch.nn.functional as F

from system.models.similarity import Embedded
from system.networks.layers import length_mask

ALIKE = 1e-5  # spread below which embeddings count as one: a mean cosine above 0.99999
ZEROS = 0.5  # share of zero vectors, or of captions that all clips score alike, above which nothing is left to rank by


def spread(embedded: Embedded) -> float:
    """1 - mean cosine of all pairs, a vector with itself included: 0 when all are alike, about 1 when they point
    anywhere.

    Of a series, the mean over its real places stands for it; vectors of zeros count as they are, alike.
    """
    vectors = embedded.values
    if embedded.lengths is not None:
        mask = length_mask(embedded.lengths, vectors.shape[1])
        vectors = torch.einsum("bld,bl->bd", vectors, mask.to(vectors.dtype))  # without a copy of all frames
    units = F.normalize(vectors.double(), dim=-1)
    if not len(units) or not units.any():
        return 0.0
    return float(1 - units.mean(0).square().sum())


def zeros(embedded: Embedded) -> float:
    """Share of vectors (of a series: of real places) whose values are all within 1e-6 of 0."""
    largest = torch.linalg.vector_norm(embedded.values, torch.inf, dim=-1)
    if embedded.lengths is not None:
        largest = largest[length_mask(embedded.lengths, largest.shape[1])]
    return float((largest <= 1e-6).float().mean())


def alike(scores: torch.Tensor) -> float:
    """Share of captions that all clips score within 1e-6. scores: (B, N) of clips against captions.

    Scores that are clamped (frame_word) may all be 0 while the embeddings differ.
    """
    return float((scores.amax(0) - scores.amin(0) <= 1e-6).float().mean())


def watch(clips: Embedded, captions: Embedded, captions_alike: float) -> dict[str, float]:
    """Spread and share of zeros of both sides and the share of captions scored alike, by their names in
    metrics.jsonl."""
    return {
        "spread_of_clips": spread(clips),
        "zeros_of_clips": zeros(clips),
        "spread_of_captions": spread(captions),
        "zeros_of_captions": zeros(captions),
        "captions_alike": captions_alike,
    }


def collapsed(seen: dict[str, float]) -> list[str]:
    """What says nothing any more, a sentence each; empty for a healthy model."""
    found = [
        f"the {side} have one embedding or none (spread {seen[f'spread_of_{side}']:.1e}, "
        f"{100 * seen[f'zeros_of_{side}']:.0f} % zeros)"
        for side in ("clips", "captions")
        if seen[f"spread_of_{side}"] < ALIKE or seen[f"zeros_of_{side}"] > ZEROS
    ]
    if seen["captions_alike"] > ZEROS:
        found.append(f"all clips have one score for {100 * seen['captions_alike']:.0f} % of captions")
    return found
