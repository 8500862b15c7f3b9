"""Locks between processes.

Locks files and folders, so that only one process at a time works on them.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from data_tools.errors import DataError
from data_tools.files import MAX_NAME, short_name

log = logging.getLogger(__name__)


@contextmanager
def lock(file: Path, busy_message: str, wait: bool = False) -> Iterator[None]:
    """Lock a lock file for a `with` block; if another process has the lock, raise `busy_message` or, with `wait`, wait.

    A process that ends, even by a kill, releases its locks; the file remains.

    Args:
        busy_message: Message if another process has the lock; "", together with `wait`: wait without a message.
        wait: Whether to log the message and wait, instead of raising it as DataError.
    """
    release = take_lock(file)
    if release is None and not wait:
        raise DataError(busy_message)
    if release is None and busy_message:
        log.info(busy_message)
    release = release or take_lock(file, timeout=-1)
    try:
        yield
    finally:
        if release:
            release()


def take_lock(file: Path, timeout: float = 0) -> Callable[[], None] | None:
    """Lock a lock file; return a function that releases the lock, or None if it is not free within `timeout` seconds.

    timeout: Seconds to wait for the lock; negative: without limit.
    """
    from filelock import FileLock, Timeout

    file.parent.mkdir(parents=True, exist_ok=True)
    file_lock = FileLock(file, thread_local=False)  # a generator that holds it may be closed by another thread
    try:
        file_lock.acquire(timeout=timeout)
    except Timeout:
        return None
    return file_lock.release


@contextmanager
def lock_of(path: Path) -> Iterator[None]:
    """Lock the file `<path>.lock` for a `with` block. Raises DataError if another process writes to `path`."""
    file = path.with_name(short_name(path.name, MAX_NAME - len(".lock")) + ".lock")
    with lock(file, f"{path}: another process is writing to it; wait for its end or stop it"):
        yield


def is_locked(file: Path) -> bool:
    """Return whether a process has locked the lock file now."""
    if not file.exists():
        return False
    release = take_lock(file)
    if release:
        release()
    return release is None
