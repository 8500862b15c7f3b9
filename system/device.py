"""Where this machine computes, and what to do when its memory is full."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from system.errors import KitError


def device_of() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def memory_told(what: str, mend: str) -> Iterator[None]:
    """KitError, with what to do, when the GPU's memory is full."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise KitError(f"{what} does not fit the GPU's memory; {mend}") from error
