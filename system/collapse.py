"""The collapse watch: whether a model gives all clips, or all captions, the same embedding, or none at all."""

import torch
import torch.nn.functional as F

from system.similarity import Embedded

ALIKE = 1e-3  # spread below which embeddings count as one: a mean cosine above 0.999
ZEROS = 0.5  # share of zero vectors above which nothing is left to compare


def spread(embedded: Embedded) -> float:
    """1 - mean cosine of all pairs, a vector with itself included: 0 when all are alike, about 1 when they point
    anywhere.

    Of a series, the mean over its real places stands for it; vectors of zeros count as they are, alike.
    """
    vectors = embedded.values
    if embedded.lengths is not None:
        real = torch.arange(vectors.shape[1], device=vectors.device) < embedded.lengths[:, None]
        vectors = (vectors * real[..., None]).sum(1)
    units = F.normalize(vectors.double(), dim=-1)
    if not len(units) or not units.any():
        return 0.0
    return float(1 - units.mean(0).square().sum())


def zeros(embedded: Embedded) -> float:
    """Share of vectors (of a series: of real places) whose values are all within 1e-6 of 0."""
    vectors = embedded.values
    if embedded.lengths is not None:
        vectors = vectors[torch.arange(vectors.shape[1], device=vectors.device) < embedded.lengths[:, None]]
    return float((vectors.abs().amax(-1) <= 1e-6).float().mean())


def watch(clips: Embedded, captions: Embedded) -> dict[str, float]:
    """Spread and share of zeros of both sides, by the names they have in metrics.jsonl."""
    sides = {"clips": clips, "captions": captions}
    return {
        f"{name}_of_{side}": measure(embedded)
        for side, embedded in sides.items()
        for name, measure in (("spread", spread), ("zeros", zeros))
    }


def collapsed(seen: dict[str, float]) -> list[str]:
    """The sides whose embeddings say nothing any more: "clips", "captions"."""
    return [
        side for side in ("clips", "captions") if seen[f"spread_of_{side}"] < ALIKE or seen[f"zeros_of_{side}"] > ZEROS
    ]
