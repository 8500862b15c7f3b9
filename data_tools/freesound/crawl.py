"""All descriptions of Freesound into a store, politely, however often it is stopped."""

import argparse
import asyncio
import logging
import math
import re
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from data_tools.cli import PROGRESS_SECONDS, counted
from data_tools.errors import DataError
from data_tools.files import require_file
from data_tools.freesound.access import add_connection, is_local, read_access
from data_tools.freesound.client import Client, NoPageError, PastEndError
from data_tools.freesound.completeness import (
    ask_for_missing,
    compare_parts,
    count_of,
    fallen,
    mark_complete,
    one_by_one,
    whole_page,
)
from data_tools.freesound.database import naming
from data_tools.freesound.quota import DAY
from data_tools.freesound.refresh import refresh, summary
from data_tools.freesound.sounds import PAGE_SIZE, Page, format_time, parse_time
from data_tools.freesound.store import Store
from data_tools.freesound.windows import Progress, Window, past_end, split
from data_tools.locks import lock_of

BEGINNING = "2005-01-01"  # Freesound opened in April 2005
LATE = 30 * 86_400  # seconds by which a sound may be published after its upload: --since last looks back so far
CHECKS = 3  # of the whole, until what came and went meanwhile is caught up with
SHOWN = 5  # places of sounds that the API could not give
TERMINAL_SECONDS = 10.0  # between two lines of progress in a terminal
OF_TEXT = (".csv", ".tsv", ".txt", ".json", ".jsonl")  # names of tables and lists, which no store has
_BYTES_A_SOUND = 700  # of the store, measured with invented sounds

log = logging.getLogger(__name__)


async def walk(client: Client, store: Store, workers: int) -> bool:
    """Read every window that is left, `workers` at a time, and keep each answer as it comes; then compare the whole.

    Returns whether the sounds kept add up to the API's last count. Raises DataError for what asking again cannot mend;
    all that was read is kept.
    """
    for _ in range(CHECKS):
        await _read_windows(client, store, workers)
        if store.fact("complete") == store.fact("until"):
            return True
        with store.transaction():
            store.add_window(_whole(store))
    await _read_windows(client, store, workers)
    return store.fact("complete") == store.fact("until")


def _whole(store: Store) -> Window:
    """All that the crawl is about, to be compared with what is kept."""
    return Window(int(store.fact("from") or 0), int(store.fact("until") or 0), compared=True)


