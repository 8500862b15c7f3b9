"""Where this machine computes, and what to do when its memory is full."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from data_tools.errors import KitError


def device_of() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


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
