"""Batch norms of several processes.

Batch norms with statistics of the whole batch if it is divided among several processes.
"""

import torch
import torch.distributed.nn as over_processes
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from system.compute.distributed import exchange_group, process_count

# n processes, N values of a channel in all of them, C channels


class _Synchronised(_BatchNorm):
    """Batch norm whose mean and variance, in training with several processes, are over the values of all processes.

    torch's SyncBatchNorm has the same formulas but does not run on CPUs (torch 2.11). On GPUs SyncBatchNorm
    could be used: its kernels are fused, it gathers once forward and sums once backward (this class sums twice in each
    direction), and it stores less for the backward pass. This class is used on GPUs too, so that the tests check the
    code that runs; they compare it with one process. Neither class has been measured on several GPUs. Other
    differences: SyncBatchNorm exchanges the reciprocal of the standard deviation, this class the variance (only
    rounding), and SyncBatchNorm accepts empty parts, which do not occur here.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise the input by mean and variance over all processes."""
        if not self.training or process_count() == 1:
            plain: torch.Tensor = super().forward(input)
            return plain
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        channels = x.transpose(0, 1).flatten(1)  # (C, values of this process)
        here = channels.shape[1]
        variance, mean_here = torch.var_mean(channels, dim=1, correction=0)
        sums = _sum_over_processes(torch.cat([mean_here * here, mean_here.new_full((1,), here)]))
        mean, total = sums[:-1] / sums[-1], sums[-1].detach()
        variance = _sum_over_processes((variance + (mean_here - mean).square()) * here) / total
        self._update_running_stats(mean.detach(), (variance * total / (total - 1).clamp(min=1)).detach())
        shape = [1, -1, *[1] * (x.ndim - 2)]
        found = (x - mean.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            found = found * self.weight.view(shape) + self.bias.view(shape)
        as_given: torch.Tensor = found.to(input.dtype)
        return as_given

    def _update_running_stats(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update the running mean and variance with those of a batch, if the layer tracks them."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(variance.to(self.running_var.dtype), rate)


def _sum_over_processes(values: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all processes; the sum can be differentiated."""
    found: torch.Tensor = over_processes.all_reduce(values, group=exchange_group())
    return found


class _Synchronised1d(_Synchronised, nn.BatchNorm1d):
    pass


class _Synchronised2d(_Synchronised, nn.BatchNorm2d):
    pass


_OF = {nn.BatchNorm1d: _Synchronised1d, nn.BatchNorm2d: _Synchronised2d}


def synchronise(model: nn.Module, wanted: bool) -> None:
    """Make all batch norms of a model use statistics over all processes if `wanted`, else over this process only.

    Names and weights of the layers do not change.
    """
    pairs: dict[type[nn.Module], type[nn.Module]] = {}
    for plain, kind in _OF.items():
        pairs |= {plain: kind} if wanted else {kind: plain}
    for module in model.modules():
        if type(module) in pairs:
            module.__class__ = pairs[type(module)]
