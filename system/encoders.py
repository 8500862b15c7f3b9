"""From frames to embeddings: the audio heads of "Take it easy" and the model that scores clips against captions."""

import torch
from torch import nn

from system import schema
from system.attention import SelfAttention
from system.batches import Batch, Series
from system.losses import BatchScores
from system.similarity import Embedded, cosine
from system.text import TextEncoder

# B clips, T frames, P positions in a window, D values in a frame, E embedding


class ExpertHead(nn.Module):
    """Frames (B, T, D) of one expert -> (B, E).

    A series longer than the positions is cut into windows; their means, weighted by real frames, are averaged.
    """

    def __init__(self, dim: int, settings: schema.ExpertHeads, out: int) -> None:
        super().__init__()
        self.window = settings.positions
        self.project = nn.Linear(dim, settings.width)
        self.encoder = SelfAttention(
            settings.width, settings.layers, settings.heads, settings.ff, settings.positions, settings.dropout
        )
        self.out = nn.Linear(settings.width, out)

    def forward(self, series: Series) -> torch.Tensor:
        pooled = torch.zeros(len(series.lengths), self.out.in_features, device=series.values.device)
        for start in range(0, int(series.lengths.max()), self.window):
            rows = (series.lengths > start).nonzero()[:, 0]
            lengths = (series.lengths[rows] - start).clamp(max=self.window)
            values = series.values[rows, start : start + int(lengths.max())]
            real = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
            share = (lengths / series.lengths[rows])[:, None]
            pooled = pooled.index_add(0, rows, (self.encoder(self.project(values), real) * share).to(pooled.dtype))
        return self.out(pooled)


class ExpertHeads(nn.Module):
    """The mean of the experts' embeddings, not normalised: the size of each is its say in the cosine."""

    def __init__(self, settings: schema.ExpertHeads, out: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(
            {name: ExpertHead(expert.dim, settings, out) for name, expert in settings.experts.items()}
        )

    def forward(self, audio: dict[str, Series]) -> Embedded:
        return Embedded(torch.stack([head(audio[name]) for name, head in self.heads.items()]).mean(0))


class RetrievalModel(nn.Module):
    """An audio encoder and a text encoder with one embedding size, and the score between them."""

    def __init__(self, settings: schema.Model, text: TextEncoder) -> None:
        super().__init__()
        self.audio = ExpertHeads(settings.audio, settings.text.dim)
        self.text = text

    def score(self, clips: Embedded, captions: Embedded) -> torch.Tensor:
        """(B, N) scores of every clip against every caption."""
        return cosine(clips, captions)

    def forward(self, batch: Batch) -> BatchScores:
        return self.batch_scores(self.audio(batch.audio), self.text(batch.captions), batch.clip_ids, batch.row_of)

    def batch_scores(
        self, clips: Embedded, captions: Embedded, clip_ids: list[str], row_of: torch.Tensor
    ) -> BatchScores:
        """Scores of all pairs of a batch's B items; several captions of an item are averaged into its column.

        clips: B embeddings; captions: N embeddings, caption n belonging to item row_of[n], at least one an item.
        Source: "Take it easy" (2022), section 4, second equation.
        """
        counts = torch.bincount(row_of, minlength=len(clip_ids))
        average = torch.zeros(len(row_of), len(clip_ids), device=row_of.device)
        average[torch.arange(len(row_of)), row_of] = 1.0 / counts[row_of]
        numbers = {clip_id: n for n, clip_id in enumerate(dict.fromkeys(clip_ids))}
        number_of = torch.tensor([numbers[clip_id] for clip_id in clip_ids], device=row_of.device)
        return BatchScores(
            scores=self.score(clips, captions).float() @ average,
            same_clip=number_of[:, None] == number_of[None, :],
            clip_scores=lambda: self.score(clips, clips).float(),
            caption_scores=lambda: average.T @ self.score(captions, captions).float() @ average,
        )
