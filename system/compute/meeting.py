"""Wait for all processes.

Each process waits until all processes of one command have started, with a time limit. Ctrl-C and SIGTERM end the wait.
`exit_process` ends a process.
"""

import atexit
import logging
import os
import sys
import threading
import time
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from data_tools.cli import about
from data_tools.errors import KitError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

MEETING_PATIENCE = timedelta(minutes=10)  # until all processes have started; they do no long work before that
ANNOUNCED = 60.0  # seconds of waiting for others to start, after which that is logged
ONE_PROCESS = "unset WORLD_SIZE to compute with one process"
POLL = 0.02  # seconds between two checks for the other processes

log = logging.getLogger(__name__)


def describe_process() -> str:
    """Describe this process by its environment: "this process (RANK 0, WORLD_SIZE 2, ...)"."""
    named = (
        f"{name} {os.environ.get(name, 'not set')}" for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    )
    return f"this process ({', '.join(named)})"


class _Meeting:
    """Time limit of the wait for processes that have not started; logs a long wait once."""

    def __init__(self) -> None:
        """Store the time at which this process began to wait for the others."""
        self._began, self._is_announced = time.monotonic(), False

    def check(self) -> None:
        """Log a message if the other processes do not start within a minute; raise KitError after the time limit."""
        waited = time.monotonic() - self._began
        if waited > MEETING_PATIENCE.total_seconds():
            raise KitError(
                f"{describe_process()} has waited {about(waited)} for other processes to start; start all "
                f"processes with torchrun, or {ONE_PROCESS}"
            )
        if waited > ANNOUNCED and not self._is_announced:
            self._is_announced = True
            log.warning(
                "%s waits for other processes to start; if you started no other process, %s",
                describe_process(),
                ONE_PROCESS,
            )


def meet() -> "tuple[Store, int, int]":
    """Wait for all processes of a command. Returns: Their shared store, this process's rank, the number of processes.

    torch blocks signals while it waits for the other processes. A thread waits instead, so that Ctrl-C and SIGTERM end
    the wait.
    """
    from torch.distributed.rendezvous import rendezvous

    starts: list[tuple[Store, int, int]] = []
    failed: list[Exception] = []

    def wait() -> None:
        """Wait for all processes, for `meet`: append their store and ranks to `starts`, or an error to `failed`."""
        try:
            starts.append(next(rendezvous("env://", timeout=MEETING_PATIENCE)))
        except Exception as error:
            failed.append(error)

    thread, meeting = threading.Thread(target=wait, name="meeting", daemon=True), _Meeting()
    thread.start()
    while thread.is_alive():
        meeting.check()
        thread.join(POLL)
    if failed:
        raise failed[0]
    return starts[0]


def this_start(store: "Store", rank: int, n: int) -> "Store":
    """Return torchrun's key-value store with a key prefix that is unique to this start or restart of the processes.

    store: torchrun's store. rank: Rank of this process. n: Number of processes.
    torchrun uses one store for all restarts, and in torch 2.11 all starts use the same keys. A process could thus read
    the address of a killed process, and fail. Therefore each process other than the first stores a new random name. The
    first process answers with a random name too, which is the prefix of all keys of this start. The first process
    continues when every other process has confirmed the prefix. The wait is in Python, so that Ctrl-C and SIGTERM end
    it.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    mine, meeting = uuid.uuid4().hex, _Meeting()
    if rank > 0:
        store.set(f"start of {rank}", mine)
        while not store.check([mine]):
            meeting.check()
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
            meeting.check()
            time.sleep(POLL)
    return PrefixStore(mine, store)


def exit_process(status: int) -> NoReturn:
    """End this process of the command line with an exit status.

    With torchrun, Python's own shutdown is skipped, because it sometimes makes the process abort: in torch 2.11, a
    thread of gloo, which exchanges data between processes, may free a tensor during the shutdown.
    """
    if "WORLD_SIZE" not in os.environ:
        sys.exit(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)
