"""From frames to embeddings: the audio heads of "Take it easy" and the model that scores clips against captions."""

import torch
from torch import nn

from system import schema
from system.attention import SeriesEncoder, mean_over_real
from system.batches import Batch, Series
from system.losses import BatchScores
from system.similarity import SCORES, Embedded
from system.text import TextEncoder

# B clips, N captions, T frames, D values in a frame, E embedding


class ExpertHead(nn.Module):
    """Frames (B, T, D) of one expert -> (B, E).

    A series longer than the positions is cut into windows; their means, weighted by real frames, are averaged.
    """

    def __init__(self, dim: int, settings: schema.ExpertHeads, out: int) -> None:
        super().__init__()
        self.window = settings.positions
        self.project = nn.Linear(dim, settings.width)
        self.encoder = SeriesEncoder(
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
            pooled = pooled.index_add(
                0, rows, (mean_over_real(self.encoder(self.project(values), real), real) * share).to(pooled.dtype)
            )
        return self.out(pooled)


class ExpertHeads(nn.Module):
    """The mean of the experts' embeddings, not normalised: the size of each is its say in the cosine."""

    def __init__(self, settings: schema.ExpertHeads, out: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(
            {f"expert_{name}": ExpertHead(expert.dim, settings, out) for name, expert in settings.experts.items()}
        )

    def forward(self, audio: dict[str, Series]) -> Embedded:
        each = [head(audio[name.removeprefix("expert_")]) for name, head in self.heads.items()]
        return Embedded(torch.stack(each).mean(0))


class RetrievalModel(nn.Module):
    """An audio encoder and a text encoder with one embedding size, and the score between them."""

    def __init__(self, settings: schema.Model, text: TextEncoder) -> None:
        super().__init__()
        self.audio = ExpertHeads(settings.audio, settings.text.dim)
        self.text = text
        self.score = SCORES[settings.score.kind]  # (B, N) scores of every clip against every caption

    def embed(self, batch: Batch) -> tuple[Embedded, Embedded]:
        """Embeddings of the batch's B clips and N captions. The part of a step that may be computed in 16 bits."""
        return self.audio(batch.audio), self.text(batch.captions)

    def batch_scores(
        self, clips: Embedded, captions: Embedded, texts: list[str], clip_keys: list[str], row_of: torch.Tensor
    ) -> BatchScores:
        """Scores of all pairs of a batch, in float32 outside of any autocast.

        clips: B embeddings; clip_keys: (B,) equal for items that show the same audio. captions: N embeddings; texts:
        their words; row_of: (N,) the item each caption belongs to, at least one an item.
        """
        clips, captions = clips.float(), captions.float()
        numbers = {key: n for n, key in enumerate(dict.fromkeys(clip_keys))}
        number_of = torch.tensor([numbers[key] for key in clip_keys], device=row_of.device)
        return BatchScores(
            each=self.score(clips, captions),
            row_of=row_of,
            captions=texts,
            same_clip=number_of[:, None] == number_of[None, :],
            clip_scores=lambda: self.score(clips, clips),
            each_caption_scores=lambda: self.score(captions, captions),
        )
