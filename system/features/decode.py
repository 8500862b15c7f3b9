"""Decode waves ahead of the computation.

Decode the waves of clips ahead of the computation of frames, in threads or processes of this machine.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue

import numpy as np

from data_tools.errors import AudioError, KitError
from data_tools.manifest import Clip
from system.experts.base import ExpertSettings

# An expert gets clips in groups, so that short ones share batches. A kill loses the current group.
GROUP_CLIPS = 16
GROUP_SECONDS = 120
DECODERS = 2  # threads
DECODED_AHEAD = 4  # decoded clips that wait for an expert
POLL_SECONDS = 0.2  # between two checks of the decoding processes

Decoded = Iterator[tuple[str, "Future[np.ndarray]"]]


class Decoders:
    """Threads or processes that decode audio files. ahead: Maximum number of clips that are decoded or wait."""

    def __init__(self, pool: Executor, ahead: int) -> None:
        """Store the pool of threads or processes, and the maximum number of clips decoded ahead."""
        self._pool, self._ahead = pool, ahead

    def waves(self, clips: Iterable[tuple[str, Clip]], expert: ExpertSettings) -> Decoded:
        """Decode clips in the background; yield (key, future of the wave) of each clip.

        clips: Pairs of a key and a clip. The result has the same order. Only a limited number of clips is decoded
        before they are needed.
        """
        waiting: deque[tuple[str, Future[np.ndarray]]] = deque()
        for key, clip in clips:
            try:
                wave = self._pool.submit(expert.read, clip.path)
            except BrokenProcessPool as error:
                raise _error_of_killed_process() from error
            waiting.append((key, wave))
            if len(waiting) > self._ahead:
                yield waiting.popleft()
        yield from waiting


@contextmanager
def decoders(workers: int | None) -> Iterator[Decoders]:
    """Context manager that starts and stops decoders of audio: `workers` processes; None: threads.

    At the end of the block, clips that still wait are not decoded.
    """
    if workers is not None:
        with _processes(workers) as pool:
            yield Decoders(pool, DECODED_AHEAD + workers)
        return
    threads = ThreadPoolExecutor(DECODERS)
    try:
        yield Decoders(threads, DECODED_AHEAD)
    finally:
        threads.shutdown(cancel_futures=True)


@contextmanager
def _processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Context manager that starts a pool of decoding processes. If one of them is killed, all of them end."""
    # A fork would copy locks, and the state of a GPU's driver.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_follow_parent)
    over = threading.Event()
    watch = threading.Thread(target=_end_together, args=(pool._processes, pool._result_queue, over), daemon=True)
    watch.start()
    try:
        yield pool
    finally:
        manager = pool._executor_manager_thread
        pool.shutdown(wait=False, cancel_futures=True)  # if it waited, it would close the pipe that `watch` may close
        if manager is not None:
            manager.join()  # type: ignore[attr-defined]
        over.set()
        watch.join()


def _end_together(processes: dict[int, BaseProcess], results: SimpleQueue[object], over: threading.Event) -> None:
    """Watch the processes of a pool, and kill all of them as soon as one has ended with an error.

    processes: The pool's processes. results: Queue of their results; its pipe is closed after the processes are killed.
    over: Event that ends the watch.
    The pool itself detects a dead process in most cases. But if a process dies while the pool reads its result, the
    pool would wait forever for the rest of the result, since the pool itself keeps the pipe open.
    """
    while not over.wait(POLL_SECONDS):
        started = list(processes.values())
        if any(process.exitcode not in (None, 0) for process in started):
            for process in started:
                process.kill()
            results._writer.close()  # type: ignore[attr-defined]
            return


def _follow_parent() -> None:
    """End this decoding process when its parent process ends, for any reason.

    Ctrl-C is ignored here; the parent process handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        """Wait for the end of the parent process, then end this process."""
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _error_of_killed_process() -> KitError:
    """Return the error for a killed decoding process."""
    return KitError(
        "a process that decodes audio was killed; run the same command again to resume, with fewer --workers if memory "
        "is short"
    )


def groups(decoded: Decoded, fails: Callable[[str, AudioError], None], samples: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield decoded waves in groups of about `samples` samples in all; a group is a dict from clip key to wave.

    A group is complete when it has GROUP_CLIPS clips, or at least `samples` samples. fails: Function that is called
    with the key and the error of each clip that cannot be decoded.
    """
    group: dict[str, np.ndarray] = {}
    for key, wave in decoded:
        try:
            group[key] = wave.result()
        except AudioError as error:
            fails(key, error)
            continue
        except BrokenProcessPool as error:
            raise _error_of_killed_process() from error
        if len(group) == GROUP_CLIPS or sum(map(len, group.values())) >= samples:
            yield group
            group = {}
    if group:
        yield group