async def _read_nulls(client: Client, store: Store, workers: int) -> None:
    """Read again around the sounds that the API could not give: it may have been repaired."""
    before = store.nulls()
    with store.transaction():
        for null in before:
            last = _whole(store).last * 1000 if null.before_ms is None else null.before_ms
            store.add_window(Window(null.after_ms // 1000, last // 1000))
    await _read_windows(client, store, workers)
    if before:
        print(f"{counted(len(before), 'sound')} that could not be read: {len(before) - len(store.nulls())} can be now")


async def _read_windows(client: Client, store: Store, workers: int) -> None:
    under_way: dict[asyncio.Task[None], int] = {}
    reported, every = time.monotonic(), TERMINAL_SECONDS if sys.stderr.isatty() else PROGRESS_SECONDS
    try:
        while True:
            for window in store.open_windows(workers):
                if len(under_way) < workers and window.first not in under_way.values():
                    under_way[asyncio.create_task(_step(client, store, window))] = window.first
            if not under_way:
                return
            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del under_way[task]
                task.result()
            if time.monotonic() - reported > every:
                reported = time.monotonic()
                log.info("%s", progress_line(client, store))
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _step(client: Client, store: Store, window: Window) -> None:
    """One page of a window."""
    whole = _whole(store)
    is_whole = (window.first, window.last, window.page) == (whole.first, whole.last, 1)
    narrowed = store.fact("filter") or None
    try:
        page = await whole_page(client, window, narrowed)
    except PastEndError:
        progress = past_end(window)
    except NoPageError:
        if is_whole and window.compared:
            progress = await compare_parts(client, store, window, narrowed)
        elif window.halves:
            progress = Progress(split(window))
        else:
            first = replace(window, page=1, expected=None)
            store.save(first, await one_by_one(client, first, narrowed))
            return
    else:
        if again := fallen(store, window, page.count):
            progress = Progress((again,))
        else:
            _keep(store, window, page, is_whole)
            return
    with store.transaction():
        store.keep_progress(window, progress)


def _keep(store: Store, window: Window, page: Page, is_whole: bool) -> None:
    progress = store.save(window, page)
    if is_whole:
        store.set_fact("total", str(page.count))
        if window.compared and not progress.windows and not progress.uneven:
            mark_complete(store, window.last)


def progress_line(client: Client, store: Store) -> str:
    """Sounds kept, requests made and left, and the time left by the quota alone."""
    kept, total, quota = store.count(), store.fact("total"), client.quota
    used = quota.used()
    line = (
        f"{kept} of {counted(int(total), 'sound') if total else 'an unknown number of sounds'} kept; "
        f"{counted(client.requests, 'request')}, {used.minute} of {quota.per_minute} a minute, "
        f"{used.day} of {quota.per_day} a day"
    )
    if total is None:
        return line
    left = max(0, math.ceil((int(total) - kept) / PAGE_SIZE))
    return f"{line}; at least {duration(quota.seconds_for(left))} left"


def duration(seconds: float) -> str:
    """In the unit a reader would choose."""
    for size, unit in ((DAY, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return counted(round(seconds), "second")


def _require_same(store: Store, narrowed: str | None, site: str) -> None:
    """Raises DataError for another filter or address than the store was begun with."""
    for name, value in (("site", site), ("filter", narrowed or "")):
        before = store.fact(name) if store.count() else None  # of a store without sounds nothing is spoilt
        moved = name == "site" and is_local(before or "") and is_local(site)  # a sandbox has another port every time
        if before is not None and before != value and not moved:
            problem = f"was crawled with {name} {before or 'none'}, not {value or 'none'}"
            raise DataError(f"{store.path}: {problem}; use that again, or another store")


def _plan(store: Store, since: str | None, narrowed: str | None, site: str) -> None:
    """Put the windows of this command into the store. Raises DataError for an option that does not fit the store."""
    _require_same(store, narrowed, site)
    begun = store.fact("until") is not None
    first = _first_second(store, since)
    if since and begun and store.fact("complete") != store.fact("until"):
        if float(store.fact("fallen") or 0):  # the same command goes on once the index is whole
            return
        raise DataError(f"{store.path}: is not complete yet; run the same command without --since first")
    with store.transaction():
        store.set_fact("site", site)
        store.set_fact("filter", narrowed or "")
        if since or not begun:
            now = int(time.time())
            store.add_window(Window(first, now, compared=begun))
            store.set_fact("reading_from", str(first))
            store.set_fact("from", str(min(first, int(store.fact("from") or first))))
            store.set_fact("until", str(now))


def _first_second(store: Store, since: str | None) -> int:
    """Where this command's reading begins. Raises DataError for a date that is none."""
    if since == "last":
        until = store.fact("until")
        if until is None:
            raise DataError(f"{store.path}: was never crawled, so there is no last time; leave out --since last")
        return int(until) - LATE
    return _second_of(since)


def _second_of(since: str | None) -> int:
    """A date's first second. Raises DataError for one that is none, or lies in the future."""
    try:
        first = parse_time(since or BEGINNING) // 1000
    except ValueError:
        raise DataError(f"--since {since}: expects `last` or a date such as 2026-01-31") from None
    if first > time.time():
        raise DataError(f"--since {since}: lies in the future")
    return first


async def _dry_run(client: Client, store: Store, since: str | None, narrowed: str | None) -> None:
    _require_same(store, narrowed, client.site)
    window = Window(_first_second(store, since), int(time.time()))
    count = await count_of(client, window, narrowed)
    kept = store.count(f"NOT missing AND created >= {window.first * 1000}")
    requests = math.ceil(max(0, count - kept) / PAGE_SIZE)
    print(f"{counted(count, 'sound')} since {_day(window.first)}, {kept} of them in {store.path}")
    length = duration(client.quota.seconds_for(requests))
    print(f"at least {counted(requests, 'request')} left, {length} at this key's limits")
    mebibytes = max(0, count - kept) * _BYTES_A_SOUND / 2**20
    print(f"about {mebibytes:.0f} MiB of disk; nothing was stored but this request's count")


async def _crawl(arguments: argparse.Namespace, store: Store) -> int:
    from data_tools.freesound.http import connect

    async with connect(arguments, store) as client:
        if arguments.dry_run:
            await _dry_run(client, store, arguments.since, arguments.filter)
            return 0
        with lock_of(store.path):
            if arguments.refresh:
                _require_same(store, arguments.filter or store.fact("filter") or None, client.site)
                print(summary(store, await refresh(client, store)))
                await _read_nulls(client, store, arguments.workers)
                return 0
            _plan(store, arguments.since, arguments.filter, client.site)
            if store.fact("complete") == store.fact("until"):
                print(f"{_describe(store)}; --since last reads what came after")
                return 0
            added_up = await walk(client, store, arguments.workers)
            if added_up:
                await ask_for_missing(client, store)
            print(progress_line(client, store))
    if added_up:
        print(f"{_describe(store)}: {counted(store.count(), 'sound')}")
    else:
        count = counted(store.count(), "sound")
        print(f"{store.path}: {count} kept, and the API counts {store.fact('total')}; run it again")
    if nulls := store.nulls():
        verb = "was" if len(nulls) == 1 else "were"
        print(f"{counted(len(nulls), 'sound')} {verb} null or an error whenever asked for, uploaded:")
        for null in nulls[:SHOWN]:
            print(f"  {null.between}")
        print("python -m data_tools status --list FILE.csv writes all of them")
    if uneven := store.uneven():
        print(f"the API's count is another in {counted(len(uneven), 'window')}; python -m data_tools status lists them")
    return 0 if added_up else 1


def _describe(store: Store) -> str:
    whole = _whole(store)
    return f"{store.path} is complete from {_day(whole.first)} to {_day(whole.last)}"


def _day(second: int) -> str:
    return format_time(second * 1000)[:10]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, metavar="STORE", help="the SQLite file to make or go on with")
    parser.add_argument(
        "--since", metavar="DATE", help="read what was uploaded since: a date, or `last` (the last crawl)"
    )
    parser.add_argument("--filter", help="only such sounds, in the API's own syntax: 'duration:[3 TO 120]'")
    refresh = "read again which sounds object to generative training, and whose licence or preference has changed"
    parser.add_argument("--refresh", action="store_true", help=refresh)
    parser.add_argument("--dry-run", action="store_true", help="one request: how many sounds, requests, days, bytes")
    add_connection(parser)


def _check_filter(text: str | None) -> None:
    """Raises DataError for a filter by time, and for one that would not stay within the parentheses around it."""
    if text is None:
        return
    if re.search(r"\bcreated(_range)?:", text):
        raise DataError(f"--filter {text}: the crawl itself filters by created; use --since")
    outside, depth = re.sub(r'"[^"]*"', "", re.sub(r"\\.", "", text)), 0
    for sign in re.findall("[()]", outside):
        depth += 1 if sign == "(" else -1
        if depth < 0:
            break
    if depth or '"' in outside or not re.sub(r"[()\s]", "", text):
        raise DataError(f"--filter {text!a}: is empty, or has a quote or parenthesis without its partner; correct it")


def run(arguments: argparse.Namespace) -> int:
    _check_filter(arguments.filter)
    if arguments.refresh and (arguments.since or arguments.dry_run):
        raise DataError("--refresh: goes neither with --since nor with --dry-run; run them one after the other")
    store = arguments.store
    if store.suffix.lower() in OF_TEXT and store.is_file() and not store.stat().st_size:
        hint = f"crawl takes no list of words or ids; name the store to make, such as {store.with_suffix('.sqlite')}"
        raise DataError(f"{store}: is an empty file, and no store of Freesound sounds; {hint}")
    read_access(arguments)  # what is wrong with them is reported before there is a store
    if arguments.refresh:
        require_file(store, f"make it with python -m data_tools crawl {store}")
    elif arguments.since == "last":
        require_file(store, "it was never crawled, so there is no last time; leave out --since last")
    else:
        _second_of(arguments.since)
    with closing(Store(store, create=True)) as opened, naming(store):
        return asyncio.run(_crawl(arguments, opened))
