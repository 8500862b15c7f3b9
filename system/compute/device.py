"""Where this machine computes, and what to do when its memory is full."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from data_tools.errors import KitError

Network = TypeVar("Network", bound=nn.Module)


def device_of(name: str | None = None) -> torch.device:
    """The device to compute on: cuda, cuda:1 (the second GPU), mps, or cpu; by default CUDA where there is one, else
    the CPU: nothing has been measured on mps, so it is used only where it is named. Of several processes that torchrun
    started on this machine each has by default, and by cuda, the GPU of its number, LOCAL_RANK of the environment.

    Raises KitError for another name, and for a device that this machine does not have.
    """
    if name is None and not torch.cuda.is_available():
        return torch.device("cpu")
    local = os.environ.get("LOCAL_RANK", "")
    if name in (None, "cuda"):
        name = f"cuda:{local}" if local.isascii() and local.isdigit() else "cuda"
    elif name.startswith("cuda:") and os.environ.get("LOCAL_WORLD_SIZE", "1") != "1":
        raise KitError(f"--device {name} would be one GPU for all processes of torchrun; say --device cuda")
    if not re.fullmatch("cuda(:[0-9]{1,3})?|mps|cpu", name):
        raise KitError(f"no device is called {name!r}; use cuda, cuda:1 (the second GPU), mps or cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise KitError("no CUDA device on this machine: see what nvidia-smi prints, or use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise KitError(f"no {name} on this machine: its last CUDA device is cuda:{torch.cuda.device_count() - 1}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise KitError("no mps device on this machine: it is of Apple's processors; use --device cpu")
    return device


def moved(model: Network, device: torch.device) -> Network:
    """The model on a device. KitError for one that computes in float64, which mps lacks."""
    try:
        return model.to(device)
    except TypeError as error:
        raise KitError(f"this model computes in float64, which {device.type} lacks; use --device cpu") from error


def gpu_of(device: torch.device) -> str | None:
    """The name of the GPU that a device is; None for the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return None if device.type == "cpu" else device.type


def suited_to(device: torch.device, sizes: Mapping[str, int]) -> int:
    """Of sizes for "cpu" and "cuda", the one of a device; another device than these takes that of the CPU."""
    return sizes.get(device.type, sizes["cpu"])


@contextmanager
def memory_errors(what: str, hint: str) -> Iterator[None]:
    """KitError, with what to do, when the memory of the GPU or of the machine is full."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise KitError(f"{what} does not fit the GPU's memory; {hint}") from error
    except (MemoryError, RuntimeError) as error:
        if not _is_full(error):
            raise
        raise KitError(f"{what} does not fit this machine's memory; {hint}") from error


def _is_full(error: Exception) -> bool:
    """Whether numpy or Python found no memory, or torch: on a CPU it has no exception of its own for it."""
    return isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
