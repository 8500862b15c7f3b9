"""BEATs.

A post-norm transformer over patches of a Kaldi log-mel. Attention has a gated bias that depends on the distance of two
patches. Imports torch.

The keys of the network's tensors are those of the published file, except that the table of distances is stored only
once.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from data_tools.errors import KitError
from system.networks.beats_published import (
    BAND_PATCHES,
    BLOCKS,
    BUCKETS,
    DIM,
    EPS,
    FFN_DIM,
    GROUPS,
    HEADS,
    KERNEL,
    MAX_DISTANCE,
    MEAN,
    PATCH,
    PATCH_DIM,
    SCALE,
    SPREAD,
    Padding,
    config_problems,
)
from system.networks.kaldi_fbank import KaldiFbank, column_counts
from system.networks.layers import length_mask, masked_mean
from system.networks.segment import SegmentNetwork
from system.networks.weights import Weights, read_weights

DEPTH_SCALE = (2 * 12) ** 0.25  # DeepNorm: factor of the input of each layer norm's sum
INITIAL_GAIN = (8 * 12) ** -0.25  # DeepNorm: of new weights
TABLE = "relative_attention_bias.weight"
OF_FIRST_LAYER = "encoder.layers.0.self_attn."
NEW_NAMES = {"weight_g": "parametrizations.weight.original0", "weight_v": "parametrizations.weight.original1"}

# S segments, N samples, T columns, L tokens, 8 for each 16 columns


class Beats(SegmentNetwork):
    """Waves at 16 kHz -> log-mel -> transformer. A frame is 160 ms, the mean over 8 bands; the vector of a segment is
    the mean of its tokens.

    Padding `alone`: a clip of n columns has 8 (n // 16) tokens, and all tokens of padding are masked, so that padding
    has no effect. Padding `original`: the mask that the original uses in batches. This mask does not end exactly with
    the clip: some bands of the clip's last time step may be masked, and the silence after the clip changes the tokens
    (by up to 0.024 of the largest value in a clip of 5.5 s).
    Source: Chen et al., "BEATs: Audio Pre-Training with Acoustic Tokenizers" (2023); github.com/microsoft/unilm,
    `beats/` at 768a3c8. On the examples in tests/golden, results differ from the original's by at most a relative 1e-4
    (tokens) and 2e-5 (their mean). Deviations: no dropout and no layer drop in training (the original: layer drop
    0.05); the predictor of a fine-tuned file is left out. `gradient_decay` multiplies the gradient before each block,
    as in the original.
    """

    dim = DIM

    def __init__(self, padding: Padding, gradient_decay: float = 1.0) -> None:
        """Build the network with random weights. The class describes `padding` and `gradient_decay`."""
        super().__init__()
        self.padding = padding
        self.front_end = KaldiFbank("povey", SCALE)
        self.patch_embedding = nn.Conv2d(1, PATCH_DIM, PATCH, PATCH, bias=False)
        self.layer_norm = nn.LayerNorm(PATCH_DIM, EPS)
        self.post_extract_proj = nn.Linear(PATCH_DIM, DIM)
        self.encoder = _Encoder(gradient_decay)

    def log_mel(self, waves: torch.Tensor) -> torch.Tensor:
        """Compute the normalised log-mel spectrogram of waves: (S, N) -> (S, T, 128), T = 1 + (N - 400) // 160."""
        columns: torch.Tensor = (self.front_end(waves) - MEAN) / SPREAD
        return columns

    def tokens(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the tokens of segments, and a mask that is true for tokens of the clip, not of padding.

        The L tokens of each of S segments are sorted by time, then by band from low to high.
        Returns: The tokens (S, L, 768); and the mask (S, L) bool, with at least one true value per row.
        """
        columns = self.log_mel(waves)
        patches = self.patch_embedding(columns[:, None]).flatten(2).transpose(1, 2)
        x = self.post_extract_proj(self.layer_norm(patches))
        mask = self._token_mask(lengths, waves.shape[1], columns.shape[1], x.shape[1])
        return self.encoder(x, mask), mask

    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute each segment's frames (means over bands), and the number of its frames within the clip."""
        tokens, mask = self.tokens(waves, lengths)
        by_band = mask.unflatten(1, (-1, BAND_PATCHES))[..., None]
        total = (tokens.unflatten(1, (-1, BAND_PATCHES)) * by_band).sum(2)
        counts = by_band.any(2).sum((1, 2))
        return total / by_band.sum(2).clamp(min=1), counts

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the vector of each segment, the mean of its tokens."""
        tokens, mask = self.tokens(waves, lengths)
        return masked_mean(tokens.float(), mask)

    def _token_mask(self, lengths: torch.Tensor, samples: int, columns: int, tokens: int) -> torch.Tensor:
        """Return a mask that is true for tokens of the clip, not of padding: (S,) lengths -> (S, tokens) bool."""
        if self.padding == "alone":
            steps = (column_counts(lengths) // PATCH).clamp(min=1)
            return length_mask(steps * BAND_PATCHES, tokens)
        return _shorten_mask(_shorten_mask(length_mask(lengths, samples), columns), tokens)

    def load_published(self, path: Path) -> None:
        """Load a published checkpoint, pre-trained or fine-tuned. Raises KitError if its `cfg` has other settings."""
        content = read_weights(path)
        if problems := config_problems(content.section("cfg").tensors):
            raise KitError(
                f"{path} is not a supported checkpoint of BEATs: {'; '.join(problems)}; name a checkpoint of BEATs "
                "iter1, iter2, iter3 or iter3+"
            )
        self.load_tensors(content.section("model"))

    def load_tensors(self, weights: Weights) -> None:
        """Copy the published tensors into the network. Weight norms may have torch's old or new tensor names."""
        with torch.no_grad():
            for key, parameter in self.named_parameters():
                published = key.replace(f"encoder.{TABLE}", OF_FIRST_LAYER + TABLE)
                base, _, part = published.rpartition(".")
                if published not in weights.tensors and part in NEW_NAMES:
                    published = f"{base}.{NEW_NAMES[part]}"
                parameter.copy_(weights.checked_tensor(published, *parameter.shape))


def _shorten_mask(mask: torch.Tensor, size: int) -> torch.Tensor:
    """Shorten a mask to `size` values per row, each true if any of the values it replaces is true: (S, N) -> (S, size).

    S: segments. Each value replaces N // size consecutive input values, as in BEATs; the last N mod size input values
    are ignored.
    """
    step = mask.shape[1] // size
    result: torch.Tensor = mask[:, : size * step].unflatten(1, (size, step)).any(2)
    return result


class _Encoder(nn.Module):
    """Positions by a convolution, a layer norm, and blocks that share the table of distances."""

    def __init__(self, gradient_decay: float) -> None:
        """Build the layers. gradient_decay: Factor of the gradient before each block."""
        super().__init__()
        self.gradient_decay = gradient_decay
        self.pos_conv = nn.ModuleList([_Positions()])
        self.layer_norm = nn.LayerNorm(DIM, EPS)
        self.relative_attention_bias = nn.Embedding(BUCKETS, HEADS)
        self.layers = nn.ModuleList(_Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Encode tokens (S, L, 768). Tokens for which `mask` (S, L) is false are ignored."""
        x = x.masked_fill(~mask[..., None], 0.0)
        x = self.layer_norm(x + self.pos_conv[0](x))
        indices = torch.arange(x.shape[1], device=x.device)
        bias = self.relative_attention_bias(distance_buckets(indices - indices[:, None])).permute(
            2, 0, 1
        )  # (heads, L, L)
        for layer in self.layers:
            if self.gradient_decay < 1:
                x = x * self.gradient_decay + x.detach() * (1 - self.gradient_decay)
            x = layer(x, bias, mask)
        return x


class _Positions(nn.Module):
    """Grouped convolution over tokens, with weights normalised per kernel position: (S, L, 768) -> the same shape."""

    def __init__(self) -> None:
        """Create the kernel of the convolution: its bias, its norms (weight_g) and its directions (weight_v)."""
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(DIM))
        self.weight_g = nn.Parameter(torch.ones(1, 1, KERNEL))
        self.weight_v = nn.Parameter(torch.empty(DIM, DIM // GROUPS, KERNEL))
        nn.init.normal_(self.weight_v, std=math.sqrt(4 / (KERNEL * DIM)))
        nn.init.constant_(self.weight_g, math.sqrt(4 / KERNEL * DIM / GROUPS))  # about the norm of weight_v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve the tokens; the last output is dropped, because the kernel has an even size."""
        weight = self.weight_v * (self.weight_g / self.weight_v.norm(dim=(0, 1), keepdim=True))
        convolved = F.conv1d(x.transpose(1, 2), weight, self.bias, padding=KERNEL // 2, groups=GROUPS)
        return F.gelu(convolved[..., :-1]).transpose(1, 2)


def distance_buckets(offsets: torch.Tensor) -> torch.Tensor:
    """Return the bucket number of each distance j - i (key j, query i): one per distance below 80, then logarithmic."""
    half, exact = BUCKETS // 2, BUCKETS // 4
    distance = offsets.abs()
    ratio = (distance.clamp(min=1).float() / exact).log() / math.log(MAX_DISTANCE / exact)
    far = (exact + (ratio * (half - exact)).long()).clamp(max=half - 1)
    return half * (offsets > 0).long() + torch.where(distance < exact, distance, far)


class _Attention(nn.Module):
    """Self-attention with a bias by distance, which each query scales by a gate."""

    def __init__(self) -> None:
        """Build the projections of query, key, value and output, and the gate of the bias."""
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.v_proj, self.out_proj = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.grep_linear = nn.Linear(DIM // HEADS, 8)
        self.grep_a = nn.Parameter(torch.ones(1, HEADS, 1, 1))
        for layer in (self.v_proj, self.out_proj):
            nn.init.xavier_normal_(layer.weight, INITIAL_GAIN)

    def forward(self, x: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Apply self-attention to tokens (S, L, 768). bias: (heads, L, L). mask: (S, L), false for ignored tokens."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (layer(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for layer in layers)
        gated = (self._gate(query) * bias).masked_fill(~mask[:, None, None], -torch.inf).to(query.dtype)
        attended = F.scaled_dot_product_attention(query, key, value, gated)
        result: torch.Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return result

    def _gate(self, query: torch.Tensor) -> torch.Tensor:
        """Compute each query's gate, the factor of its bias: (S, heads, L, 64) -> (S, heads, L, 1)."""
        first, second = self.grep_linear(query).unflatten(3, (2, 4)).sum(-1).sigmoid().split(1, 3)
        return first * (second * self.grep_a - 1) + 2  # type: ignore[no-any-return]


class _Block(nn.Module):
    """Attention, then feed-forward, each added to its scaled input and followed by a layer norm (DeepNorm)."""

    def __init__(self) -> None:
        """Build the attention, the feed-forward layers and their layer norms."""
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = _Attention(), nn.LayerNorm(DIM, EPS)
        self.fc1, self.fc2 = nn.Linear(DIM, FFN_DIM), nn.Linear(FFN_DIM, DIM)
        self.final_layer_norm = nn.LayerNorm(DIM, EPS)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_normal_(layer.weight, INITIAL_GAIN)

    def forward(self, x: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Apply attention, with its `bias`, and feed-forward layers to tokens (S, L, 768). False `mask`: ignored."""
        x = self.self_attn_layer_norm(DEPTH_SCALE * x + self.self_attn(x, bias, mask))
        result: torch.Tensor = self.final_layer_norm(DEPTH_SCALE * x + self.fc2(F.gelu(self.fc1(x))))
        return result
