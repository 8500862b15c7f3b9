"""Transformer over frames: network.

A transformer whose input is the frames of one frozen expert; see frame_transformer.py.
"""

import torch
from torch import nn

from system.compute.device import on_device
from system.models.audio.encoder import AudioEncoder
from system.models.batch import Series
from system.models.embeddings import Embedded
from system.networks.layers import SeriesEncoder, length_mask

# B clips, T frames, E embedding


class FrameTransformerEncoder(AudioEncoder):
    """Frames (B, T, D) -> embeddings (B, T, E). Padding has no effect.

    A series with more frames than positions is cut into independent windows. expert: Name of the expert. dim: D. sizes:
    Width, layers, heads, width of the feed-forward layers, positions, dropout.
    """

    def __init__(self, expert: str, dim: int, sizes: tuple[int, int, int, int, int, float], out: int) -> None:
        """Build the layers. dim, out: Values per frame and embedding. sizes: Width etc., as SeriesEncoder expects."""
        super().__init__()
        width, _, _, _, self.window, _ = sizes
        self.expert = expert
        encoder = SeriesEncoder(*sizes)  # first: weights are drawn in this order
        layers = {"project": nn.Linear(dim, width), "encoder": encoder}
        self.transformer = nn.ModuleDict(layers | {"out": nn.Linear(width, out)})

    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Embed the clips of a batch."""
        (values, lengths), device = audio[self.expert], audio[self.expert].values.device
        windows = []
        for start in range(0, values.shape[1], self.window):
            part = values[:, start : start + self.window].float()
            here = (lengths - start).clamp(min=0, max=part.shape[1])
            mask = on_device(length_mask(here.clamp(min=1), part.shape[1]), device)  # attention needs one frame
            x = self.transformer["out"](self.transformer["encoder"](self.transformer["project"](part), mask))
            padding = on_device(~length_mask(here, part.shape[1]), device)
            windows.append(x.masked_fill(padding[..., None], 0.0))
        return Embedded(torch.cat(windows, 1), on_device(lengths, device))

    def parts(self) -> dict[str, nn.Module]:
        """Return a dict from the name of each part of the encoder to its torch module."""
        return {"transformer": self.transformer}
