"""Random changes of clips in training.

Long clips are cut to random parts, and random stripes of spectrograms are masked.
"""

import torch

from system.compute.device import on_device

# B clips, N samples


def crop_longer_waves(
    waves: torch.Tensor, lengths: torch.Tensor, max_samples: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut a random part of `max_samples` samples out of every longer wave; return the waves and their new lengths.

    B waves of N samples (B, N), and lengths without padding (B,) -> the same, with new sizes.
    Random numbers come from the device's random state. No number is drawn if no wave is longer.
    """
    if waves.shape[1] <= max_samples:
        return waves, lengths
    spare = on_device((lengths - max_samples).clamp(min=0), waves.device)
    first = (torch.rand(len(waves), device=waves.device, dtype=torch.float64) * (spare + 1)).long()
    samples = first[:, None] + torch.arange(max_samples, device=waves.device)
    return waves.gather(1, samples), lengths.clamp(max=max_samples)


def draw_stripe_mask(batch: int, size: int, count: int, width: int, device: torch.device) -> torch.Tensor:
    """Draw a mask (batch, size) that is true in `count` random stripes per row, each of 0 to `width` - 1 positions.

    Random numbers come from the device's random state.
    """
    widths = torch.randint(width, (batch, count, 1), device=device).clamp(max=size)
    first = (torch.rand(batch, count, 1, device=device) * (size - widths)).long()
    positions = torch.arange(size, device=device)
    return ((positions >= first) & (positions < first + widths)).any(1)
