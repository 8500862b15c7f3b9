"""Scores of windows as whole tables of T x T numbers."""

import numpy as np
import torch

from system.moments.labellings import posteriors
from system.moments.windows import WindowScores


class Table(WindowScores):
    """Scores of windows from frame i to frame j that are no sums: any table (T, T), with -inf for j < i."""

    table: np.ndarray

    @property
    def size(self) -> int:
        return len(self.table)

    def best_score_per_start(self) -> np.ndarray:
        return self.table.max(1)

    def rows(self, rows: np.ndarray, columns: slice = slice(None)) -> np.ndarray:
        return self.table[rows][:, columns].copy()


def as_scores(table: np.ndarray) -> Table:
    scores = Table(np.empty(0), np.empty(0))
    scores.table = table
    return scores


def frame_posteriors(
    scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor
) -> torch.Tensor:
    """Probability (B, T) that a frame is in a moment."""
    return posteriors(scores, lengths, enter, leave).frames


def moment_posteriors(
    scores: torch.Tensor, lengths: torch.Tensor, enter: torch.Tensor, leave: torch.Tensor
) -> torch.Tensor:
    """Log probability (B, T, T) that frames i to j are one whole moment; -inf if that is no window of the recording."""
    _, begin, end = posteriors(scores, lengths, enter, leave)
    frames = torch.arange(scores.shape[1])
    is_window = (frames[:, None] <= frames) & (frames < lengths[:, None])[:, None]
    return (begin[:, :, None] + end[:, None]).masked_fill(~is_window, -torch.inf)
