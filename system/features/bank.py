"""A bank: stored series of vectors.

The series are found by key, and are in flat memory-mapped files. Any number of processes may build a bank at the same
time, and continue it after an interruption.

    <folder>/bank.json                  origin (expert, front-end, weights), dimension, dtype
             frames.bin, index.jsonl    the first shard (see shard.py)
             shard-1/, shard-2/ ..      more shards, if several processes added to the bank at the same time
             dealing.lock               locked briefly by processes that look for missing series (see shared_work.py)

Readers see one bank, even while its shards grow.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, KeysView
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import DataError, KitError
from data_tools.files import lock, read_json, remove_parts, take_lock, write_text
from system.features.index import keys_of
from system.features.shard import Shard

LOOKED_AGAIN = 0.5  # seconds between two checks whether another process has ended

log = logging.getLogger(__name__)


class Bank:
    """Series of vectors on disk, by key, each (T, D) with T >= 1. Open a bank with `open_bank`."""

    threads: Executor | None = None  # that read in parallel; None: reading takes no computation

    def __init__(self, folder: Path, dim: int, dtype: np.dtype[Any], hint: str, verify: bool) -> None:
        """Open the bank by reading its index files.

        hint: Advice on damaged files, the end of error messages. verify: Read all series, and drop damaged ones.
        """
        self.folder, self.dim, self.dtype, self.repair_hint = folder, dim, dtype, hint
        self._shards: dict[int, Shard] = {}
        if verify:
            dropped = self.drop_damaged()
            level = logging.WARNING if dropped else logging.INFO
            log.log(
                level, "%s: the bank has %d series, and %d damaged series were removed", self.folder, len(self), dropped
            )
        else:
            self.read_new_lines()

    def __contains__(self, key: str) -> bool:
        """Return whether the bank has a series of frames or vectors with this key."""
        return any(key in shard.numbers for shard in self._shards.values())

    def __len__(self) -> int:
        """Return the number of series in the bank; a key that several shards have counts once."""
        return len(self.keys()) if len(self._shards) > 1 else sum(len(s.numbers) for s in self._shards.values())

    def keys(self) -> KeysView[str]:
        """Return the keys of all stored series, in the order of storing within each shard (part of the bank)."""
        return dict.fromkeys(chain.from_iterable(shard.numbers for shard in self._shards.values())).keys()

    def rows_of(self, key: str) -> int:
        """Return the number of rows, T, of the series (T, D) that is stored under a key.

        Raises KeyError for an unknown key.
        """
        return self._shard_of(key).rows_of(key)

    def read(self, key: str) -> np.ndarray:
        """Return the stored series (T, D) of a key, as a view of the memory-mapped file.

        Raises KeyError for an unknown key, and KitError if the series does not match its checksum.
        """
        return self._shard_of(key).read(key)

    def part(self, key: str, first: int, count: int) -> np.ndarray:
        """Return a part of the series that is stored under a key: `count` rows from row `first` on."""
        return self.read(key)[first : first + count]

    def _shard_of(self, key: str) -> Shard:
        """Return the shard (part of the bank) that stores the series of a key. Raises KeyError for an unknown key."""
        for shard in self._shards.values():
            if key in shard.numbers:
                return shard
        raise KeyError(key)

    def read_new_lines(self) -> None:
        """Read the index entries of series that other processes have stored since the last call.

        Raises KitError for a damaged line of an index.
        """
        for shard in self.shards():
            shard.read_new_lines()

    def shards(self) -> list[Shard]:
        """Return all shards (parts) of the bank that are in its folder now."""
        found = (re.fullmatch("shard-([1-9][0-9]{0,5})", path.name) for path in self.folder.glob("shard-*"))
        for number in sorted({0, *(int(name[1]) for name in found if name)} - self._shards.keys()):
            self._shard(number)
        return list(self._shards.values())

    def _shard(self, number: int) -> Shard:
        """Return shard (part of the bank) number `number` as an object, which is created at the first call."""
        if number not in self._shards:
            folder = self.folder / f"shard-{number}" if number else self.folder
            self._shards[number] = Shard(folder, self.dim, self.dtype, self.repair_hint)
        return self._shards[number]

    def drop_damaged(self) -> int:
        """Read every series and drop the damaged ones, so that they are computed again; return how many were dropped.

        If another process is adding to a damaged shard (part of the bank), wait for the end of that process.
        """
        dropped = 0
        for shard in self.shards():
            if shard.undamaged_lines()[1]:
                with self._wait_for_shard(shard):
                    kept, damaged = shard.undamaged_lines()
                    shard.keep_only(kept)
                dropped += damaged
        return dropped

    @contextmanager
    def _wait_for_shard(self, shard: Shard) -> Iterator[None]:
        """Context manager that waits for the lock of a shard (a part of the bank), and holds it during its block."""
        said = False
        while True:
            with self.locked():  # shards are only taken under this lock
                release = take_lock(shard.lock_file)
                if release:
                    shard.under_way_file.unlink(missing_ok=True)  # of a dead process, whose keys are not computed now
                    break
            if not said:
                log.info("waiting for another process that is adding to %s", self.folder)
            said = True
            time.sleep(LOOKED_AGAIN)
        try:
            yield
        finally:
            release()

    @contextmanager
    def locked(self, busy: str = "") -> Iterator[None]:
        """Context manager that holds the bank's lock. busy: Message that is logged if another process holds the lock.

        The block must be short.
        """
        with lock(self.folder / "dealing.lock", busy, wait=True):
            yield

    @contextmanager
    def writing(self) -> Iterator[Callable[[str, np.ndarray], None]]:
        """Context manager whose value is a function that stores a series (T, D) under a key.

        A series has T vectors of D values. The function does nothing if the bank already has the key. It raises
        KitError for a series of another dimension or without rows. The series are on disk at the end of the block.
        Compute the series before the block, since other processes wait until its end.
        """
        with self.locked(f"waiting for another process that is adding to {self.folder}"):
            self.read_new_lines()
            shard, release = self.take_shard()

            def store(key: str, values: np.ndarray) -> None:
                """Store a series (T, D) under a key, unless the bank has this key."""
                if key not in self:
                    shard.store(key, values)

            try:
                yield store
                shard.sync()
            finally:
                try:
                    shard.close_files()
                finally:
                    release()

    def take_shard(self) -> tuple[Shard, Callable[[], None]]:
        """Lock the first shard (part of the bank) that is free; return it, and a function that releases its lock.

        Only one process adds to a shard at a time. The caller must hold the bank's lock.
        Incomplete data after the last complete series of the shard are removed.
        """
        for number in count():
            shard = self._shard(number)
            if release := take_lock(shard.lock_file):
                try:
                    remove_parts(shard.folder, below=False)
                    shard.under_way_file.unlink(missing_ok=True)
                    shard.cut()
                except BaseException:
                    release()
                    raise
                return shard, release
        raise AssertionError("count() never ends")


def keys_in(folder: Path) -> set[str]:
    """Return the keys of all stored series of vectors of the bank in a folder, by reading only its indexes.

    The result is empty if the folder has no bank.
    """
    return {key for index in (folder / "index.jsonl", *folder.glob("shard-*/index.jsonl")) for key in keys_of(index)}


def open_bank(
    folder: Path, dim: int, dtype: str, identity: dict[str, Any], hint: str | None = None, verify: bool = False
) -> Bank:
    """Open or create a bank in a folder; refuse a bank whose vectors were computed in another way (`identity`).

    A bank stores series of vectors by key, such as the frames of clips. identity: Everything that determines the
    vectors: settings, version, and checksums of weights. hint: End of the error message for a damaged bank, with the
    cure. verify: Read every series now, drop the damaged series, so that they are computed again, and log their number.
    Raises KitError if the folder contains a damaged bank, or a bank with another identity, dimension or dtype.
    """
    wanted = {"identity": identity, "dim": dim, "dtype": dtype}
    facts_file = folder / "bank.json"
    if not facts_file.exists():
        with lock(folder / "dealing.lock", "", wait=True):
            if not facts_file.exists():  # another process may have created it meanwhile
                write_text(facts_file, json.dumps(wanted, indent=1) + "\n")
    try:
        found = read_json(facts_file)
    except DataError as error:
        raise KitError(f"{facts_file} is damaged; delete {folder} and build the bank again") from error
    if found != json.loads(json.dumps(wanted)):
        raise KitError(
            f"{folder} has frames that were computed with other settings: {found}, not {wanted}; "
            "delete this folder, or use another folder for banks"
        )
    hint = hint or f"delete {folder} and run the same command again to compute it"
    return Bank(folder, dim, np.dtype(dtype), hint, verify)
