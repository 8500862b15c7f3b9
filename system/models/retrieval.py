"""The model that scores clips against captions."""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from system.devices import on_device
from system.losses.terms import BatchScores, FrameScores
from system.models.batch import Batch, Embedded, Embeddings
from system.models.scores import ClipLogits, FrameLogits, MomentScore, Scorer
from system.models.settings import Model
from system.models.text import TextEncoder
from system.moments.windows import Grid

# B clips, N captions; of a pool Q queries, C clips

MAX_SCORES = 1 << 24  # most scores of a block: 64 MiB


class RetrievalModel(nn.Module):
    """An audio encoder, a text encoder, and a score.

    The embeddings of both encoders have the same size.
    """

    def __init__(self, settings: Model, text: TextEncoder, learned: Mapping[str, float] | None = None) -> None:
        """Build the audio encoder and the score.

        Args:
            learned: Start values of parameters of losses.
        """
        super().__init__()
        self.audio = settings.audio.build(settings.text.dim)
        self.text = text
        self.score = settings.score.build(settings.text.dim)  # (B, N) scores of every clip against every caption
        if text.logit_numbers is not None and isinstance(self.score, ClipLogits | FrameLogits):
            for number, value in zip((self.score.scale, self.score.offset), text.logit_numbers, strict=True):
                number.data.fill_(value)
        self.unit_length = settings.score.unit_length  # whether the score depends only on directions
        expert = next(iter(settings.audio.experts.values()))
        self.frame_grid = settings.audio.frame_grid or Grid.of(expert)  # times of embedded frames
        self.learned = nn.ParameterDict({name: nn.Parameter(torch.tensor(v)) for name, v in (learned or {}).items()})

    @property
    def moments(self) -> MomentScore:
        """The model's score, if it is a score of moments.

        Raises:
            ValueError: It is another score.
        """
        if not isinstance(self.score, MomentScore):
            raise ValueError("this model cannot find moments: its score is not of kind moments; use one that has it")
        return self.score

    @property
    def device(self) -> torch.device:
        """Device of the model's computations."""
        return self.text.device

    def score_matrix(self, captions: Embedded, clips: Embeddings) -> np.ndarray:
        """Score all captions against all clips.

        Returns:
            (Q, C) float32 on the CPU, one row per caption as in all files.
        """
        return np.ascontiguousarray(self.score(clips, captions).T.float().cpu().numpy())

    def score_blocks(self, captions: Embedded, clips: Embeddings) -> Iterator[np.ndarray]:
        """Yield the score matrix in blocks of captions.

        Yields:
            (n, C), at most MAX_SCORES scores.
        """
        size = max(1, MAX_SCORES // clips.size)
        for begin in range(0, captions.size, size):
            with torch.inference_mode():
                yield self.score_matrix(captions.rows(slice(begin, begin + size)), clips)

    def parts(self) -> dict[str, nn.Module]:
        """Return the parts that may have their own learning rates."""
        return {"audio": self.audio, **self.audio.parts(), "text": self.text}

    def parameters_by_part(self) -> dict[str, int]:
        """Count the trainable parameters of encoders and score."""
        return trainable_numbers({**self.audio.parts(), "text": self.text}, self.score)

    def batch_scores(self, batch: Batch, clips: Embeddings, captions: Embedded) -> BatchScores:
        """Score a batch's clips and captions for the losses.

        It computes in float32, and must not be called under autocast.
        """
        clips, captions = clips.float(), captions.float()
        frames = None
        if batch.labels is not None:
            cosines, lengths = self.moments.cosines(clips, captions)
            scores, enter, leave = self.moments.weights(cosines)
            labels = F.pad(batch.labels, (0, scores.shape[1] - batch.labels.shape[1]))
            frames = FrameScores(scores, lengths, labels, enter, leave)
        _, numbers = np.unique(batch.clip_keys, return_inverse=True)
        number_of = on_device(torch.from_numpy(numbers), batch.row_of.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and frames is None):
            scores_by_caption = self.score(clips, captions)
        return BatchScores(
            scores_by_caption=scores_by_caption,
            row_of=batch.row_of,
            same_clip=number_of[:, None] == number_of[None, :],
            margin_factors=batch.margin_factors,
            clip_scores=lambda: self.score(clips, clips),
            each_caption_scores=lambda: self.score(captions, captions),
            teachers=batch.teachers,
            learned=dict(self.learned.items()),
            frames=frames,
        )


def trainable_numbers(parts: Mapping[str, nn.Module], score: Scorer) -> dict[str, int]:
    """Count the trainable parameters of parts and a score.

    Single numbers of a score, such as a scale, are not counted.
    """
    counts = {name: sum(one.numel() for one in part.parameters() if one.requires_grad) for name, part in parts.items()}
    layers = sum(one.numel() for one in score.parameters() if one.dim() > 0) if isinstance(score, nn.Module) else 0
    return counts | ({"score": layers} if layers else {})
