"""Several processes that compute one result, as torchrun starts them; without torchrun there is one.

torchrun and torch.distributed do the work: which processes there are comes from the environment (RANK, WORLD_SIZE,
LOCAL_RANK), tensors go over nccl between GPUs and over gloo between CPUs. The first process (rank 0) writes all files.
When one ends, all end, and one of them says why.
Torch is imported by those who compute.
"""

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from data_tools.cli import about
from data_tools.errors import KitError, SaidElsewhere, sentences
from system.compute.meeting import ONE_PROCESS, describe_process, meet, this_start

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import ProcessGroup, Store

# A process that is gone is noticed at once, by torchrun and by its closed connections; this is for one that hangs.
PATIENCE = timedelta(days=2)  # between steps: one may make data, decode or write scores while the others wait
STEP_PATIENCE = timedelta(minutes=30)  # torch's default of gloo: processes begin a step together, and have like parts
BUCKET = 1 << 23  # numbers of gradients that are summed at a time: 32 MiB

T = TypeVar("T")
log = logging.getLogger(__name__)
received = {"embeddings": 0, "gradients": 0}  # bytes that this process got from all processes together, since it began


@dataclass
class _Group:
    """The processes of this start. launcher: the id of torchrun's process, 0 without one. store: what they read and
    write by name. step: what exchanges of training steps go over. now: what they go over at present; None for the
    patient one."""

    count: int = 1
    index: int = 0
    launcher: int = 0
    store: "Store | None" = None
    step: "ProcessGroup | None" = None
    now: "ProcessGroup | None" = None


_group = _Group()


def count() -> int:
    """How many processes there are."""
    return _group.count


def index() -> int:
    """Which of them this one is, from 0."""
    return _group.index


def exchange_group() -> "ProcessGroup | None":
    """What tensors go over at present, for functions of torch.distributed; None is their default."""
    return _group.now


def is_first() -> bool:
    """Whether this is the process that writes."""
    return index() == 0


def is_orphan() -> bool:
    """Whether torchrun is gone, which would have ended this process with the others."""
    return count() > 1 and os.getppid() != _group.launcher


@contextmanager
def processes(device: "torch.device | None") -> Iterator[None]:
    """Join the processes that torchrun has started for the block; do nothing if there is one process.

    device: where this process computes; None for this machine's. KitError if they cannot meet, or do not within
    MEETING_PATIENCE. An error that ends the block in several processes is raised in one, and SaidElsewhere in the
    others.
    """
    global _group
    if os.environ.get("WORLD_SIZE", "1") == "1" or _group.launcher:
        yield
        return
    import torch
    import torch.distributed as dist

    from system.compute.device import device_of

    device = device or device_of()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        store, rank, n = meet()
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store = this_start(store, rank, n)
        dist.init_process_group(backend, store=store, rank=rank, world_size=n, timeout=PATIENCE)
        step = dist.new_group(backend=backend, timeout=STEP_PATIENCE)
    except KitError:
        raise
    except (RuntimeError, ValueError) as error:
        hint = f"start them by torchrun and look at its --rdzv options, or {ONE_PROCESS}"
        raise KitError(f"{describe_process()} cannot meet the others ({str(error).splitlines()[0]}); {hint}") from error
    _group = _Group(dist.get_world_size(), dist.get_rank(), os.getppid(), store, step)
    if is_first():
        log.info("%d processes; the first computes on %s", count(), device)
    try:
        yield
    except Exception as error:
        raise_or_leave_to_others(error)
    finally:
        _group = _Group()
        dist.destroy_process_group()


def raise_or_leave_to_others(error: Exception) -> NoReturn:
    """Raise an error that ends this process, or SaidElsewhere where another one ends with the same sentence."""
    if not isinstance(error, SaidElsewhere) and not _is_to_say("\n".join(sentences(error))):
        raise SaidElsewhere("another process says the same") from error
    raise error


def _is_to_say(reason: str) -> bool:
    """Whether this process is to say why it ends: no other one has said the same, nor anything at all where this one
    ends only because another did ("")."""
    if _group.store is None:
        return True
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of torchrun, which would end it before it has said why
    here = f"{index()} {reason}"
    try:
        found: str = _group.store.compare_set("end", "", here).decode()
    except RuntimeError:  # the store is gone with the first machine
        return True
    return found == here or (reason != "" and found.partition(" ")[2] != reason)


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
        raise _lost(error) from error


@contextmanager
def in_step() -> Iterator[None]:
    """Around a training step, where processes wait STEP_PATIENCE for each other, and compute and exchange at once, as
    in batch norms over all processes and their gradients: KitError where another process is gone; any other error
    stays what it is."""
    _group.now = _group.step
    try:
        yield
    except RuntimeError as error:  # gloo and nccl have no exception of their own for a process that is gone
        if count() == 1 or not any(name in str(error) for name in ("gloo", "NCCL")):
            raise
        raise _lost(error) from error
    finally:
        _group.now = None


def _lost(error: RuntimeError) -> KitError:
    """What is said of an exchange that failed, where no other process has said why all end."""
    if not _is_to_say(""):
        return SaidElsewhere("another process has said why all end")
    who, go_on = f"rank {index()} of {count()}", "run the same command again, and it goes on from what was saved"
    if "timed out" in str(error).lower():
        waited = about((STEP_PATIENCE if _group.now else PATIENCE).total_seconds())
        return KitError(f"{who} has waited {waited} for another one, which hangs; {go_on}")
    return KitError(f"{who} has lost the others: one of them was killed (by a full memory, say); {go_on}")


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
def first_before_others() -> Iterator[None]:
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


def in_any(here: bool) -> bool:
    """Whether it holds in any process."""
    return each_in_any([here])[0]


def each_in_any(here: Sequence[bool]) -> list[bool]:
    """For each of these, as many in every process, whether it holds in any."""
    if count() == 1:
        return list(here)
    import torch
    import torch.distributed as dist

    flags = torch.tensor(here, dtype=torch.uint8)
    with _together():
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=_group.now)
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


def gather_dealt(here: Sequence[T]) -> list[T]:
    """The items of all processes in their order, for all; item i is of process i % n."""
    by_process = gather_objects(here)
    total, n = sum(map(len, by_process)), len(by_process)
    return [by_process[number % n][number // n] for number in range(total)]


def all_gather(tensor: "torch.Tensor") -> "list[torch.Tensor]":
    """The tensors of all processes, of one shape, in their order; without a graph."""
    import torch
    import torch.distributed as dist

    found = [torch.empty_like(tensor) for _ in range(count())]
    with _together():
        dist.all_gather(found, tensor, group=_group.now)
    received["embeddings"] += sum(one.nbytes for one in found)
    return found


def sum_gradients(parameters: "Sequence[torch.nn.Parameter]") -> None:
    """Every parameter's gradient becomes the sum over all processes; one that no process has a gradient of keeps
    none."""
    if count() == 1:
        return
    import torch

    having = each_in_any([parameter.grad is not None for parameter in parameters])
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
        dist.all_reduce(flat, group=_group.now)
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
