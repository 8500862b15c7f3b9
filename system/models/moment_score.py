"""Score of moments.

The score of moments, for every frame of a clip against a query, and for the whole clip.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from system.models.embeddings import Embedded, Embeddings, Ragged
from system.moments.two_state import log_partition

# B clips, N captions, T frames, D embedding

MAX_FRAME_SCORES = 1 << 24  # most scores in memory at a time: 64 MiB in float32
SCALE, OFFSET, TRANSITION = 10.0, -3.0, -2.0  # initial values


class MomentScore(nn.Module):
    """Frames (B, T, D) and sentences (N, D) -> (B, N) log odds that a sentence is heard in a clip; see score.Moments.

    An embedding of zeros has cosine 0 with all.
    unit_length: Whether frames and sentences are compared by cosines; if False, by dot products. published_threshold:
    Probability of frames in windows, for a score with published numbers and without trained transitions.
    """

    unit_length = True
    published_threshold: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.tensor(SCALE)), nn.Parameter(torch.tensor(OFFSET))
        self.enter, self.leave = nn.Parameter(torch.tensor(TRANSITION)), nn.Parameter(torch.tensor(TRANSITION))

    def forward(self, clips: Embeddings, captions: Embedded) -> torch.Tensor:
        """Score clips (B) against captions (N): log odds that the described sound occurs."""
        if isinstance(clips, Ragged):
            parts = [(index, self._clip_scores(part, captions)) for index, part in clips.padded_parts()]
            return torch.cat([found for _, found in parts])[torch.cat([index for index, _ in parts]).argsort()]
        return self._clip_scores(clips, captions)

    def _clip_scores(self, clips: Embedded, captions: Embedded) -> torch.Tensor:
        """Score padded clips against captions, some captions at a time."""
        lengths = _lengths(clips)
        frames, vectors = _scaled(clips.values, self.unit_length), _scaled(captions.values, self.unit_length)
        columns = []
        for words in vectors.split(max(1, MAX_FRAME_SCORES // frames[..., 0].numel())):
            frame_scores = self.affine(torch.einsum("btd,nd->bnt", frames, words)).flatten(0, 1)
            repeated = lengths.repeat_interleave(len(words))
            columns.append(self._reduced(frame_scores, repeated).view(len(frames), -1))
        return torch.cat(columns, 1)

    def _reduced(self, frame_scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Reduce scores of frames (R, T) to the scores (R,) of clips. lengths: (R,) frames without padding."""
        return _log_odds(log_partition(frame_scores, lengths, self.enter, self.leave))

    def numbers(self) -> dict[str, float]:
        """Return a dict from the names scale, offset, enter and leave to the trained values."""
        return {name: value.item() for name, value in self.named_parameters()}

    def affine(self, cosines: torch.Tensor) -> torch.Tensor:
        """Convert cosines of frames with a query to scores: scale x cosine + offset."""
        return self.scale * cosines + self.offset

    def frames(self, clips: Embeddings, captions: Embedded) -> tuple[torch.Tensor, torch.Tensor]:
        """Score every frame of each clip against the one caption of the clip.

        Returns: (B, T) scores, and (B,) numbers of frames without padding. Clips and captions have the same order.
        """
        cosines, lengths = frame_cosines(clips, captions, self.unit_length)
        return self.affine(cosines), lengths


def frame_cosines(clips: Embeddings, captions: Embedded, unit_length: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the cosine of every frame of each clip with the one caption of the clip.

    unit_length: Whether vectors are scaled to length 1; if False, the results are dot products.
    Returns: (B, T) cosines, and (B,) numbers of frames without padding. Clips and captions have the same order.
    """
    padded = clips.padded() if isinstance(clips, Ragged) else clips
    frames, words = _scaled(padded.values, unit_length), _scaled(captions.values, unit_length)
    return torch.einsum("btd,bd->bt", frames, words), _lengths(padded)


def _scaled(values: torch.Tensor, unit_length: bool) -> torch.Tensor:
    """Scale vectors (..., D) to length 1 if `unit_length`, else return them unchanged."""
    return F.normalize(values, dim=-1) if unit_length else values


def _log_odds(log_z: torch.Tensor) -> torch.Tensor:
    """Convert log Z to log(Z - 1), the log odds that the recording has any moment.

    With p = 1 - exp(-log Z), the log odds are log(p / (1 - p)).
    """
    log_z = log_z.clamp(min=1e-30)
    return log_z + torch.log(-torch.expm1(-log_z))


def _lengths(clips: Embeddings) -> torch.Tensor:
    """Return the numbers of frames of clips. Raises ValueError for pooled embeddings."""
    if clips.lengths is None:
        raise ValueError(
            "the score moments needs one embedding per frame, but these embeddings are pooled; "
            "use an encoder that returns series"
        )
    return clips.lengths


def cosines_of_queries(
    clips: Embeddings, clip_of: Sequence[int], captions: Embedded, at_once: int = 64, unit_length: bool = True
) -> list[torch.Tensor]:
    """Compute the cosines of each query with the frames of its one clip, on the CPU.

    Returns: One array (T,) per query. clip_of: Index of each query's clip. at_once: Number of queries per computation.
    unit_length: See frame_cosines.
    """
    lengths = _lengths(clips).tolist()
    order = sorted(range(len(clip_of)), key=lambda query: lengths[clip_of[query]])
    found: dict[int, torch.Tensor] = {}
    for begin in range(0, len(order), at_once):
        queries = order[begin : begin + at_once]
        chosen = clips.rows([clip_of[query] for query in queries])
        cosines, _ = frame_cosines(chosen, captions.rows(queries), unit_length)
        found |= {query: row[: lengths[clip_of[query]]] for query, row in zip(queries, cosines.cpu(), strict=True)}
    return [found[query] for query in range(len(clip_of))]
