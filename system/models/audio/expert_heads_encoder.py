"""Heads of "Take it easy": networks.

The heads of this paper (2022) are one small transformer per expert. The embedding is the mean of their outputs.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from system.compute.device import on_device, suited_to
from system.models.audio.encoder import AudioEncoder
from system.models.batch import Series
from system.models.embeddings import Embedded
from system.networks.layers import SeriesEncoder, length_mask, masked_mean

# B clips, T frames, D values in a frame, E embedding

CLIPS_AT_ONCE = {"cpu": 64, "cuda": 256}  # a GPU needs more at once to be busy


class ExpertHead(nn.Module):
    """Frames (B, T, D) of one expert -> embeddings (B, E).

    A series with more frames than `max_positions` is cut into windows. The means of the windows are averaged, weighted
    by their numbers of frames.
    """

    def __init__(
        self,
        dim: int,
        out: int,
        *,
        width: int,
        layers: int,
        heads: int,
        ffn_dim: int,
        max_positions: int,
        dropout: float,
    ) -> None:
        """Build one expert's layers. dim, out: Values per frame and per embedding. max_positions: Frames per window."""
        super().__init__()
        self.window = max_positions
        self.project = nn.Linear(dim, width)
        self.encoder = SeriesEncoder(width, layers, heads, ffn_dim, max_positions, dropout)
        self.out = nn.Linear(width, out)

    def forward(self, series: Series) -> torch.Tensor:
        """Embed clips from the frames of one expert. Clips of similar length are grouped, to reduce padding."""
        order, device = series.lengths.argsort(stable=True), series.values.device
        parts = [self._encode_and_pool(series.rows(rows)) for rows in order.split(suited_to(device, CLIPS_AT_ONCE))]
        result: torch.Tensor = self.out(torch.cat(parts)[on_device(order.argsort(), device)])
        return result

    def _encode_and_pool(self, series: Series) -> torch.Tensor:
        """Encode the frames of each clip in windows; return the mean over all frames of the clip, (B, width)."""
        device = series.values.device
        pooled = torch.zeros(len(series.lengths), self.out.in_features, device=device)
        for start in range(0, int(series.lengths.max()), self.window):
            rows = (series.lengths > start).nonzero()[:, 0]
            lengths = (series.lengths[rows] - start).clamp(max=self.window)
            share = on_device((lengths / series.lengths[rows])[:, None], device)
            rows, longest = on_device(rows, device), int(lengths.max())
            values = series.values[rows, start : start + longest]
            mask = on_device(length_mask(lengths, longest), device)
            means = masked_mean(self.encoder(self.project(values.float()), mask), mask)
            pooled = pooled.index_add(0, rows, (means * share).to(pooled.dtype))
        return pooled


class ExpertHeadsEncoder(AudioEncoder):
    """Embeds clips by the mean of the experts' embeddings. These are not scaled to length 1, so that an
    embedding with a larger norm has more influence on the cosine.

    dims: Dict from expert to the number of values per frame. head: Arguments with the sizes of each ExpertHead.
    """

    def __init__(self, dims: Mapping[str, int], out: int, **head: Any) -> None:
        """Build one ExpertHead per expert in `dims`. out: Number of values per embedding."""
        super().__init__()
        self.heads = nn.ModuleDict({f"expert_{name}": ExpertHead(dim, out, **head) for name, dim in dims.items()})

    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Embed the clips of a batch."""
        return self.embed_with_experts(audio)[0]

    def parts(self) -> dict[str, nn.Module]:
        """Return a dict from the name of each part of the encoder to its torch module."""
        return {name.removeprefix("expert_"): head for name, head in self.heads.items()}

    def embed_with_experts(self, audio: dict[str, Series]) -> tuple[Embedded, dict[str, torch.Tensor]]:
        """Embed clips with every expert; return the mean over experts, and a dict from expert to embeddings."""
        by_expert = {name: head(audio[name]) for name, head in self.parts().items()}
        return Embedded(torch.stack(list(by_expert.values())).mean(0)), by_expert
