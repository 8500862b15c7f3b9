"""PaSST.

A transformer over patches of a log-mel; in training, random patches are left out.

Imports torch. The keys of the network's tensors are those of the published files.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from system.compute.device import on_device
from system.networks.kaldi_log_mel import KaldiLogMel
from system.networks.passt_published import DIM, FFN_DIM, HEADS, PATCH, VARIANTS, Name
from system.networks.segment import SegmentNetwork, count_clip_frames
from system.networks.transformer_blocks import EPS, Block
from system.networks.weights import read_weights

# B inputs, T columns, T' patches in time, F' patches in frequency, L patches


class PatchProjection(nn.Module):
    """Convolution that embeds the patches of log-mels: (B, 1, bands, T) -> (B, 768, F', T')."""

    def __init__(self, stride: int) -> None:
        """Build the convolution. stride: Columns and bands from one patch to the next."""
        super().__init__()
        self.proj = nn.Conv2d(1, DIM, PATCH, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the embeddings of patches."""
        result: torch.Tensor = self.proj(x)
        return result


class Passt(nn.Module):
    """B log-mels (B, 128, T) -> (B, 2 + L, 768), after the last norm: class and distillation tokens, then the L
    remaining patches, band after band.

    patchout: Numbers of columns, rows, and single patches that are left out in training; the same patches are left out
    for the whole batch. Position embeddings are added before patches are left out. An input of T patches in time uses
    the first T position embeddings; a longer input raises ValueError.
    Source: Koutini et al. (2022), sections 2.1 and 2.2; github.com/kkoutini/passt_hear21 0.0.26. Results differ from
    the original's by at most a relative 2e-5.
    """

    def __init__(self, name: Name, patchout: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Build the network, untrained. name: Variant. patchout: Columns, rows and patches left out in training."""
        super().__init__()
        variant = VARIANTS[name]
        self.patchout = patchout
        self.cls_token, self.dist_token = (nn.Parameter(torch.zeros(1, 1, DIM)) for _ in range(2))
        self.new_pos_embed = nn.Parameter(torch.zeros(1, 2, DIM))
        self.freq_new_pos_embed = nn.Parameter(torch.zeros(1, DIM, variant.rows, 1))
        self.time_new_pos_embed = nn.Parameter(torch.zeros(1, DIM, 1, variant.positions))
        for table in (self.cls_token, self.dist_token, *self._position_embeddings()):
            nn.init.trunc_normal_(table, std=0.02)
        self.patch_embed = PatchProjection(variant.stride)
        self.blocks = nn.ModuleList(Block(DIM, HEADS, FFN_DIM) for _ in range(variant.blocks))
        self.norm = nn.LayerNorm(DIM, EPS)

    def _position_embeddings(self) -> list[nn.Parameter]:
        """Return the three tensors of trained position embeddings: class tokens, frequency, and time."""
        return [self.new_pos_embed, self.freq_new_pos_embed, self.time_new_pos_embed]

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Compute the transformer's tokens of log-mel spectrograms."""
        x = self.patch_embed(columns[:, None])
        times = x.shape[3]
        if times > self.time_new_pos_embed.shape[3]:
            limit = self.time_new_pos_embed.shape[3]
            raise ValueError(
                f"the segment has {times} patches in time, but PaSST accepts at most {limit}; lower segment_seconds"
            )
        x = x + self.time_new_pos_embed[..., :times] + self.freq_new_pos_embed
        if self.training:
            for axis, left_out in zip((3, 2), self.patchout, strict=False):
                x = x.index_select(axis, draw_remaining_positions(x.shape[axis], left_out, x.device))
        patches = x.flatten(2).transpose(1, 2)
        if self.training:
            patches = patches.index_select(1, draw_remaining_positions(patches.shape[1], self.patchout[2], x.device))
        tokens = torch.cat([self.cls_token, self.dist_token], 1) + self.new_pos_embed
        x = torch.cat([tokens.expand(len(x), -1, -1), patches], 1)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.norm(x)
        return result


class PasstOnWaves(SegmentNetwork):
    """Log-mel, then PaSST. The vector of a segment is the mean of its class and distillation tokens; a frame is the
    mean of the outputs for all patches at the same time. The silence that pads a segment counts as a part of it.
    """

    dim = DIM

    def __init__(self, front_end: KaldiLogMel, transformer: Passt) -> None:
        """Store the log-mel layer and the transformer."""
        super().__init__()
        self.front_end, self.transformer = front_end, transformer

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the vector of each segment, the mean of its two tokens."""
        result: torch.Tensor = self.transformer(self.front_end(waves))[:, :2].mean(1)
        return result

    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute each segment's frames, and the number of its frames in the clip; only possible in evaluation mode."""
        rows = self.transformer.freq_new_pos_embed.shape[2]
        frames = self.transformer(self.front_end(waves))[:, 2:].unflatten(1, (rows, -1)).mean(1)
        return frames, count_clip_frames(lengths, waves.shape[1], frames.shape[1])

    def load_published(self, path: Path) -> None:
        """Load a published checkpoint into the network."""
        load_published(self.transformer, path)


def draw_remaining_positions(size: int, left_out: int, device: torch.device) -> torch.Tensor:
    """Draw the positions, in ascending order, that remain after leaving out `left_out` random ones of `size` positions.

    At least one position remains. Random numbers come from the CPU's random state; no
    number is drawn if `left_out` is 0.
    """
    if not left_out:
        return torch.arange(size, device=device)
    return on_device(torch.randperm(size)[: max(1, size - left_out)].sort().values, device)


def load_published(network: Passt, path: Path) -> None:
    """Load a published checkpoint of PaSST. Raises KitError if the file is something else.

    The tensors of the checkpoint may be under its key `model`.
    """
    weights = read_weights(path)
    if isinstance(weights.tensors.get("model"), Mapping):
        weights = read_weights(path, "model")
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            parameter.copy_(weights.checked_tensor(key, *parameter.shape))
