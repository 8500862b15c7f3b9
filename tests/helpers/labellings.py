"""All labellings of a few frames, one after the other: what the sums over labellings are tested with."""

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

# The chain of one recording: scores, and weights of entering and of leaving, (T,) or one number
Weight = np.ndarray | float
Chain = tuple[np.ndarray, Weight, Weight]


def chains(lengths: Sequence[int], per_frame: bool) -> list[Chain]:
    """Recordings of one batch, whose weights of entering and leaving are their own, or two numbers."""
    rng = np.random.default_rng(len(lengths))
    numbers = rng.normal(size=2) * 2
    rows = [rng.normal(size=(3, length)) * 2 for length in lengths]
    return [(scores, *(moves if per_frame else numbers)) for scores, *moves in rows]


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


def as_batch(some: Sequence[Chain]) -> tuple[torch.Tensor, ...]:
    """Recordings as rows (B, T) with NaN after their ends, and their lengths, of the data type of the scores."""
    columns = [[torch.as_tensor(one) for one in column] for column in zip(*some, strict=True)]
    scores, *moves = (pad_sequence(one, True, torch.nan) if one[0].ndim else one[0] for one in columns)
    return scores, torch.tensor([len(one) for one in columns[0]]), *moves
