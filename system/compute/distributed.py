"""Several processes that compute one result.

Without torchrun there is one process.

torch.distributed reads the processes from torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK). Tensors are exchanged
by nccl between GPUs and by gloo between CPUs. The first process (rank 0) writes all files. If one process ends, all
other processes end too, and one of them reports the reason. Torch is only imported for computations.
"""

import logging
import os
import signal
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
    from torch.distributed.distributed_c10d import ProcessGroup, Store, Work

# A dead process is detected immediately, by torchrun and by its closed connections. Timeouts are for one that hangs.
PATIENCE = timedelta(days=2)  # between steps: one may make data, decode or write scores while the others wait
STEP_PATIENCE = timedelta(minutes=30)  # torch's default for gloo: processes begin a step together, with similar parts
BUCKET = 1 << 23  # numbers that are summed over all processes at a time: 32 MiB

T = TypeVar("T")
log = logging.getLogger(__name__)
received = {"embeddings": 0, "gradients": 0}  # bytes that this process got from all processes together, since it began


@dataclass
class _Group:
    """Facts about the processes that torchrun has started together, including this process.

    count: Number of processes. index: Rank of this process. launcher: The id of torchrun's process; 0 without torchrun.
    store: Key-value store of all processes. step: Group of torch.distributed for exchanges within training steps. now:
    The group to use now; None for torch's default group, which has the longer timeout.
    """

    count: int = 1
    index: int = 0
    launcher: int = 0
    store: "Store | None" = None
    step: "ProcessGroup | None" = None
    now: "ProcessGroup | None" = None


_group = _Group()


def process_count() -> int:
    """Return the number of processes of this command; 1 without torchrun."""
    return _group.count


def process_index() -> int:
    """Return the rank of this process, from 0."""
    return _group.index


def exchange_group() -> "ProcessGroup | None":
    """Return the process group to pass to functions of torch.distributed; None means their default group."""
    return _group.now


def is_first() -> bool:
    """Return whether this is the first process, which writes all files."""
    return process_index() == 0


def is_orphan() -> bool:
    """Return whether torchrun, which started this process, has died.

    A running torchrun ends all of its processes itself; after its death each process must end itself.
    """
    return process_count() > 1 and os.getppid() != _group.launcher


