"""Divide the work on a bank among processes.

The processes may be ranks of one run, runs on several machines, or runs started by hand.

All processes have equal roles. Each process locks the bank briefly, and reads which keys other processes have stored or
are computing. It then reserves some of the remaining keys, longest audio first. The file `under_way.json` of a shard
lists the keys that its process is computing. The list is valid while that process holds the shard's lock. If the
process is killed, other processes can reserve its keys.
"""

import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from data_tools.errors import DataError
from data_tools.files import is_locked, read_json
from system.features.bank import Bank
from system.features.shard import Shard

LOOKED_AGAIN = (0.05, 1.0)  # seconds between two checks of the other processes' keys: at first, and at most

log = logging.getLogger(__name__)


class SharedWork:
    """The keys of a bank whose series of vectors this process reserves and computes. Open with `shared_work`.

    costs: Dict from the key of every wanted series to the cost of computing it, such as its seconds of audio.
    at_once: Two limits for the keys that are reserved at a time: their number, and the sum of their costs.
    """

    def __init__(self, bank: Bank, costs: Mapping[str, float], at_once: tuple[int, float]) -> None:
        """Store the bank and the keys of the wanted series, sorted by falling cost, without reserving any."""
        self._bank, self._costs, self._at_once = bank, costs, at_once
        self._left = deque(sorted(costs, key=costs.__getitem__, reverse=True))
        self._computed_elsewhere: list[str] = []  # that another process was computing at the last check
        self._new: deque[str] = deque()  # reserved, but not yet yielded by take_keys
        self._under_way: set[str] = set()  # reserved keys whose series are not stored yet
        self._shard: Shard | None = None
        self._release: Callable[[], None] | None = None
        self._stored_elsewhere = 0  # number of keys, since the last call of stored_elsewhere

    def wait_for_keys(self) -> bool:
        """Wait until it is known whether this process has series to compute, and return whether it has.

        The function waits while other processes are computing all remaining series. If such a process ends early, its
        series are left, and the result is true. The result is false if all series are stored.
        """
        pause, said = LOOKED_AGAIN[0], False
        while not self._reserve_keys():
            if not self._computed_elsewhere:
                return False
            if not said:
                count = len(self._computed_elsewhere)
                log.info(
                    "waiting for another process that computes frames of %d clips for %s", count, self._bank.folder
                )
            said = True
            time.sleep(pause)
            pause = min(2 * pause, LOOKED_AGAIN[1])
        return True

    def take_keys(self) -> Iterator[str]:
        """Yield the keys of series that this process must compute. The caller must store or drop each key."""
        while self._reserve_keys():
            yield self._new.popleft()

    def store(self, key: str, values: np.ndarray) -> None:
        """Store a computed series (T, D) on disk. Raises KitError for a wrong dimension or no rows."""
        assert self._shard is not None
        self._shard.store(key, values)
        self._under_way.discard(key)

    def drop(self, key: str) -> None:
        """Give up computing the series of a key, so that another process may compute it."""
        self._under_way.discard(key)

    def stored_elsewhere(self) -> int:
        """Return the number of wanted series that other processes have stored since the last call."""
        found, self._stored_elsewhere = self._stored_elsewhere, 0
        return found

    def _reserve_keys(self) -> bool:
        """Reserve keys of missing series for this process if it has no keys. Returns: Whether it now has keys."""
        if self._new or not (self._left or self._computed_elsewhere):
            return bool(self._new)
        with self._bank.locked():
            if self._shard is not None:
                self._shard.close_files()
            self._bank.read_new_lines()
            self._new = deque(self._next_keys())
            if self._new and self._shard is None:
                self._shard, self._release = self._bank.take_shard()
            if self._shard is not None:
                self._under_way |= set(self._new)
                _write_keys(self._shard, self._under_way)
        return bool(self._new)

    def _next_keys(self) -> list[str]:
        """Return the next keys whose series no process has stored or is computing."""
        others = [_read_keys(shard) for shard in self._bank.shards() if shard is not self._shard]
        busy = set().union(*others)
        if not self._left:
            self._left, self._computed_elsewhere = deque(self._computed_elsewhere), []
        count, cost = self._at_once
        count = min(count, math.ceil(len(self._left) / (1 + sum(map(bool, others)))))
        chosen: list[str] = []
        while self._left and len(chosen) < count and sum(map(self._costs.__getitem__, chosen)) < cost:
            key = self._left.popleft()
            if key in self._bank:
                self._stored_elsewhere += 1
            elif key in busy:
                self._computed_elsewhere.append(key)
            else:
                chosen.append(key)
        return chosen

    def end(self) -> None:
        """End this process's work: flush the stored series to disk, and release its shard (part of the bank)."""
        if self._shard is None or self._release is None:
            return
        try:
            self._shard.sync()
            self._shard.under_way_file.unlink(missing_ok=True)
        finally:
            self._release()


@contextmanager
def shared_work(bank: Bank, costs: Mapping[str, float], at_once: tuple[int, float]) -> Iterator[SharedWork]:
    """Context manager that reserves clips without frames for this process, a limited number at a time.

    costs: Dict from the key of each clip without frames to the cost of computing its frames; expensive clips come
    first.
    at_once: Two limits for the clips that a process reserves at a time: their number, and the sum of their costs.
    """
    work = SharedWork(bank, costs, at_once)
    try:
        yield work
    finally:
        work.end()


def _write_keys(shard: Shard, keys: Iterable[str]) -> None:
    """Write the list of keys whose series this process is computing, to a file of its shard (part of a bank).

    Processes only read this file while they hold the bank's lock. If this process is killed during the write, the
    partial file is ignored.
    """
    shard.under_way_file.write_text(json.dumps(sorted(keys)), encoding="utf-8")


def _read_keys(shard: Shard) -> set[str]:
    """Return the keys of the series that a process is computing now for a shard. The caller must lock the bank."""
    try:
        found = read_json(shard.under_way_file)
    except (FileNotFoundError, DataError):
        return set()
    return set(found) if found and isinstance(found, list) and is_locked(shard.lock_file) else set()
