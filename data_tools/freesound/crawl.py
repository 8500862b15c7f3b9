"""Read the descriptions of all sounds of Freesound.

They are read in blocks of 150 ids, one request per block.

A block is read or unread, so that the command can be stopped and started at any time. Freesound numbers its sounds by
upload; a later crawl reads the blocks of new ids, and again those of about the last month, whose sounds may have been
published late.
"""

import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from data_tools.cli import progress
from data_tools.errors import DataError
from data_tools.files import lock_of
from data_tools.freesound.api import DAY, Api, Limits, read_access
from data_tools.freesound.store import PAGE_SIZE, Store, open_store

LATE = 40  # blocks before the newest one that a later crawl reads again: about a month of uploads
GROUP = 50  # blocks between two counts of the index; a kill loses at most these requests
PATIENCE = 3  # days after which a lower number of sounds is believed
FALL = 0.97  # share of the known number of sounds, below which the search index is being rebuilt


def ids_of(block: int) -> list[int]:
    """Return the ids of a block: 150 of them, but 149 of block 0, since there is no id 0."""
    return list(range(max(1, block * PAGE_SIZE), (block + 1) * PAGE_SIZE))


def read_all(api: Api, store: Store, refresh: bool = False) -> None:
    """Read all unread blocks.

    While Freesound rebuilds its search index, searches find a part of the sounds only. So the API's number of sounds is
    asked before and after each group of blocks; a rebuild that begins and ends in between is not seen.

    Args:
        api: Client of the API.
        store: Store of the crawl.
        refresh: Read the other blocks again too, for changed licences, preferences and deleted sounds; a stopped
            refresh continues.

    Raises:
        DataError: The API counts far fewer sounds than before. The last group of blocks is then read again.
    """
    newest, last = _require_whole_index(api, store) // PAGE_SIZE, store.fact("newest")
    if refresh and last is not None:  # it is None while a crawl or refresh is under way
        store.forget_blocks()
        store.set_fact("newest", None)
    done = {block for block in store.blocks_read() if last is None or block < last - LATE}
    blocks = [block for block in range(newest + 1) if block not in done]
    with progress("crawl", newest + 1, "block", newest + 1 - len(blocks)) as bar:
        for start in range(0, len(blocks), GROUP):
            group, begun = blocks[start : start + GROUP], time.time()
            for block in group:
                store.save(*api.sounds(ids_of(block)))
                bar.update()
            _require_whole_index(api, store)
            store.settle(group, begun)
    store.set_fact("newest", newest)


def _require_whole_index(api: Api, store: Store) -> int:
    """Return the highest id on Freesound.

    Raises:
        DataError: The number of sounds has fallen; a fall that lasts PATIENCE days is accepted.
    """
    count, highest = api.count()
    known, fell = store.fact("count", 0), store.fact("fell", 0) or time.time()
    is_whole = count >= FALL * known or time.time() - fell >= PATIENCE * DAY
    store.set_fact("fell", 0 if is_whole else fell)
    if not is_whole:
        raise DataError(f"the API counts {count:,} sounds, not {known:,}: its index is being rebuilt; try again later")
    store.set_fact("count", count)
    return highest


def try_one_block() -> None:
    """Ask for one block, once, and print what the API answers."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE requests (at)")
        api = Api(Limits(database), attempts=1)
        count, highest = api.count()
        ids = ids_of(highest // PAGE_SIZE // 2)
        found, unread = api.sounds(ids)
    print(f"{api.site} counts {count:,} sounds; the highest id is {highest:,}")
    print(f"ids {ids[0]:,} to {ids[-1]:,}: {len(found)} of {len(ids)} are sounds, {len(unread)} cannot be read")
    print(*(f"  {sound['id']}  {sound['license']}  {sound['description'][:80]!r}" for sound in found[:3]), sep="\n")
    print(f"a crawl takes about {highest // PAGE_SIZE:,} requests; nothing was stored")


def crawl(
    store: Path,
    *,
    refresh: bool = False,
    dry_run: bool = False,
    per_minute: Annotated[int, typer.Option(min=1)] = 60,
    per_day: Annotated[int, typer.Option(min=1)] = 2000,
) -> None:
    """Read the descriptions of all of Freesound into a store.

    Args:
        store: SQLite file, to create or continue.
        refresh: Read stored sounds again: licences, AI choices.
        dry_run: Ask for one block, print it, and store nothing.
        per_minute: Requests per minute that the key allows.
        per_day: Requests per day that the key allows.
    """
    read_access()
    if dry_run:
        try_one_block()
        return
    store.parent.mkdir(parents=True, exist_ok=True)
    with lock_of(store), open_store(store, create=True) as opened:
        read_all(Api(Limits(opened.database, per_minute, per_day)), opened, refresh)
        print(f"{store}: {len(opened):,} sounds stored; the API counts {opened.fact('count'):,}")


def status(
    store: Path,
) -> None:
    """Print the state of a crawl.

    Args:
        store: SQLite file made by crawl.
    """
    with open_store(store, read_only=True) as opened:
        finished = ", all" if opened.fact("newest") is not None else ""
        print(f"{len(opened):>8}  sounds stored; the API counts {opened.fact('count', 'an unknown number')}")
        print(f"{len(opened.blocks_read()):>8}  blocks of {PAGE_SIZE} ids read{finished}")
        query = "SELECT COUNT(*) FROM requests WHERE at > (SELECT MAX(at) FROM requests) - ?"
        print(f"{opened.database.execute(query, (DAY,)).fetchone()[0]:>8}  requests in the last day of the crawl")
        for column in ("license", "gen_ai_preference"):
            print(f"\n{column}:")
            for value, count in Counter(value for (value,) in opened.sounds(column)).most_common():
                print(f"{count:>8}  {value}")