@contextmanager
def processes(device: "torch.device | None") -> Iterator[None]:
    """Context manager that connects the processes of torchrun. It does nothing if there is one process.

    device: Device of this process; None for this machine's default. Raises KitError if the processes do not connect
    within ten minutes (MEETING_PATIENCE). If the same error ends the block in several processes, only one process
    raises it. The other processes raise SaidElsewhere, which prints nothing.
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
        assert isinstance(step, dist.ProcessGroup)  # of all processes: this one is in it
    except KitError:
        raise
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise KitError(
            f"{describe_process()} cannot connect to the other processes ({reason}); start all processes with torchrun "
            f"and check its --rdzv options, or {ONE_PROCESS}"
        ) from error
    _group = _Group(dist.get_world_size(), dist.get_rank(), os.getppid(), store, step)
    if is_first():
        log.info("%d processes compute together; the first one uses the device %s", process_count(), device)
    try:
        yield
    except Exception as error:
        raise_once(error)
    finally:
        _group = _Group()
        dist.destroy_process_group()


def raise_once(error: Exception) -> NoReturn:
    """Raise `error`, or SaidElsewhere if another process has already raised an error with the same message.

    SaidElsewhere prints nothing, so that the message is printed once.
    """
    if not isinstance(error, SaidElsewhere) and not _should_report("\n".join(sentences(error))):
        raise SaidElsewhere("another process has printed the same error; read its message") from error
    raise error


def _should_report(reason: str) -> bool:
    """Return whether this process should print the reason for its end: no other process has printed the same.

    True if this process is the first to report a reason, or if its reason differs from the first reported reason. The
    reason "" means that this process only ends because another process has ended; it is only printed if it is first.
    """
    if _group.store is None:
        return True
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from torchrun, which would end it before its report
    here = f"{process_index()} {reason}"
    try:
        found: str = _group.store.compare_set("end", "", here).decode()
    except RuntimeError:  # the store was lost with the first machine
        return True
    return found == here or (reason != "" and found.partition(" ")[2] != reason)


@contextmanager
def _exchange() -> Iterator[None]:
    """Context manager that converts the error of a failed exchange between processes to a KitError with its reason."""
    import torch

    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise _error_of_exchange(error) from error


@contextmanager
def in_step() -> Iterator[None]:
    """Context manager for a training step: raises KitError if another process is lost, or does not answer in time.

    The processes exchange data during computations, as in batch norms over all processes. Other errors are not changed.
    """
    _group.now = _group.step
    try:
        yield
    except RuntimeError as error:  # gloo and nccl have no exception of their own for a process that is gone
        if process_count() == 1 or not any(name in str(error) for name in ("gloo", "NCCL")):
            raise
        raise _error_of_exchange(error) from error
    finally:
        _group.now = None


def _error_of_exchange(error: RuntimeError) -> KitError:
    """Convert the error of a failed exchange between processes to an error that names the reason.

    The result is SaidElsewhere if another process has already reported the reason.
    """
    if not _should_report(""):
        return SaidElsewhere("another process has printed the error that ends all processes; read its message")
    who = f"the process with rank {process_index()} of {process_count()} processes"
    go_on = "run the same command again to resume from the last checkpoint"
    if "timed out" in str(error).lower():
        waited = about((STEP_PATIENCE if _group.now else PATIENCE).total_seconds())
        return KitError(f"{who} has waited {waited} for another process, which hangs; {go_on}")
    return KitError(
        f"{who} has lost its connection to the other processes: another process was killed, perhaps because memory was "
        f"full; {go_on}"
    )


def require_equal(value: object, difference: str, cure: str) -> None:
    """Raise an error, ending with `difference` and `cure`, unless all processes call this with the same `value`.

    The first process raises KitError; all other processes raise SaidElsewhere, which prints nothing.
    """
    every = gather_objects(value)
    if others := [number for number, other in enumerate(every) if other != every[0]]:
        if is_first():
            raise KitError(f"rank {others[0]} of {process_count()} differs from rank 0: {difference}; {cure}")
        raise SaidElsewhere("the first process has printed how the processes differ; read its message")


def on_first(function: Callable[[], T]) -> T:
    """Run a function in the first process, and return its result in all processes.

    The result must be small and picklable.
    If the function raises an error, the first process raises this error. All other processes raise SaidElsewhere, which
    prints nothing.
    """
    if process_count() == 1:
        return function()
    import torch.distributed as dist

    outcome: list[Any] = [None, "error"]
    try:
        if is_first():
            outcome = [function(), "done"]
    except BaseException:
        with suppress(KitError), _exchange():  # if the others have ended too, as after Ctrl-C
            dist.broadcast_object_list(outcome, 0)
        raise
    with _exchange():
        dist.broadcast_object_list(outcome, 0)
    if outcome[1] == "error":
        raise SaidElsewhere("the first process has ended with an error; read its message")
    result: T = outcome[0]
    return result


@contextmanager
def first_before_others() -> Iterator[None]:
    """Context manager whose block runs in the first process first, and then in all other processes.

    The other processes can thus read results that the first process has stored.
    """
    if process_count() == 1:
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
            on_first(_end_silently)
        raise
    on_first(lambda: None)


def _end_silently() -> None:
    """Raise SaidElsewhere, which ends this process without a message."""
    raise SaidElsewhere("another process has failed, so this one ends too; read the message of that process")


def any_process(value: bool) -> bool:
    """Return whether `value` is true in at least one process."""
    return any_process_each([value])[0]


def any_process_each(values: Sequence[bool]) -> list[bool]:
    """Return for each of `values` whether it is true in at least one process.

    All processes must pass the same number of values.
    """
    if process_count() == 1:
        return list(values)
    import torch
    import torch.distributed as dist

    flags = torch.tensor(values, dtype=torch.uint8)
    with _exchange():
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=_group.now)
    return [bool(flag) for flag in flags.tolist()]


def gather_objects(value: T) -> list[T]:
    """Collect one value per process, in the order of ranks, in every process."""
    if process_count() == 1:
        return [value]
    import torch.distributed as dist

    found: list[Any] = [None] * process_count()
    with _exchange():
        dist.all_gather_object(found, value)
    return found


def gather_dealt(items: Sequence[T]) -> list[T]:
    """Return in every process the items that were divided among all processes, in their original order.

    items: The items of this process: process r of n has items r, r + n, r + 2n, ... of the original list.
    """
    by_process = gather_objects(items)
    total, n = sum(map(len, by_process)), len(by_process)
    return [by_process[number % n][number // n] for number in range(total)]


def all_gather(tensor: "torch.Tensor") -> "list[torch.Tensor]":
    """Return the tensors of all processes, in the order of ranks, without gradients.

    The tensors of all processes must have the same shape.
    """
    import torch
    import torch.distributed as dist

    found = [torch.empty_like(tensor) for _ in range(process_count())]
    with _exchange():
        dist.all_gather(found, tensor, group=_group.now)
    received["embeddings"] += sum(one.nbytes for one in found)
    return found


class GradientSums:
    """Sums of gradients over all processes, exchanged in groups (buckets) while the backward pass goes on.

    All processes must call `begin` with the same parameters in the same order, and then `finish`. If there is only one
    process, both methods do nothing.
    """

    def __init__(self) -> None:
        """Create an empty list of the sums that are being exchanged between processes."""
        self._under_way: list[tuple[list[torch.Tensor], torch.Tensor, Work]] = []

    def begin(self, parameters: "Sequence[torch.nn.Parameter]") -> None:
        """Begin to sum the gradients of `parameters` over all processes. The gradients must be complete.

        A parameter that has no gradient in any process stays without gradient.
        """
        if process_count() == 1:
            return
        import torch

        having = any_process_each([parameter.grad is not None for parameter in parameters])
        bucket: list[torch.Tensor] = []
        for parameter, some in zip(parameters, having, strict=True):
            if not some:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            if sum(one.numel() for one in bucket) >= BUCKET:
                self._send(bucket)
                bucket = []
        if bucket:
            self._send(bucket)

    def _send(self, gradients: "list[torch.Tensor]") -> None:
        """Copy a list of gradients to one tensor, and begin to sum this tensor over all processes."""
        import torch
        import torch.distributed as dist

        flat = torch.cat([one.flatten() for one in gradients])
        with _exchange():
            work = dist.all_reduce(flat, group=_group.now, async_op=True)
        self._under_way.append((gradients, flat, work))

    def finish(self) -> None:
        """Wait for all sums that `begin` has started, and replace each gradient by its sum over all processes."""
        for gradients, flat, work in self._under_way:
            with _exchange():
                work.wait()
            received["gradients"] += flat.nbytes
            for one, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
                one.copy_(part.view_as(one))
        self._under_way = []


def broadcast_from_first(model: "torch.nn.Module") -> None:
    """Copy the model's weights and the statistics of its batch norms from the first process to all processes.

    Without this, rounding differences between processes would accumulate.
    """
    if process_count() == 1:
        return
    import torch.distributed as dist

    with _exchange():
        for value in model.state_dict().values():
            dist.broadcast(value, 0)
