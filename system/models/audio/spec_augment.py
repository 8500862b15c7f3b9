"""SpecAugment: stripes of a log-mel that are left out in training."""

import torch

from system.models.audio.panns import SpecAugment

# B clips, T columns


def spec_augment(columns: torch.Tensor, settings: SpecAugment) -> torch.Tensor:
    """(B, 1, T, bands) with stripes of every clip set to 0, which is the mean behind a batch norm.

    A stripe's width is one of 0 to `width` - 1, its place any that leaves it inside; stripes may overlap. Draws from
    the random state of the device.
    Source: Park et al., SpecAugment (2019), as torchlibrosa 0.1.0 has it. Deviations: stripes too wide for a short clip
    take all of it, where torchlibrosa stops with an error.
    """
    batch, _, length, bands = columns.shape
    in_time = _stripes(batch, length, settings.time_stripes, settings.time_width, columns.device)
    in_bands = _stripes(batch, bands, settings.band_stripes, settings.band_width, columns.device)
    return columns.masked_fill((in_time[:, :, None] | in_bands[:, None, :])[:, None], 0.0)


def _stripes(batch: int, size: int, count: int, width: int, device: torch.device) -> torch.Tensor:
    """(B, size) bool, true inside of any of `count` stripes a row."""
    widths = torch.randint(width, (batch, count, 1), device=device).clamp(max=size)
    first = (torch.rand(batch, count, 1, device=device) * (size - widths)).long()
    positions = torch.arange(size, device=device)
    return ((positions >= first) & (positions < first + widths)).any(1)
