"""ATST-Frame.

A transformer over slices of 40 ms of a log-mel. Imports torch.

The keys of the network's tensors are the keys in the published file without prefix.
"""

import functools
from pathlib import Path

import torch
from torch import nn

from system.networks.atst_frame_published import (
    BANDS,
    BLOCKS,
    DIM,
    FFN_DIM,
    FFT,
    HEADS,
    HIGH,
    HIGHEST,
    HOP,
    LOW,
    LOWEST,
    MEAN,
    MIN_POWER,
    POSITIONS,
    RANGE,
    RATE,
    RATE_INSIDE,
    SLICE,
    SPAN,
)
from system.networks.layers import pooled_over_time
from system.networks.segment import SegmentNetwork, count_clip_frames
from system.networks.transformer_blocks import EPS, Block
from system.networks.weights import read_weights

LAST_KEY = "norm_frame.weight"

# S segments, N samples, T columns, L frames


class AtstFrame(SegmentNetwork):
    """Waves at 32 kHz -> 16 kHz -> log-mel -> transformer. A frame is 40 ms; the vector of a segment is the mean of the
    frames that begin within the clip. A segment has at most 10 s.

    Values more than 80 dB below the largest value of the segment are raised to 80 dB below it. With
    `is_floor_of_batch`, the largest value of the batch is used in training, as in the original. A clip's vector then
    depends on the other clips (for a quiet and a loud clip, by up to 0.16 in the log-mel's units). Deviation: the
    original uses the largest value of the batch in evaluation, too.
    Source: Li et al., "Self-Supervised Audio Teacher-Student Transformer for Both Clip-Level and Frame-Level Tasks"
    (2023); github.com/OptimusPrimus/salsa, `models/audio/atst.py`. On the examples in tests/golden, results differ from
    the original's by at most 1e-4 (log-mel) and a relative 2e-5 (frames).
    """

    dim = DIM

    def __init__(self, is_floor_of_batch: bool) -> None:
        """Build the network with untrained weights. The class describes `is_floor_of_batch`."""
        super().__init__()
        self.is_floor_of_batch = is_floor_of_batch
        self.register_buffer("window", torch.hann_window(FFT), persistent=False)
        self.register_buffer("basis", _mel_filters(), persistent=False)
        self.patch_embed = nn.ModuleDict({"patch_embed": nn.Linear(BANDS * SLICE, DIM)})
        self.mask_embed = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.zeros(1, POSITIONS + 1, DIM))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.blocks = nn.ModuleList(Block(DIM, HEADS, FFN_DIM, qkv_bias=False) for _ in range(BLOCKS))
        self.norm_frame = nn.LayerNorm(DIM, EPS)

    def log_mel(self, waves: torch.Tensor) -> torch.Tensor:
        """Compute the log-mel spectrogram of waves for ATST-Frame.

        S waves of N samples (S, N) at 32 kHz -> (S, 64 bands, T columns), T = 1 + N // 320. Values are about -1 to 1.
        """
        window: torch.Tensor = self.window  # type: ignore[assignment]
        with torch.autocast(waves.device.type, enabled=False), torch.no_grad():
            waves = _resample_to_16_khz(waves)
            spectrum = torch.stft(waves, FFT, HOP, FFT, window, return_complex=True)
            power = torch.view_as_real(spectrum).square().sum(-1)
            decibels = 10 * (self.basis @ power).clamp(min=MIN_POWER).log10()  # type: ignore[operator]
            of_batch = self.is_floor_of_batch and self.training
            largest = decibels.amax() if of_batch else decibels.amax((1, 2), keepdim=True)
            decibels = torch.maximum(decibels, largest - RANGE).clamp(LOW, HIGH)
            return (decibels + MEAN) / SPAN * 2 - 1

    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute each segment's frames, and the number of its frames that begin before the end of the clip."""
        columns = self.log_mel(waves)
        size = columns.shape[2] // SLICE
        slices = columns[:, :, : size * SLICE].unflatten(2, (size, SLICE)).transpose(1, 2).flatten(2)
        x = self.patch_embed["patch_embed"](slices) + self.pos_embed[:, 1 : size + 1]
        for block in self.blocks:
            x = block(x)
        frames: torch.Tensor = self.norm_frame(x)
        return frames, count_clip_frames(lengths, waves.shape[1], size)

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the vector of each segment, the mean of its frames."""
        return pooled_over_time(*self.frames(waves, lengths), "mean")

    def load_published(self, path: Path) -> None:
        """Load a published checkpoint into the network.

        The tensors may be under `state_dict` and have prefixes. If the checkpoint has a teacher and a student, the
        teacher's tensors are used.
        """
        weights = read_weights(path)
        if isinstance(weights.tensors.get("state_dict"), dict):
            weights = read_weights(path, "state_dict")
        found = sorted(key for key in weights.tensors if key.endswith(LAST_KEY))
        prefix = next((key for key in found if "teacher" in key), found[0] if found else LAST_KEY)[: -len(LAST_KEY)]
        with torch.no_grad():
            for key, parameter in self.named_parameters():
                parameter.copy_(weights.checked_tensor(prefix + key, *parameter.shape))


def _resample_to_16_khz(waves: torch.Tensor) -> torch.Tensor:
    """Resample waves from 32 to 16 kHz: (S, N) -> (S, ceil(N / 2))."""
    import torchaudio

    result: torch.Tensor = torchaudio.functional.resample(waves, RATE, RATE_INSIDE)
    return result


@functools.cache
def _mel_filters() -> torch.Tensor:
    """Return the mel filters of ATST-Frame, HTK triangles without area norm: (64, 513) float32."""
    from torchaudio.functional import melscale_fbanks

    basis: torch.Tensor = melscale_fbanks(FFT // 2 + 1, LOWEST, HIGHEST, BANDS, RATE_INSIDE)
    return basis.T.contiguous()
