"""Choose the device; report full memory."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import torch
from torch import nn

from data_tools.errors import KitError

Network = TypeVar("Network", bound=nn.Module)


def device_of(name: str | None = None) -> torch.device:
    """Return the device that a name describes.

    Args:
        name: cuda, cuda:1 (the second GPU), mps or cpu; None: CUDA if the machine has it, else the CPU. mps must be
            named, since nothing has been measured on it. With torchrun, None and cuda select the GPU with the number
            LOCAL_RANK of the environment.

    Raises:
        KitError: The name is another, or this machine does not have the device.
    """
    if name is None and not torch.cuda.is_available():
        return torch.device("cpu")
    local = os.environ.get("LOCAL_RANK", "")
    if name in (None, "cuda"):
        name = f"cuda:{local}" if local.isascii() and local.isdigit() else "cuda"
    elif name.startswith("cuda:") and os.environ.get("LOCAL_WORLD_SIZE", "1") != "1":
        raise KitError(f"--device {name} gives all processes of torchrun the same GPU; use --device cuda")
    if not re.fullmatch("cuda(:[0-9]{1,3})?|mps|cpu", name):
        raise KitError(f"unknown device {name!r}; use cuda, cuda:1 (the second GPU), mps or cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise KitError(f"no {name} on this machine: {count} CUDA devices; see nvidia-smi, or use --device cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise KitError("no mps device on this machine (only Apple processors have it); use --device cpu")
    return device


def seed_generators(seed: int) -> None:
    """Seed torch's random generators of all devices in use.

    The random numbers are the same as after `torch.manual_seed`, which takes 1 to 2 ms, because it stores the call
    stack for every kind of device that is not in use.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def moved(model: Network, device: torch.device | str) -> Network:
    """Move a model to a device, and return the model.

    Raises:
        KitError: The model computes in float64, which mps does not have.
    """
    try:
        return model.to(device)
    except TypeError as error:
        raise KitError(f"this model computes in float64, which {device} does not support; use --device cpu") from error


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy of a tensor on a device.

    CUDA copies in the background, so that `tensor` must not change later.
    """
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type != "mps")  # there the memory could be reused before the copy


@contextmanager
def tf32_products(device: torch.device) -> Iterator[None]:
    """Let float32 products on a CUDA GPU use TF32.

    TF32 has 10 bits of fraction; it is faster and less exact.
    """
    if device.type != "cuda":
        yield
        return
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def in_precision(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Compute a block in float32, bf16 or fp16."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    return torch.autocast(device.type, dtype, enabled=precision != "float32")


def gpu_of(device: torch.device) -> str | None:
    """Return the name of a GPU; None for the CPU.

    Returns:
        Such as `NVIDIA H100`; the type of a device without CUDA, such as `mps`.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return None if device.type == "cpu" else device.type


def suited_to(device: torch.device, sizes: Mapping[str, int]) -> int:
    """Return the size for a device's type, else the CPU's."""
    return sizes.get(device.type, sizes["cpu"])


@contextmanager
def memory_errors(too_large: str, cure: str) -> Iterator[None]:
    """Raise KitError if a block fills the memory.

    Args:
        too_large: Name of what does not fit into the memory of the GPU or of the machine.
        cure: What to do then.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise KitError(f"not enough GPU memory for {too_large}; {cure}") from error
    except (MemoryError, RuntimeError) as error:  # torch has no error of its own for the machine's memory
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):
            raise
        raise KitError(f"not enough memory on this machine for {too_large}; {cure}") from error
