"""All descriptions of Freesound into a store, politely, however often it is stopped."""

import argparse
import asyncio
import logging
import math
import time
from pathlib import Path

from data_tools.errors import DataError
from data_tools.files import alone
from data_tools.freesound.client import Client, OverloadedError, PastEndError
from data_tools.freesound.connection import add_connection, connect, is_local
from data_tools.freesound.quota import DAY
from data_tools.freesound.sounds import PAGE_SIZE, Page, Sound, format_time, parse_time
from data_tools.freesound.store import Store
from data_tools.freesound.windows import Window

BEGINNING = "2005-01-01"  # Freesound opened in April 2005
NULL_ATTEMPTS = 3  # at a page that has items the API gives as null
PROGRESS_SECONDS = 10.0
_BYTES_A_SOUND = 700  # of the store, measured with invented sounds

log = logging.getLogger(__name__)


async def walk(client: Client, store: Store, workers: int) -> None:
    """Read every window that is left, `workers` at a time, and keep each answer as it comes.

    Raises DataError for what asking again cannot mend; all that was read is kept.
    """
    under_way: dict[asyncio.Task[None], int] = {}
    told = time.monotonic()
    try:
        while True:
            for window in store.open_windows(workers):
                if len(under_way) < workers and window.first_ms not in under_way.values():
                    under_way[asyncio.create_task(_step(client, store, window))] = window.first_ms
            if not under_way:
                return
            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del under_way[task]
                task.result()
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                log.info("%s", progress_line(client, store))
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _step(client: Client, store: Store, window: Window) -> None:
    """One page of a window."""
    narrowed = store.fact("filter") or None
    try:
        page = await _whole_page(client, window, narrowed)
    except PastEndError:
        parts: tuple[Window, ...] = (Window(window.first_ms, window.last_ms, compared=window.compared),)
    except OverloadedError:
        parts = window.halves or (window,)
    else:
        if window.page == 1 and not store.fact("total"):
            store.set_fact("total", str(page.count))
        store.save(window, page)
        return
    with store.transaction():
        store.replace_window(window, parts)


async def _whole_page(client: Client, window: Window, narrowed: str | None) -> Page:
    """A page, asked for again while it has null items, which may be there the next time."""
    page = await client.search(window, narrowed)
    sounds: list[Sound | None] = page.sounds
    for _ in range(NULL_ATTEMPTS - 1):
        if None not in sounds:
            break
        again = await client.search(window, narrowed)
        if len(again.sounds) != len(sounds) or again.count != page.count:
            return again  # sounds have moved; what is wrong now shows at the window's end
        sounds = [ours or theirs for ours, theirs in zip(sounds, again.sounds, strict=True)]
    return Page(page.count, sounds)


def progress_line(client: Client, store: Store) -> str:
    """Sounds kept, requests made and left, and the time left by the quota alone."""
    kept, total, quota = store.count(), int(store.fact("total") or 0), client.quota
    used, left = quota.used(), max(0, math.ceil((total - kept) / PAGE_SIZE))
    return (
        f"{kept} of {total} sounds kept; {client.requests} requests, {used.minute} of {quota.per_minute} a minute, "
        f"{used.day} of {quota.per_day} a day; at least {duration(quota.seconds_for(left))} left"
    )


def duration(seconds: float) -> str:
    """In the unit a reader would choose."""
    for size, unit in ((DAY, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _plan(store: Store, since: str | None, narrowed: str | None, site: str) -> None:
    """Put the windows of this command into the store. Raises DataError for another filter or address than before."""
    until = int(store.fact("until") or 0)
    facts = {"site": site, "filter": narrowed or ""}
    for name, value in facts.items():
        before = store.fact(name) or ""
        moved = name == "site" and is_local(before) and is_local(site)  # a sandbox may have another port every time
        if until and before != value and not moved:
            raise DataError(
                f"{store.path}: was crawled with {name} {before or 'none'}, not {value or 'none'}; "
                "use that again, or another store"
            )
    if since == "last" and not until:
        raise DataError(f"{store.path}: was never crawled, so there is no last time; leave out --since last")
    with store.transaction():
        for name, value in facts.items():
            store.set_fact(name, value)
        if not until:
            _begin(store, since or BEGINNING)
        elif since and not store.open_windows(1):
            _begin(store, format_time(until + 1) if since == "last" else since)


def _begin(store: Store, first: str) -> None:
    now = int(time.time() * 1000)
    try:
        first_ms = parse_time(first)
    except ValueError:
        raise DataError(f"--since {first}: expects `last` or a date such as 2026-01-31") from None
    if first_ms > now:
        raise DataError(f"--since {first}: lies in the future")
    store.add_window(Window(first_ms, now, compared=store.count() > 0))
    store.set_fact("until", str(now))


async def _dry_run(client: Client, store: Store, narrowed: str | None) -> None:
    now = int(time.time() * 1000)
    count = (await client.search(Window(parse_time(BEGINNING), now), narrowed)).count
    left = max(0, count - store.count())
    requests = math.ceil(left / PAGE_SIZE)
    print(f"{count} sounds are there, {store.count()} of them in {store.path}")
    print(f"{requests} requests are left at least, {duration(client.quota.seconds_for(requests))} at this key's limits")
    print(f"about {left * _BYTES_A_SOUND / 2**20:.0f} MiB of disk; nothing was stored but this one request's count")


async def _crawl(arguments: argparse.Namespace, store: Store) -> int:
    async with connect(arguments, store) as client:
        if arguments.dry_run:
            await _dry_run(client, store, arguments.filter)
            return 0
        with alone(store.path):
            _plan(store, arguments.since, arguments.filter, client.site)
            if not store.open_windows(1):
                print(f"{store.path} is complete up to {_until(store)}; --since last reads what came after")
                return 0
            await walk(client, store, arguments.workers)
            print(progress_line(client, store))
    print(f"{store.path} is complete up to {_until(store)}: {store.count()} sounds")
    return _told_gaps(store)


def _until(store: Store) -> str:
    return format_time(int(store.fact("until") or 0))


def _told_gaps(store: Store) -> int:
    if nulls := store.nulls():
        print(f"{len(nulls)} items are null for good, in the API's own answers; python -m data_tools status lists them")
    if uneven := store.uneven():
        print(f"{len(uneven)} windows do not add up to the API's count; python -m data_tools status lists them")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, metavar="STORE", help="the SQLite file to make or go on with")
    parser.add_argument(
        "--since", metavar="DATE", help="read what was uploaded since: a date, or `last` (the last crawl)"
    )
    parser.add_argument("--filter", help="only such sounds, in the API's own syntax: 'duration:[3 TO 120]'")
    parser.add_argument("--dry-run", action="store_true", help="one request: how many sounds, requests, days, bytes")
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    store = Store(arguments.store, create=True)
    try:
        return asyncio.run(_crawl(arguments, store))
    finally:
        store.close()
