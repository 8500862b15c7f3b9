"""Several GPUs, with one process each.

Start them by `torchrun --standalone --nproc-per-node 2 -m system run RECIPE`.

Every process draws the same batches, embeds its share of the clips and captions, gets the embeddings of all, and
computes the loss of the whole batch; the gradients are summed. The first process (rank 0) makes data, validates, ranks
and writes files, while the others wait. Torch is only imported for computations.
"""

import atexit
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from data_tools.cli import ranks
from data_tools.errors import KitError, SaidElsewhere

if TYPE_CHECKING:
    import torch

PATIENCE = timedelta(days=1)  # the first process may compute frames, validate or rank while the others wait

T = TypeVar("T")
_connected = False
log = logging.getLogger(__name__)


def process_index() -> int:
    """Return the rank of this process, from 0."""
    return ranks()[0] if _connected else 0


def process_count() -> int:
    """Return the number of connected processes; 1 without torchrun."""
    return ranks()[1] if _connected else 1


def is_first() -> bool:
    """Return whether this is the process that writes all files."""
    return process_index() == 0


@contextmanager
def processes(device: "torch.device | None") -> Iterator[None]:
    """Connect the processes that torchrun has started, if any.

    Args:
        device: None: the default.
    """
    global _connected
    if ranks()[1] == 1 or _connected:
        yield
        return
    import torch
    import torch.distributed as dist

    from system.devices import device_of

    if (device or device_of()).type == "cuda":
        torch.cuda.set_device(device or device_of())
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_initialized() else "gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise KitError(
            f"the processes cannot connect ({reason}); start all by torchrun, or unset WORLD_SIZE"
        ) from error
    _connected = True
    if is_first():
        log.info("%d processes compute together", process_count())
    try:
        yield
    except RuntimeError as error:  # gloo and nccl have no error of their own for a process that is gone
        if not any(name in str(error) for name in ("gloo", "NCCL", "Connection")):
            raise
        raise KitError(f"rank {process_index()} has lost another process; run the same command again") from error
    finally:
        _connected = False
        dist.destroy_process_group()


def gather(value: T) -> list[T]:
    """Return the values of all processes, ordered by their ranks."""
    if process_count() == 1:
        return [value]
    import torch.distributed as dist

    found: list[Any] = [None] * process_count()
    dist.all_gather_object(found, value)
    return found


def on_first(function: Callable[[], T]) -> T:
    """Call a function in the first process alone.

    All processes get its result, or end with its error.
    """
    if process_count() == 1:
        return function()
    import torch.distributed as dist

    result: list[Any] = [None, False]
    try:
        if is_first():
            result = [function(), True]
    finally:
        dist.broadcast_object_list(result)
    if not result[1]:
        raise SaidElsewhere("the first process has ended with an error; read its message")
    found: T = result[0]
    return found


@contextmanager
def first_before_others() -> Iterator[None]:
    """Run a block in the first process, then elsewhere.

    The others read what the first one has stored.
    """
    if not is_first():
        on_first(lambda: None)
        yield
        return
    is_done = False
    try:
        yield
        is_done = True
    finally:
        if process_count() > 1:
            import torch.distributed as dist

            dist.broadcast_object_list([None, is_done])


def sum_gradients(parameters: "Iterable[torch.nn.Parameter]") -> None:
    """Replace every gradient by its sum over all processes.

    A gradient that no process has stays None.
    """
    if process_count() == 1:
        return
    import torch
    import torch.distributed as dist

    parameters = list(parameters)
    having = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
    dist.all_reduce(having, dist.ReduceOp.MAX)
    for parameter, some in zip(parameters, having.tolist(), strict=True):
        if some:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        flat = torch.cat([one.flatten() for one in gradients])
        dist.all_reduce(flat)
        for one, values in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            one.copy_(values.view_as(one))


def broadcast_from_first(model: "torch.nn.Module") -> None:
    """Copy weights and statistics from the first process.

    Otherwise the rounding errors of the processes would add up.
    """
    if process_count() > 1:
        import torch.distributed as dist

        for value in model.state_dict().values():
            dist.broadcast(value, 0)


def exit_process(status: int) -> NoReturn:
    """End the command line.

    With torchrun it ends at once, since a thread of gloo may crash in Python's own shutdown.
    """
    if "WORLD_SIZE" not in os.environ:
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
