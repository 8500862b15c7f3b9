"""Run frozen networks exactly and fast.

Arithmetic is exact, the memory layout is fast, and results do not depend on the division into batches.

Imports torch, so experts only import this module inside `load`.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from system.networks.segment import group_by_length

Network = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Context manager for exact results: no gradients, no TF32, deterministic algorithms only."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def move_to_device(network: nn.Module, device: torch.device) -> Network:
    """Move a network to a device in the fastest memory layout, and return a function that applies the network.

    On a CPU, weights and activations have oneDNN's blocked layout in all layers. This is 1.1 to 1.3 times as fast as
    channels_last. On other devices, weights and activations are channels_last.
    """
    network = network.eval().requires_grad_(False)
    if device.type == "cpu" and torch.backends.mkldnn.is_available():
        for module in network.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.to_mkldnn(), requires_grad=False))
        return lambda x: network(x.to_mkldnn()).to_dense()
    network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return lambda x: network(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x)


def apply_by_rows(
    series: Sequence[np.ndarray], size: int, compute: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Apply the function `compute` to the rows of several arrays, in batches of `size`; return one result per array.

    A batch may have rows of several arrays.
    series: One or more arrays (n, ...), n >= 1. Only the rows of one batch are copied at a time, so that an array may
    be a view of a large file. Returns: One array of results per array of `series`.
    """
    rows = itertools.chain.from_iterable(series)
    results = []
    while batch := list(itertools.islice(rows, size)):
        results.append(compute(np.stack(batch)))
    return np.split(np.concatenate(results), np.cumsum([len(one) for one in series])[:-1])


def apply_by_length(
    waves: Sequence[np.ndarray], max_samples: int, compute: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Apply `compute` to waves in batches: waves of one length, `max_samples` samples in all; return a result per wave.

    A batch is an array (B, N) of B waves of N samples. The results are in the order of `waves`.
    """
    results: list[np.ndarray] = [np.empty(0)] * len(waves)
    for indices in group_by_length([len(wave) for wave in waves], max_samples):
        for index, frames in zip(indices, compute(np.stack([waves[index] for index in indices])), strict=True):
            results[index] = frames
    return results


def compute_in_pieces(
    network: Network, x: torch.Tensor, axis: int, stride: int, halo: int, max_size: int
) -> torch.Tensor:
    """Apply a network to overlapping pieces of `x`, each for at most `max_size` outputs along `axis`; join the outputs.

    network: Network that computes one output per `stride` input positions of the axis. An output depends on the input
    of its own positions, and of the positions of at most `halo` outputs before and after it. Each piece is computed
    with `halo` more outputs on either side, which are then dropped. The result thus equals the output for the whole
    input, except for float rounding.
    """
    size = x.shape[axis]
    results = []
    for first in range(0, max(1, size // stride), max_size):
        begin = max(0, first - halo)
        is_last = first + max_size >= size // stride
        end = size if is_last else min(size, (first + max_size + halo) * stride)
        part = network(x.narrow(axis, begin * stride, end - begin * stride))
        length = part.shape[axis] - (first - begin) if is_last else max_size
        results.append(part.narrow(axis, first - begin, length))
    return torch.cat(results, axis)
