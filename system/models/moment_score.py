"""Score of moments.

The score of moments: of every frame of a clip for a query, and of the whole clip.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from system.models.embeddings import Embedded, Embeddings, Ragged
from system.moments.two_state import log_partition

# B clips, N captions, T frames, D embedding

MAX_FRAME_SCORES = 1 << 24  # most scores in memory at a time: 64 MiB in float32
SCALE, OFFSET, TRANSITION = 10.0, -3.0, -2.0  # initial values


class FrameWeights(NamedTuple):
    """Weights that determine the probable moments in R series of frames.

    The log weight of a set of moments is a sum: the weights of all frames in the moments, plus the weights of all their
    starts and ends.
    scores: (R, T), the weight of each frame if it is in a moment. enter, leave: The weights of a moment's start and of
    its end: one number each, or (R, T) if they depend on the frame.
    """

    scores: torch.Tensor
    enter: torch.Tensor
    leave: torch.Tensor


class MomentScore(nn.Module):
    """Frames (B, T, D) and sentences (N, D) -> (B, N) log odds that a sentence is heard in a clip.

    An embedding of zeros has cosine 0 with every vector.
    unit_length: Whether frames and sentences are compared by cosines; if False, by dot products.
    published_threshold: Lowest probability of a frame in a window, for a published score without trained weights of
    moment starts and ends; None for all other scores.
    frame_share: Number k in [0, 1], used if a moment has to be more probable because the query is known to be heard.
    `raise_scores` then finds a constant d. It adds k d to each frame's score and (1 - k) d to the weight of a moment's
    start.
    """

    unit_length = True
    published_threshold: float | None = None
    frame_share = 1.0

    def __init__(self) -> None:
        """Create the trained numbers: scale, offset, and the weights of moment starts and ends."""
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.tensor(SCALE)), nn.Parameter(torch.tensor(OFFSET))
        self.enter, self.leave = nn.Parameter(torch.tensor(TRANSITION)), nn.Parameter(torch.tensor(TRANSITION))

    def forward(self, clips: Embeddings, captions: Embedded) -> torch.Tensor:
        """Score clips against captions: (B, N) log odds that the sound of a caption occurs in a clip."""
        if isinstance(clips, Ragged):
            parts = [(index, self._clip_scores(part, captions)) for index, part in clips.padded_parts()]
            return torch.cat([found for _, found in parts])[torch.cat([index for index, _ in parts]).argsort()]
        return self._clip_scores(clips, captions)

    def _clip_scores(self, clips: Embedded, captions: Embedded) -> torch.Tensor:
        """Compute the scores (B, N) of padded clips against captions, a limited number of captions at a time."""
        lengths, frames, vectors = (
            _frame_counts(clips),
            self._vectors_to_compare(clips.values),
            self._to_unit_length(captions.values),
        )
        columns = []
        for words in vectors.split(max(1, MAX_FRAME_SCORES // frames[..., 0].numel())):
            cosines = torch.einsum("b...td,nd->bn...t", frames, words).flatten(0, 1)
            repeated = lengths.repeat_interleave(len(words))
            columns.append(self._clip_scores_of_weights(self.weights(cosines), repeated).view(len(frames), -1))
        return torch.cat(columns, 1)

    def _clip_scores_of_weights(self, weights: FrameWeights, lengths: torch.Tensor) -> torch.Tensor:
        """Return the scores (R,) of R pairs of clip and caption: the log odds that the clip contains a moment.

        weights: Weights of the clips' frames, and of moments' starts and ends. lengths: (R,) numbers of frames.
        """
        return _log_odds(log_partition(weights.scores, lengths, weights.enter, weights.leave))

    def trained_numbers(self) -> dict[str, float]:
        """Return a dict from name (scale, offset, enter, ...) to value of the trained numbers that are in no layer."""
        return {name: value.item() for name, value in self.named_parameters() if value.dim() == 0}

    def scores_of_cosines(self, cosines: torch.Tensor) -> torch.Tensor:
        """Convert cosines of frames with a query to frame scores: scale x cosine + offset."""
        return self.scale * cosines + self.offset

    def cosines(self, clips: Embeddings, captions: Embedded) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the cosines of each clip's frames with the clip's only caption; return also the numbers of frames.

        Clips and captions have the same order. Returns: Cosines (B, T), the input of the method `weights`, and (B,)
        numbers of frames without padding. If a subclass compares K vectors per frame, the cosines are (B, K, T).
        """
        padded = clips.padded() if isinstance(clips, Ragged) else clips
        frames, words = self._vectors_to_compare(padded.values), self._to_unit_length(captions.values)
        return torch.einsum("b...td,bd->b...t", frames, words), _frame_counts(padded)

    def weights(self, cosines: torch.Tensor) -> FrameWeights:
        """Compute the score of each frame, and the weights of moment starts and ends, from cosines."""
        return FrameWeights(self.scores_of_cosines(cosines), self.enter, self.leave)

    def _vectors_to_compare(self, frames: torch.Tensor) -> torch.Tensor:
        """Convert frames (B, T, D) to the vectors (B, ..., T, D) that are compared with sentences."""
        return self._to_unit_length(frames)

    def _to_unit_length(self, values: torch.Tensor) -> torch.Tensor:
        """Scale vectors (..., D) to length 1 if `unit_length`, else return them unchanged."""
        return F.normalize(values, dim=-1) if self.unit_length else values


def _log_odds(log_z: torch.Tensor) -> torch.Tensor:
    """Return the log odds that a clip contains a moment, log(Z - 1). log_z: Log of the total weight Z.

    Z is the total weight of all labellings of the frames. The probability that the clip contains a moment is
    p = 1 - exp(-log Z), and its log odds are log(p / (1 - p)).
    """
    log_z = log_z.clamp(min=1e-30)
    return log_z + torch.log(-torch.expm1(-log_z))


def _frame_counts(clips: Embeddings) -> torch.Tensor:
    """Return the number of frames of each clip. Raises ValueError for pooled embeddings, which have no frames."""
    if clips.lengths is None:
        raise ValueError(
            "the score moments needs one embedding per frame, but these embeddings are pooled; "
            "use an encoder that returns series"
        )
    return clips.lengths


def cosines_of_queries(
    score: MomentScore, clips: Embeddings, clip_of: Sequence[int], captions: Embedded, at_once: int = 64
) -> list[torch.Tensor]:
    """Return each query's cosines with the frames of its clip, one tensor per query.

    The cosines of a query are (T,) for T frames, or (K, T) if the score represents each frame by K vectors.
    score: Score of moments that computes the cosines. clip_of: Index of each query's clip. at_once: Number of queries
    that are processed together.
    """
    lengths = _frame_counts(clips).tolist()
    order = sorted(range(len(clip_of)), key=lambda query: lengths[clip_of[query]])
    found: dict[int, torch.Tensor] = {}
    for begin in range(0, len(order), at_once):
        queries = order[begin : begin + at_once]
        chosen = clips.rows([clip_of[query] for query in queries])
        cosines, _ = score.cosines(chosen, captions.rows(queries))
        found |= {query: row[..., : lengths[clip_of[query]]] for query, row in zip(queries, cosines.cpu(), strict=True)}
    return [found[query] for query in range(len(clip_of))]
