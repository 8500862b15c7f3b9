"""All labellings of a few frames, one after the other: what the sums over labellings are tested with."""

from itertools import pairwise, product

import numpy as np
import torch
import torch.nn.functional as F

# The chain of one recording: scores, and weights of entering and of leaving, (T,) or one number
Weight = np.ndarray | float
Chain = tuple[np.ndarray, Weight, Weight]


def chain(frames: int, per_frame: bool) -> Chain:
    rng = np.random.default_rng(frames)
    enter, leave = rng.normal(size=(2, frames) if per_frame else 2) * 2
    return rng.normal(size=frames) * 2, enter, leave


def weights_of(scores: np.ndarray, enter: Weight, leave: Weight) -> dict[tuple[int, ...], float]:
    """Weight of every labelling, from the definition: index t is the step from frame t - 1 to frame t."""
    enters, leaves = (np.broadcast_to(one, scores.shape) for one in (enter, leave))
    weights = {}
    for labels in product((0, 1), repeat=len(scores)):
        moves = sum(enters[t] * (b > a) + leaves[t] * (b < a) for t, (a, b) in enumerate(pairwise(labels), 1))
        weights[labels] = float(np.exp(scores @ labels + moves))
    return weights


def moments_of(labels: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and last frame of every moment."""
    changes = np.diff([0, *labels, 0])
    return [*zip(np.flatnonzero(changes == 1), np.flatnonzero(changes == -1) - 1, strict=True)]


def as_batch(scores: np.ndarray, enter: Weight, leave: Weight, padding: int = 3) -> tuple[torch.Tensor, ...]:
    """One recording as rows (1, T + padding) with large values after its end, and its length."""
    rows = [torch.as_tensor(one, dtype=torch.float64) for one in (scores, enter, leave)]
    scores_, *moves = (F.pad(one[None], (0, padding), value=90.0) if one.ndim else one for one in rows)
    return scores_, torch.tensor([len(scores)]), *moves
