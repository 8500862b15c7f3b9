"""EAT.

A post-norm transformer over patches of a Kaldi log-mel, with a fixed table of positions. Imports torch.

The keys of the network's tensors are the keys in the file on the Hugging Face hub without prefix.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from system.networks.eat_published import (
    BAND_PATCHES,
    EPS,
    HOP,
    MEAN,
    PADDED,
    PATCH,
    POSITIONS,
    SPREAD,
    VARIANTS,
    Columns,
    Name,
    Vector,
)
from system.networks.kaldi_fbank import KaldiFbank, column_counts
from system.networks.layers import length_mask, masked_mean
from system.networks.segment import SegmentNetwork
from system.networks.transformer_blocks import PostNormBlock
from system.networks.weights import Weights, read_weights

IMAGE = "modality_encoders.IMAGE."  # prefix of the first layers in files of fairseq
FAIRSEQ = {
    "local_encoder.": f"{IMAGE}local_encoder.",
    "extra_tokens": f"{IMAGE}extra_tokens",
    "pre_norm.": f"{IMAGE}context_encoder.norm.",
}

# S segments, N samples, T columns, L tokens, 8 for each 16 columns


class Eat(SegmentNetwork):
    """Waves at 16 kHz -> log-mel -> transformer. A frame is 160 ms, the mean over 8 bands; the vector of a segment is
    its class token, or the mean of its patch tokens.

    Columns after the end of a clip are set to 0 before the normalisation. In a log-mel, 0 is louder than silence.
    `columns` 1024: every segment has 1,024 columns, and patch tokens of the zeros count in the mean, as in the
    original's settings for 10 s. `multiple_of_16`: the columns of a clip are padded to the next multiple of 16. Later
    tokens are masked, so that the padding of a segment has no effect.
    Source: Chen et al., "EAT: Self-Supervised Pre-Training with Efficient Audio Transformer" (2024);
    github.com/cwx-worst-one/EAT at 06c1c34. On the examples in tests/golden, results differ from the original's by at
    most a relative 1e-4 (tokens) and 2e-5 (vectors).
    Deviations: the mean of the wave is not subtracted (this has no effect, since the mean of each column's samples is
    subtracted); position embeddings are computed in float64 (those of the original, in float32, differ by up to 4e-5);
    no noise and no drop path in training.
    """

    def __init__(self, network: Name, columns: Columns, vector: Vector) -> None:
        """Build the network with untrained weights. columns: How clips are padded. vector: How tokens are pooled."""
        super().__init__()
        variant = VARIANTS[network]
        self.dim, self.columns, self.vector = variant.dim, columns, vector
        self.front_end = KaldiFbank("hann")
        self.register_buffer("positions", position_table(variant.dim), persistent=False)
        self.local_encoder = nn.ModuleDict({"proj": nn.Conv2d(1, variant.dim, PATCH, PATCH)})
        self.extra_tokens = nn.Parameter(torch.zeros(1, 1, variant.dim))
        self.pre_norm = nn.LayerNorm(variant.dim, EPS)
        blocks = (PostNormBlock(variant.dim, variant.heads, variant.ffn_dim) for _ in range(variant.blocks))
        self.blocks = nn.ModuleList(blocks)
        nn.init.normal_(self.extra_tokens, std=0.02)

    def log_mel(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the normalised log-mel spectrogram of waves, including padding: (S, N) -> (S, T, 128).

        S: waves; N: samples of each. The number of columns T is 1,024 if `columns` is 1024; otherwise 1 + (N - 400) //
        160, rounded up to a multiple of 16.
        """
        columns = self.front_end(waves)
        columns = columns * length_mask(column_counts(lengths), columns.shape[1])[..., None]
        size = PADDED if self.columns == 1024 else -(-columns.shape[1] // PATCH) * PATCH
        columns = F.pad(columns, (0, 0, 0, max(0, size - columns.shape[1])))[:, :size]
        return (columns - MEAN) / SPREAD

    def tokens(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute tokens of segments, (S, 1 + L, D), class token first, and a mask, false for padding (None: no mask).

        S segments have L other tokens each, of D values, sorted by time, then by band. The mask, (S, 1 + L) bool, is
        true for tokens of the clip. It is missing (None) if `columns` is 1024, since no token is masked then.
        """
        columns = self.log_mel(waves, lengths)
        patches = self.local_encoder["proj"](columns[:, None]).flatten(2).transpose(1, 2)
        size = patches.shape[1]
        x = patches + self.positions[:size]  # type: ignore[index]
        x = self.pre_norm(torch.cat([self.extra_tokens.expand(len(x), -1, -1), x], 1))
        mask = None
        if self.columns != 1024:
            steps = (column_counts(lengths) + PATCH - 1) // PATCH
            mask = length_mask(1 + steps * BAND_PATCHES, 1 + size)
        for block in self.blocks:
            x = block(x, mask)
        return x, mask

    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute each segment's frames (means over bands), and the number of its frames that begin in the clip."""
        tokens, _ = self.tokens(waves, lengths)
        frames = tokens[:, 1:].unflatten(1, (-1, BAND_PATCHES)).mean(2)
        step = PATCH * HOP
        return frames, ((lengths + step - 1) // step).clamp(1, frames.shape[1])

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the vector of each segment: the class token, or the mean of patch tokens."""
        tokens, mask = self.tokens(waves, lengths)
        if self.vector == "cls":
            return tokens[:, 0]
        return tokens[:, 1:].mean(1) if mask is None else masked_mean(tokens[:, 1:], mask[:, 1:])

    def load_published(self, path: Path) -> None:
        """Load a published checkpoint: a model.safetensors from Hugging Face, or a checkpoint of fairseq."""
        weights = read_weights(path)
        self.load_tensors(weights.section("model") if isinstance(weights.tensors.get("model"), dict) else weights)

    def load_tensors(self, weights: Weights) -> None:
        """Copy the published tensors into the network. The keys may have the names of Hugging Face or of fairseq."""
        prefix = "model." if any(key.startswith("model.") for key in weights.tensors) else ""
        is_fairseq = any(key.startswith(prefix + IMAGE) for key in weights.tensors)
        with torch.no_grad():
            for key, parameter in self.named_parameters():
                parameter.copy_(
                    weights.checked_tensor(prefix + (_fairseq_key(key) if is_fairseq else key), *parameter.shape)
                )


def _fairseq_key(key: str) -> str:
    """Return the key of a tensor in a checkpoint of fairseq. key: The tensor's key in this network."""
    return next((new + key.removeprefix(old) for old, new in FAIRSEQ.items() if key.startswith(old)), key)


def position_table(dim: int) -> torch.Tensor:
    """Return the fixed position embeddings (6144, dim) float32: row 8 t + f is for band f and time t.

    The first half of a row encodes f, the second half encodes t. Each half has the sines, then the cosines, of f or t
    times 10000 ** (-i / quarter), for i from 0 to quarter - 1; quarter = dim / 4.
    """
    quarter = dim // 4
    rates = 10_000.0 ** (-np.arange(quarter) / quarter)
    times, bands = (part.ravel() for part in np.mgrid[:POSITIONS, :BAND_PATCHES])
    angles = [np.outer(indices, rates) for indices in (bands, times)]
    table = np.concatenate([function(part) for part in angles for function in (np.sin, np.cos)], 1)
    return torch.from_numpy(table).float()
