"""From frames to embeddings: the audio heads of "Take it easy" and the model that scores clips against captions."""

import torch
from torch import nn

from system import schema
from system.attention import SeriesEncoder, mean_over_real
from system.feeding import Batch, Series
from system.losses import BatchScores
from system.similarity import SCORES, Embedded
from system.text import TextEncoder

# B clips, N captions, T frames, D values in a frame, E embedding

CLIPS_AT_ONCE = {"cpu": 64, "cuda": 256}  # a GPU needs more at once to be busy


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
        """Clips of like length are computed together, so that a clip of two minutes costs what it holds and no more."""
        order = series.lengths.argsort(stable=True)
        parts = [self._pooled(series.rows(rows)) for rows in order.split(CLIPS_AT_ONCE[order.device.type])]
        return self.out(torch.cat(parts)[order.argsort()])

    def _pooled(self, series: Series) -> torch.Tensor:
        """(B, width) means over all frames of each clip."""
        pooled = torch.zeros(len(series.lengths), self.out.in_features, device=series.values.device)
        for start in range(0, int(series.lengths.max()), self.window):
            rows = (series.lengths > start).nonzero()[:, 0]
            lengths = (series.lengths[rows] - start).clamp(max=self.window)
            values = series.values[rows, start : start + int(lengths.max())]
            real = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
            share = (lengths / series.lengths[rows])[:, None]
            means = mean_over_real(self.encoder(self.project(values.float()), real), real)
            pooled = pooled.index_add(0, rows, (means * share).to(pooled.dtype))
        return pooled


class ExpertHeads(nn.Module):
    """The mean of the experts' embeddings, not normalised: the size of each is its say in the cosine."""

    def __init__(self, settings: schema.ExpertHeads, out: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(
            {f"expert_{name}": ExpertHead(expert.dim, settings, out) for name, expert in settings.experts.items()}
        )

    def forward(self, audio: dict[str, Series]) -> Embedded:
        return Embedded(torch.stack(list(self.each(audio).values())).mean(0))

    def each(self, audio: dict[str, Series]) -> dict[str, torch.Tensor]:
        """(B, E) of every expert by its name."""
        names = {name: name.removeprefix("expert_") for name in self.heads}
        return {names[name]: head(audio[names[name]]) for name, head in self.heads.items()}


class RetrievalModel(nn.Module):
    """An audio encoder and a text encoder with one embedding size, and the score between them."""

    def __init__(self, settings: schema.Model, text: TextEncoder) -> None:
        super().__init__()
        self.audio = ExpertHeads(settings.audio, settings.text.dim)
        self.text = text
        self.score = SCORES[settings.score.kind]  # (B, N) scores of every clip against every caption

    def parameters_by_part(self) -> dict[str, int]:
        """Trainable parameters of every expert's head and of the text encoder."""
        parts: dict[str, nn.Module] = {name.removeprefix("expert_"): head for name, head in self.audio.heads.items()}
        return {
            name: sum(p.numel() for p in part.parameters() if p.requires_grad)
            for name, part in {**parts, "text": self.text}.items()
        }

    def embed(self, batch: Batch) -> tuple[Embedded, Embedded]:
        """Embeddings of the batch's B clips and N captions. The part of a step that may be computed in 16 bits."""
        return self.audio(batch.audio), self.text(batch.captions)

    def batch_scores(self, batch: Batch, clips: Embedded, captions: Embedded) -> BatchScores:
        """Scores of all pairs of a batch, in float32 outside of any autocast.

        clips: B embeddings of the batch's clips. captions: N embeddings of its captions, at least one an item. The
        batch's audio is not looked at.
        """
        clips, captions = clips.float(), captions.float()
        numbers = {key: n for n, key in enumerate(dict.fromkeys(batch.clip_keys))}
        number_of = torch.tensor([numbers[key] for key in batch.clip_keys], device=batch.row_of.device)
        return BatchScores(
            each=self.score(clips, captions),
            row_of=batch.row_of,
            same_clip=number_of[:, None] == number_of[None, :],
            relax=batch.relax,
            clip_scores=lambda: self.score(clips, clips),
            each_caption_scores=lambda: self.score(captions, captions),
        )
