"""Several processes that compute one result, as torchrun starts them; without torchrun there is one.

torchrun and torch.distributed do the work: which processes there are comes from the environment (RANK, WORLD_SIZE,
LOCAL_RANK), tensors go over nccl between GPUs and over gloo between CPUs. The first process (rank 0) writes all files.
Torch is imported by those who compute.
"""

import atexit
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from data_tools.errors import KitError, SaidElsewhere

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

PATIENCE = timedelta(days=2)  # the first may compute frames while others wait; torchrun ends those of a dead one
POLL = 0.02  # seconds between two looks for the other processes
BUCKET = 1 << 23  # numbers of gradients that are summed at a time: 32 MiB

T = TypeVar("T")
log = logging.getLogger(__name__)
received = {"embeddings": 0, "gradients": 0}  # bytes that this process got from all processes together, since it began
_group = {"count": 1, "index": 0, "launcher": 0}


def count() -> int:
    """How many processes there are."""
    return _group["count"]


def index() -> int:
    """Which of them this one is, from 0."""
    return _group["index"]


def is_first() -> bool:
    """Whether this is the process that writes."""
    return index() == 0


def is_orphan() -> bool:
    """Whether torchrun is gone, which would have ended this process with the others."""
    return count() > 1 and os.getppid() != _group["launcher"]


@contextmanager
def processes(device: "torch.device | None") -> Iterator[None]:
    """Those that torchrun has started meet, and part again at the end; does nothing without torchrun.

    device: where this process computes; None for this machine's. KitError where they cannot meet.
    """
    if "WORLD_SIZE" not in os.environ or _group["launcher"]:
        yield
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    from system.compute.device import device_of

    device = device or device_of()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        store, rank, n = next(rendezvous("env://", timeout=PATIENCE))
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=this_start(store, rank, n), rank=rank, world_size=n, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise KitError(f"the processes of torchrun cannot meet ({reason}); look at its --rdzv options") from error
    _group.update(count=dist.get_world_size(), index=dist.get_rank(), launcher=os.getppid())
    if is_first():
        log.info("%d processes; the first computes on %s", count(), device)
    try:
        yield
    finally:
        _group.update(count=1, index=0, launcher=0)
        dist.destroy_process_group()


