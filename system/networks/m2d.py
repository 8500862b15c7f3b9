"""M2D and M2D-CLAP.

M2D is a transformer over chunks of a log-mel. M2D-CLAP adds a block that computes an audio embedding.

Imports torch. The keys of the networks' tensors are the keys in the published files without prefixes.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from system.networks import COLUMNS_AT_ONCE
from system.networks.layers import length_mask, masked_mean
from system.networks.m2d_published import (
    BLOCKS,
    DIM,
    EPS,
    FFN_DIM,
    HEADS,
    LOWEST,
    MIN_POWER,
    NORM_STATS,
    SEMANTIC_EPS,
    SEMANTIC_FFN_DIM,
    Bands,
    Geometry,
)
from system.networks.segment import SegmentNetwork
from system.networks.transformer_blocks import Block
from system.networks.weights import Weights, read_weights

PREFIXES = ("module.ar.runtime.backbone.", "backbone.", "")

# S segments, N samples, T columns, F bands of patches, L steps of patches in time


class M2dLogMel(nn.Module):
    """S waves (S, N), N > size / 2, and their lengths -> (S, bands, T) float32, T = 1 + N // hop, natural logarithm.

    Periodic Hann window of 25 ms every 10 ms, centred. Each wave is reflected at its start and at its last sample. The
    power is summed by Slaney bands with area norm, from 50 Hz to half of the rate. The value is ln(x + 2**-23).
    Source: nnAudio 0.3.4 `MelSpectrogram`, as github.com/nttcslab/m2d calls it. Deviations: float64; the original in
    float32 differs from it by up to 1.4e-4. A wave shorter than half a window, which the original refuses, is
    followed by silence.
    """

    window: torch.Tensor
    basis: torch.Tensor

    def __init__(self, geometry: Geometry) -> None:
        """Prepare the window and the mel filters of the input geometry."""
        super().__init__()
        self.size, self.hop = geometry.size, geometry.hop
        self.register_buffer("window", torch.hann_window(self.size, dtype=torch.float64), persistent=False)
        self.register_buffer("basis", mel_basis(geometry), persistent=False)

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the log-mel spectrograms of waves."""
        with torch.autocast(waves.device.type, enabled=False), torch.no_grad():
            columns = self._reflect_ends(waves, lengths).unfold(1, self.size, self.hop)
            parts = columns.split(max(1, COLUMNS_AT_ONCE // len(waves)), 1)
            return torch.cat([self._log_mel(part.double()) for part in parts], 1).transpose(1, 2)

    def _reflect_ends(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Extend each wave by half a window of reflected samples at both ends: (S, N) -> (S, N + size)."""
        half = self.size // 2
        indices = torch.arange(-half, waves.shape[1] + half, device=waves.device).abs()[None]
        last = lengths.clamp(min=half + 1)[:, None] - 1
        mirrored = (2 * last - indices).clamp(min=0)
        return waves.gather(1, torch.where(indices > last, mirrored, indices))

    def _log_mel(self, columns: torch.Tensor) -> torch.Tensor:
        """Compute the log-mel of columns of samples: (S, T, size) -> (S, T, bands) float32."""
        power = torch.view_as_real(torch.fft.rfft(columns * self.window)).square().sum(-1)
        return (power @ self.basis + MIN_POWER).log().float()


def mel_basis(geometry: Geometry) -> torch.Tensor:
    """Return the mel filters, (size // 2 + 1, bands) float64: Slaney scale and area norm."""
    from transformers.audio_utils import mel_filter_bank

    rate = geometry.rate
    basis = mel_filter_bank(geometry.size // 2 + 1, geometry.bands, LOWEST, rate / 2, rate, "slaney", "slaney")
    return torch.from_numpy(basis).double()


class M2d(SegmentNetwork):
    """Waves -> log-mel -> transformer. Input: segments, which are clips or pieces of clips, padded to one length.

    A frame is made from all patches of a time step. With `bands` = `stacked`, it has their vectors side by side (3,840
    values for five bands of patches); with `mean`, it is the mean of the vectors (768 values). The vector of a segment
    is the mean of its frames before the padding.

    The log-mel is padded with zeros, in normalised units, to a multiple of the patch's columns, and divided into chunks
    of U columns, which the transformer processes independently. If U is no multiple of the patch's columns, the last
    columns of each full chunk are ignored (9 of 1,001). The padding is excluded from attention, so it has no effect.
    Source: Niizumi et al., "Masked Modeling Duo" (2024); github.com/nttcslab/m2d at f0c4128,
    `examples/portable_m2d.py`. On the examples in tests/golden, results differ from the original's by at most 5e-4
    (log-mel) and a relative 2e-5 (frames). Deviations: frame k of a chunk begins k time steps after its start. In the
    original, the time of frame k is k times the duration divided by the number of frames, up to 0.16 s earlier. If
    padding would make the last chunk longer than U, it gets as many steps as a full chunk; the original fails. Training
    masks no patches at random.
    """

    dim: int

    def __init__(self, geometry: Geometry, bands: Bands) -> None:
        """Build the network with untrained weights. The class describes `bands`."""
        super().__init__()
        self.geometry, self.bands = geometry, bands
        self.dim = DIM * geometry.rows if bands == "stacked" else DIM
        self.front_end = M2dLogMel(geometry)
        self.register_buffer("norm_stats", torch.tensor(NORM_STATS))
        patch = geometry.patch_bands, geometry.patch_columns
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(1, DIM, patch, patch)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + geometry.rows * geometry.steps, DIM))
        self.blocks = nn.ModuleList(Block(DIM, HEADS, FFN_DIM, eps=EPS) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(DIM, EPS)
        for table in (self.cls_token, self.pos_embed):
            nn.init.normal_(table, std=0.02)

    def log_mel(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the normalised log-mel spectrogram of waves: (S, N) -> (S, bands, T), zeros after each clip."""
        mean, deviation = self.norm_stats.float().unbind()  # type: ignore[operator]
        columns = (self.front_end(waves, lengths) - mean) / deviation
        counts = lengths // self.geometry.hop + 1
        result: torch.Tensor = columns * length_mask(counts, columns.shape[2])[:, None]
        return result

    def tokens(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute tokens, (S, F bands, L time steps, 768), and the number of time steps within each clip, (S,) >= 1."""
        columns, geometry = self.log_mel(waves, lengths), self.geometry
        width = geometry.patch_columns
        counts = self._columns_to_steps(lengths // geometry.hop + 1)
        rest = columns.shape[2] % geometry.columns
        columns = F.pad(columns, (0, -rest % width))
        chunks = [part for part in columns.split(geometry.columns, 2) if part.shape[2] >= width]
        firsts = (number * geometry.steps for number in range(len(chunks)))
        outputs = [self._encode_chunk(part, counts - first) for part, first in zip(chunks, firsts, strict=True)]
        return torch.cat(outputs, 2), counts

    def _columns_to_steps(self, columns: torch.Tensor) -> torch.Tensor:
        """Convert numbers of spectrogram columns of clips to numbers of time steps (patches in time): (S,) -> (S,)."""
        geometry = self.geometry
        full = columns // geometry.columns
        rest = columns - full * geometry.columns
        last = (rest + geometry.patch_columns - 1) // geometry.patch_columns
        result: torch.Tensor = full * geometry.steps + last.clamp(max=geometry.steps)
        return result

    def _encode_chunk(self, columns: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Return the transformer's tokens of a chunk (S, bands, T); tokens after `steps` (S,) time steps are masked.

        Returns: (S, F, T // patch columns, 768).
        """
        patches = self.patch_embed["proj"](columns[:, None]).permute(0, 2, 3, 1)  # (S, F, L, 768)
        rows, size = patches.shape[1:3]
        table = self.pos_embed[:, 1:].unflatten(1, (rows, self.geometry.steps))[:, :, :size]
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(patches), -1, -1)
        x = torch.cat([first, (patches + table).flatten(1, 2)], 1)
        mask = torch.cat([first.new_ones(len(x), 1).bool(), length_mask(steps, size).repeat(1, rows)], 1)
        for block in self.blocks:
            x = block(x, mask)
        result: torch.Tensor = self.norm(x)[:, 1:].unflatten(1, (rows, size))
        return result

    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute each segment's frames, and the number of its frames within the clip."""
        tokens, counts = self.tokens(waves, lengths)
        return tokens.transpose(1, 2).flatten(2) if self.bands == "stacked" else tokens.mean(1), counts

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the vector of each segment, the mean of its frames."""
        frames, counts = self.frames(waves, lengths)
        return masked_mean(frames.float(), length_mask(counts, frames.shape[1]))

    def load_published(self, path: Path) -> None:
        """Load a published checkpoint: a .pth file, or a .zip that contains a .pth file."""
        weights = read_weights(path)
        self.load_tensors(weights.section("model") if isinstance(weights.tensors.get("model"), dict) else weights)

    def load_tensors(self, weights: Weights) -> None:
        """Copy the published tensors into the network. If `norm_stats` is missing, the values of 2022 are used."""
        keys = weights.tensors
        prefix = next((one for one in PREFIXES if f"{one}cls_token" in keys), "")
        self.norm_stats.copy_(torch.tensor(NORM_STATS))  # type: ignore[operator]
        with torch.no_grad():
            for key, value in self.state_dict().items():
                if key != "norm_stats" or prefix + key in keys:
                    value.copy_(weights.checked_tensor(prefix + key, *value.shape))


class M2dClap(M2d):
    """M2D, then one transformer block over the tokens of all chunks and one additional token (the semantic token). The
    vector of a segment is the block's output for the semantic token (768 values), the audio embedding of M2D-CLAP 2025.
    A frame is the mean of the tokens over the bands.

    Source: Niizumi et al., "M2D-CLAP" (2025); github.com/nttcslab/m2d at f0c4128. On the examples in tests/golden,
    results differ from the original's by at most a relative 2e-5. Deviations are those of `M2d`.
    """

    def __init__(self, geometry: Geometry) -> None:
        """Build M2D, and the block that computes the embedding of a segment from its tokens, with untrained weights."""
        super().__init__(geometry, "mean")
        self.audio_proj = _Semantic()

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the audio embedding of each segment."""
        tokens, counts = self.tokens(waves, lengths)
        mask = length_mask(counts, tokens.shape[2]).repeat(1, tokens.shape[1])
        result: torch.Tensor = self.audio_proj(tokens.flatten(1, 2), mask)
        return result


class _Semantic(nn.Module):
    """One block with a single head, which computes a semantic token: (S, L, 768), mask (S, L) -> (S, 768)."""

    def __init__(self) -> None:
        """Build the block with untrained weights."""
        super().__init__()
        self.sem_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.sem_blocks = nn.ModuleList([Block(DIM, 1, SEMANTIC_FFN_DIM, eps=SEMANTIC_EPS)])
        self.norm = nn.LayerNorm(DIM, SEMANTIC_EPS)
        nn.init.normal_(self.sem_token, std=0.02)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Compute one summary vector (S, 768) of a segment's tokens; tokens are ignored where the mask is false."""
        x = torch.cat([self.sem_token.expand(len(tokens), -1, -1), tokens], 1)
        x = self.sem_blocks[0](x, F.pad(mask, (1, 0), value=True))
        result: torch.Tensor = self.norm(x[:, 0])
        return result
