"""Batch norms whose statistics are of the whole batch, where several processes have a part of it each."""

import torch
import torch.distributed.nn as over_processes
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from system.compute.distributed import count, exchange_group

# n processes, N values of a channel in all of them, C channels


class _Synchronised(_BatchNorm):
    """In training, of several processes: mean and variance over the values of all of them, with their gradients.

    torch's own SyncBatchNorm gives the same and knows GPUs alone.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or count() == 1:
            plain: torch.Tensor = super().forward(input)
            return plain
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        channels = x.transpose(0, 1).flatten(1)  # (C, values of this process)
        here = x.new_tensor(float(channels.shape[1]))
        total = _sum(here.clone())
        variance, mean_here = torch.var_mean(channels, dim=1, correction=0)
        mean = _sum(mean_here * here) / total
        variance = _sum((variance + (mean_here - mean).square()) * here) / total
        self._remember(mean.detach(), (variance * total / (total - 1).clamp(min=1)).detach())
        shape = [1, -1, *[1] * (x.ndim - 2)]
        found = (x - mean.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            found = found * self.weight.view(shape) + self.bias.view(shape)
        as_given: torch.Tensor = found.to(input.dtype)
        return as_given

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Into the running statistics."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(variance.to(self.running_var.dtype), rate)


def _sum(values: torch.Tensor) -> torch.Tensor:
    """Over all processes, with its gradient."""
    found: torch.Tensor = over_processes.all_reduce(values, group=exchange_group())
    return found


class _Synchronised1d(_Synchronised, nn.BatchNorm1d):
    pass


class _Synchronised2d(_Synchronised, nn.BatchNorm2d):
    pass


_OF = {nn.BatchNorm1d: _Synchronised1d, nn.BatchNorm2d: _Synchronised2d}


def synchronise(model: nn.Module, wanted: bool) -> None:
    """Have all batch norms of a model see the batches of all processes, or their own part alone; names and weights
    stay."""
    pairs: dict[type[nn.Module], type[nn.Module]] = {}
    for plain, kind in _OF.items():
        pairs |= {plain: kind} if wanted else {kind: plain}
    for module in model.modules():
        if type(module) in pairs:
            module.__class__ = pairs[type(module)]
