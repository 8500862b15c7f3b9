"""What training draws for every clip: a part of a long one, and stripes that are masked."""

import torch

# B clips, N samples


def random_parts(waves: torch.Tensor, lengths: torch.Tensor, max_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """waves (B, N), real lengths (B,) -> the same with a random part of `max_samples` samples of every longer one.

    Draws from the random state of the device, nothing where no wave is longer.
    """
    if waves.shape[1] <= max_samples:
        return waves, lengths
    spare = (lengths - max_samples).clamp(min=0)
    first = (torch.rand(len(waves), device=waves.device, dtype=torch.float64) * (spare + 1)).long()
    samples = first[:, None] + torch.arange(max_samples, device=waves.device)
    return waves.gather(1, samples), lengths.clamp(max=max_samples)


def stripes(batch: int, size: int, count: int, width: int, device: torch.device) -> torch.Tensor:
    """(B, size) bool, true inside of any of `count` stripes a row, each of 0 to `width` - 1.

    Draws from the random state of the device.
    """
    widths = torch.randint(width, (batch, count, 1), device=device).clamp(max=size)
    first = (torch.rand(batch, count, 1, device=device) * (size - widths)).long()
    positions = torch.arange(size, device=device)
    return ((positions >= first) & (positions < first + widths)).any(1)
