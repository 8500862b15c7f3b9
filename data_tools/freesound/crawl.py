"""Read the descriptions of all sounds of Freesound.

One request reads a block of 150 ids.

A block is read or unread, so that the command can be stopped and started at any time. Freesound numbers its sounds by
upload; a later crawl reads the blocks of new ids, and again those of about the last month, whose sounds may have been
published late.
"""

import logging
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from data_tools.cli import progress
from data_tools.files import lock_of
from data_tools.freesound.api import Api, read_access
from data_tools.freesound.store import PAGE_SIZE, Store, open_store

LATE = 40  # blocks before the newest one that a later crawl reads again: about a month of uploads
FEW = 0.97  # share of the API's number of sounds, below which a crawl has missed some

log = logging.getLogger(__name__)


def read_all(api: Api, store: Store, refresh: bool = False) -> None:
    """Read all unread blocks.

    While Freesound rebuilds its search index, searches find a part of the sounds only: so the number of stored sounds
    is compared with the API's. Sounds that are deleted stay in the store; fetch asks for them again.

    Args:
        api: Client of the API.
        store: Store of the crawl.
        refresh: Read the other blocks again too, for changed licences and preferences; a stopped refresh continues.
    """
    (count, highest), last = api.count(), store.fact("newest")
    if refresh and last is not None:  # it is None while a first crawl or a refresh is under way
        store.forget_blocks()
        store.set_fact("newest", None)
    newest = highest // PAGE_SIZE
    total = newest + 1
    store.set_fact("blocks", total)
    done = {block for block in store.blocks_read() if last is None or block < last - LATE}
    blocks = [block for block in range(total) if block not in done]
    store.set_fact("count", count)
    with progress("crawl", total, "block", total - len(blocks)) as bar:
        for block in blocks:
            store.save(api.sounds(range(block * PAGE_SIZE, (block + 1) * PAGE_SIZE)), block)
            bar.update()
    store.set_fact("newest", newest)
    if len(store) < FEW * count:
        log.warning("stored %d of %d sounds: the API's index is perhaps being rebuilt; crawl --refresh later",
                    len(store), count)  # fmt: skip


def try_one_block() -> None:
    """Ask for one block, and print what the API answers."""
    with TemporaryDirectory() as folder, open_store(Path(folder, "store"), create=True) as store:
        api = Api(store)
        count, highest = api.count()
        first = highest // 2
        found = api.sounds(range(first, first + PAGE_SIZE))
    print(f"{api.site} counts {count:,} sounds; the highest id is {highest:,}")
    print(f"ids from {first:,} on: {len(found)} of {PAGE_SIZE} are sounds")
    for sound in found[:3]:
        print(f"  {sound['id']}  {sound['license']}  {sound['description'][:80]!r}")
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
        read_all(Api(opened, per_minute, per_day), opened, refresh)
        print(f"{store}: {len(opened):,} sounds stored; the API counts {opened.fact('count'):,}")


def status(
    store: Path,
) -> None:
    """Print the state of a crawl.

    Args:
        store: SQLite file made by crawl.
    """
    with open_store(store) as opened:
        print(f"{len(opened):>8}  sounds stored; the API counts {opened.fact('count')}")
        print(f"{len(opened.blocks_read()):>8}  of {opened.fact('blocks')} blocks of {PAGE_SIZE} ids read")
        for column in ("license", "gen_ai_preference"):
            print(f"\n{column}:")
            for value, count in Counter(value for (value,) in opened.sounds(column)).most_common():
                print(f"{count:>8}  {value}")