def this_start(store: "Store", rank: int, n: int) -> "Store":
    """The part of torchrun's store that only the processes of this start read and write.

    torchrun keeps one store over its restarts, and in torch 2.11 all starts use the same keys there: a process could
    read the address of one that was killed, and fail. Here the first process gives each of the others a name that it
    has just made, as answer to one that the other has just made, and goes on once that one has said it back. Waits in
    Python, where Ctrl-C and SIGTERM are seen.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    mine = uuid.uuid4().hex
    if rank > 0:
        store.set(f"start of {rank}", mine)
        while not store.check([mine]):
            time.sleep(POLL)
        first = store.get(mine).decode()
        store.set(f"{mine} with {first}", "")
        return PrefixStore(first, store)
    for other in range(1, n):
        known = ""
        while not (known and store.check([f"{known} with {mine}"])):
            if store.check([f"start of {other}"]):
                known = store.get(f"start of {other}").decode()
                store.set(known, mine)
            time.sleep(POLL)
    return PrefixStore(mine, store)


def leave(status: int) -> NoReturn:
    """End this process of the command line.

    Under torchrun Python is not taken down in order: a thread of gloo that lets go of a tensor meanwhile would abort
    the process, as torch 2.11 does now and then.
    """
    if "WORLD_SIZE" not in os.environ:
        sys.exit(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


@contextmanager
def _together() -> Iterator[None]:
    import torch

    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise _lost() from error


@contextmanager
def exchanging() -> Iterator[None]:
    """Around what computes and exchanges at once, such as batch norms over all processes and their gradients: KitError
    where another process is gone; any other error stays what it is."""
    try:
        yield
    except RuntimeError as error:  # gloo and nccl have no exception of their own for a process that is gone
        if count() == 1 or not any(name in str(error) for name in ("gloo", "NCCL")):
            raise
        raise _lost() from error


def _lost() -> KitError:
    return KitError(
        f"rank {index()} of {count()} has lost the others: one of them was killed, or ended by the error above; run "
        "the same command again, and it goes on from what was saved"
    )


def require_alike(here: object, what: str) -> None:
    """KitError in the first process where the processes have different values, and SaidElsewhere in the others.

    what: a sentence's end on what they have to share.
    """
    every = gather_objects(here)
    if others := [number for number, value in enumerate(every) if value != every[0]]:
        if is_first():
            raise KitError(f"rank {others[0]} of {count()} differs from rank 0: {what}")
        raise SaidElsewhere("the processes differ")


def on_first(function: Callable[[], T]) -> T:
    """What the function gives in the first process, for all of them: it must be small, and be pickled.

    What it raises there is raised there, and SaidElsewhere in the others.
    """
    if count() == 1:
        return function()
    import torch.distributed as dist

    found: list[Any] = [None, "error"]
    try:
        if is_first():
            found = [function(), "done"]
    except BaseException:
        with suppress(KitError), _together():  # where they have ended too, as after Ctrl-C, nobody is to be told
            dist.broadcast_object_list(found, 0)
        raise
    with _together():
        dist.broadcast_object_list(found, 0)
    if found[1] == "error":
        raise SaidElsewhere("the first process has ended")
    result: T = found[0]
    return result


@contextmanager
def first_goes_ahead() -> Iterator[None]:
    """The body is run by the first process, then by all others, which find what it has stored."""
    if count() == 1:
        yield
        return
    if not is_first():
        on_first(lambda: None)
        yield
        return
    try:
        yield
    except BaseException:
        with suppress(SaidElsewhere):
            on_first(_end)
        raise
    on_first(lambda: None)


def _end() -> None:
    raise SaidElsewhere("this process ends")


def any_of(*here: bool) -> list[bool]:
    """For each of these, whether it holds in any process."""
    if count() == 1:
        return list(here)
    import torch
    import torch.distributed as dist

    flags = torch.tensor(here, dtype=torch.uint8)
    with _together():
        dist.all_reduce(flags, dist.ReduceOp.MAX)
    return [bool(flag) for flag in flags.tolist()]


def gather_objects(here: T) -> list[T]:
    """What every process gives, in their order, for all."""
    if count() == 1:
        return [here]
    import torch.distributed as dist

    found: list[Any] = [None] * count()
    with _together():
        dist.all_gather_object(found, here)
    return found


def dealt_back(by_process: Sequence[Sequence[T]]) -> list[T]:
    """The items of all processes in their order; item i is of process i % n."""
    total, n = sum(map(len, by_process)), len(by_process)
    return [by_process[number % n][number // n] for number in range(total)]


def all_gather(tensor: "torch.Tensor") -> "list[torch.Tensor]":
    """The tensors of all processes, of one shape, in their order; without a graph."""
    import torch
    import torch.distributed as dist

    found = [torch.empty_like(tensor) for _ in range(count())]
    with _together():
        dist.all_gather(found, tensor)
    received["embeddings"] += sum(one.nbytes for one in found)
    return found


def sum_gradients(parameters: "Sequence[torch.nn.Parameter]") -> None:
    """Every parameter's gradient becomes the sum over all processes; one that no process has a gradient of keeps
    none."""
    if count() == 1:
        return
    import torch

    having = any_of(*(parameter.grad is not None for parameter in parameters))
    bucket: list[torch.Tensor] = []
    for parameter, some in zip(parameters, having, strict=True):
        if not some:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        bucket.append(parameter.grad)
        if sum(one.numel() for one in bucket) >= BUCKET:
            _sum(bucket)
            bucket = []
    if bucket:
        _sum(bucket)


def _sum(gradients: "Sequence[torch.Tensor]") -> None:
    import torch
    import torch.distributed as dist

    flat = torch.cat([one.flatten() for one in gradients])
    with _together():
        dist.all_reduce(flat)
    received["gradients"] += flat.nbytes
    for one, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
        one.copy_(part.view_as(one))


def take_from_first(model: "torch.nn.Module") -> None:
    """Every process gets the first one's weights and statistics, so that no rounding of unlike machines adds up."""
    if count() == 1:
        return
    import torch.distributed as dist

    with _together():
        for value in model.state_dict().values():
            dist.broadcast(value, 0)
