"""Verb crawl: read all descriptions.

Downloads all descriptions of Freesound into a store, within the API's limits; resumes after any stop.
"""

import argparse
import asyncio
import logging
import math
import re
import sys
import time
from itertools import accumulate
from pathlib import Path

from data_tools.cli import PROGRESS_SECONDS, about, counted
from data_tools.errors import DataError
from data_tools.files import require_file
from data_tools.freesound.access import add_connection_options, is_local, read_access
from data_tools.freesound.client import Client
from data_tools.freesound.completeness import (
    compare_parts,
    count_sounds,
    look_up_missing,
    mark_complete,
    read_page,
    window_to_retry,
)
from data_tools.freesound.refresh import refresh
from data_tools.freesound.sounds import PAGE_SIZE, format_time, parse_time
from data_tools.freesound.store import CHANGING, Store, open_store, transaction
from data_tools.freesound.windows import Progress, Window
from data_tools.locks import lock_of

BEGINNING = "2005-01-01"  # Freesound opened in April 2005
LATE = 30 * 86_400  # a sound may be published so many seconds after its upload; --since last looks back so far
CHECKS = 3  # checks of the whole, until sounds added or removed meanwhile are included
SHOWN = 5  # listed places of sounds that the API could not give
TERMINAL_SECONDS = 10.0  # between two progress lines in a terminal
OF_TEXT = (".csv", ".tsv", ".txt", ".json", ".jsonl")  # names of tables and lists, never of a store
_BYTES_A_SOUND = 700  # in the store, measured with invented sounds

log = logging.getLogger(__name__)


async def read_whole(client: Client, store: Store, workers: int) -> bool:
    """Read all unread time windows into the store; return whether its number of sounds then equals the API's count.

    `workers` windows are read at the same time. Raises DataError for an error that no later attempt can change; all
    answers so far remain stored.
    """
    for checks in range(CHECKS + 1):
        await _read_windows(client, store, workers)
        if _is_complete(store):
            return True
        if checks < CHECKS:
            store.add_window(_whole_window(store))
    return False


def _whole_window(store: Store) -> Window:
    """Return the time window of all uploads that the crawl covers, to be compared with the stored sounds."""
    return Window(store.fact("from"), store.fact("until"), compared=True)


def _is_complete(store: Store) -> bool:
    """Return whether the crawl has read and compared everything up to its last second."""
    return bool(store.fact("complete") == store.fact("until"))


async def _read_nulls_again(client: Client, store: Store, workers: int) -> None:
    """Read again the sounds for which the API returned null, and print how many of them it returned now."""
    nulls = store.nulls()
    with transaction(store.database):
        for null in nulls:
            last = _whole_window(store).last if null.before_ms is None else null.before_ms // 1000
            store.add_window(Window(null.after_ms // 1000, last))
    await _read_windows(client, store, workers)
    if nulls:
        n_read = len(nulls) - len(store.nulls())
        missed = counted(len(nulls), "sound")
        print(f"read again {missed} that the API could not deliver before: {n_read} could be read now")


async def _read_windows(client: Client, store: Store, workers: int) -> None:
    """Read all unread time windows, several at a time, and log the progress."""
    under_way: dict[asyncio.Task[None], int] = {}
    reported, every = time.monotonic(), TERMINAL_SECONDS if sys.stderr.isatty() else PROGRESS_SECONDS
    try:
        while True:
            for window in store.open_windows(workers):
                if len(under_way) < workers and window.first not in under_way.values():
                    under_way[asyncio.create_task(_read_and_store_page(client, store, window))] = window.first
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


async def _read_and_store_page(client: Client, store: Store, window: Window) -> None:
    """Read one page of a time window, store it, and record the parts of the window that remain to be read."""
    whole, user_filter = _whole_window(store), store.fact("filter")
    is_whole = (window.first, window.last, window.page) == (whole.first, whole.last, 1)
    answer = await read_page(client, window, user_filter)
    if isinstance(answer, Progress) and is_whole and window.compared:
        answer = await compare_parts(client, store, window, user_filter)
    elif not isinstance(answer, Progress) and (again := window_to_retry(store, window, answer[1].count)):
        answer = Progress((again,))
    if isinstance(answer, Progress):
        with transaction(store.database):
            store.replace_window(window, answer)
        return
    progress = store.save_page(*answer)
    if is_whole:
        store.set_facts(total=answer[1].count)
        if window.compared and not progress.windows and not progress.uneven:
            mark_complete(store, window.last)


def progress_line(client: Client, store: Store) -> str:
    """Return a progress line: number of stored sounds, number of requests, and the minimum time left by the quota."""
    n_stored, total, quota = store.count(), store.fact("total"), client.quota
    used = quota.used()
    total_text = "an unknown number of sounds" if total is None else counted(total, "sound")
    line = (
        f"{n_stored} of {total_text} stored; {counted(client.requests, 'request')}, "
        f"{used.minute} of {quota.per_minute} in the last minute, {used.day} of {quota.per_day} in the last day"
    )
    if total is None:
        return line
    return f"{line}; at least {about(quota.seconds_for(math.ceil(max(0, total - n_stored) / PAGE_SIZE)))} left"


def _require_same_source(store: Store, user_filter: str | None, site: str) -> None:
    """Raise DataError if the store was begun with another filter or another address of the API."""
    for name, value in (("site", site), ("filter", user_filter or "")):
        before = store.fact(name) if store.count() else None  # a store without sounds may change both
        moved = name == "site" and is_local(before or "") and is_local(site)  # a sandbox's port changes
        if before is not None and before != value and not moved:
            raise DataError(
                f"{store.path}: was crawled with {name} {before or 'none'}, not {value or 'none'}; use the same "
                f"{name}, or another store"
            )


def _plan_windows(store: Store, since: str | None, user_filter: str | None, site: str) -> None:
    """Store the site and the filter; if the crawl is new or `since` is given, also the time window to read.

    Raises DataError for an option that does not fit the store.
    """
    _require_same_source(store, user_filter, site)
    first, until, begun = _first_second(since, store), int(time.time()), store.fact("until") is not None
    if since and begun and not _is_complete(store):
        if store.fact("fallen"):  # the same command continues once the index is complete
            return
        raise DataError(f"{store.path}: the crawl is not complete yet; run the same command without --since first")
    with transaction(store.database):
        store.set_facts(site=site, filter=user_filter or "")
        if since or not begun:
            store.add_window(Window(first, until, compared=begun))
            store.set_facts(reading_from=first, **{"from": min(first, store.fact("from", first))}, until=until)


def _first_second(since: str | None, store: Store | None = None) -> int:
    """Return the earliest upload time to read, in seconds since 1970. since: Value of --since; None: the beginning.

    If the value is `last`, the result is 30 days before the end of the last crawl, because a sound may be published up
    to 30 days after its upload.
    Raises DataError for a date that is invalid or in the future, and for `last` if there was no crawl before.
    """
    if since == "last":
        until = store.fact("until") if store else None
        if until is None:
            raise DataError("--since last: the store was never crawled, so there is no last time; leave the option out")
        return int(until) - LATE
    try:
        first = parse_time(since or BEGINNING) // 1000
    except ValueError:
        raise DataError(f"--since {since}: expects `last` or a date such as 2026-01-31") from None
    if first > time.time():
        raise DataError(f"--since {since}: is in the future; use an earlier date")
    return first


async def _dry_run(client: Client, store: Store, since: str | None, user_filter: str | None) -> None:
    """Print the remaining sounds, requests, time and disk space of a crawl, without crawling."""
    _require_same_source(store, user_filter, client.site)
    window = Window(_first_second(since, store), int(time.time()))
    count = await count_sounds(client, window, user_filter)
    n_stored = store.count("NOT missing AND created >= ?", window.first * 1000)
    remaining = max(0, count - n_stored)
    requests = math.ceil(remaining / PAGE_SIZE)
    print(f"{counted(count, 'sound')} since {_day(window.first)}, {n_stored} of them in {store.path}")
    length = about(client.quota.seconds_for(requests))
    print(f"at least {counted(requests, 'request')} left, which take {length} at this key's limits")
    print(
        f"about {remaining * _BYTES_A_SOUND / 2**20:.0f} MiB of disk space needed; --dry-run stored no sounds, but "
        "its requests count against the key's limits"
    )


async def _refresh(client: Client, store: Store, arguments: argparse.Namespace) -> None:
    """Update the stored sounds that changed on Freesound, read missing sounds again, and print the numbers of both."""
    _require_same_source(store, arguments.filter or store.fact("filter"), client.site)
    changes = await refresh(client, store)
    names = {"license": "licence", "gen_ai_preference": "AI preference"}
    parts = [f"{names.get(name, name)} {changes[name]}" for name in CHANGING]
    print(f"{store.path}: {counted(store.count(), 'sound')} compared with Freesound; changed: {', '.join(parts)}")
    await _read_nulls_again(client, store, arguments.workers)


async def _crawl(arguments: argparse.Namespace, store: Store) -> int:
    """Run a crawl, a dry run, or a refresh, as the options request; return the exit status."""
    from data_tools.freesound.http import connect

    async with connect(arguments, store) as client:
        if arguments.dry_run:
            await _dry_run(client, store, arguments.since, arguments.filter)
            return 0
        with lock_of(store.path):
            if arguments.refresh:
                await _refresh(client, store, arguments)
                return 0
            _plan_windows(store, arguments.since, arguments.filter, client.site)
            if _is_complete(store):
                print(f"{_completeness_text(store)}; to read newer uploads, add `--since last`")
                return 0
            added_up = await read_whole(client, store, arguments.workers)
            if added_up:
                await look_up_missing(client, store)
            print(progress_line(client, store))
    return _print_result(store, added_up)


def _print_result(store: Store, added_up: bool) -> int:
    """Print the result of a crawl; return the exit status: 0, or 1 if the API counts more or fewer (not `added_up`)."""
    count = counted(store.count(), "sound")
    if added_up:
        print(f"{_completeness_text(store)}: {count}")
    else:
        print(f"{store.path}: {count} stored, but the API counts {store.fact('total')}; run the same command again")
    if nulls := store.nulls():
        print(f"for {counted(len(nulls), 'sound')}, the API returned only null or an error; they were uploaded:")
        for null in nulls[:SHOWN]:
            end = "now" if null.before_ms is None else format_time(null.before_ms)
            print(f"  between {format_time(null.after_ms)} and {end}")
        print(f"lbar data status {store.path} --list FILE.csv writes all of them to a table")
    if uneven := store.uneven_windows():
        print(
            f"{counted(len(uneven), 'time window')} with fewer or more stored sounds than the API counts; lbar data"
            " status lists them"
        )
    return 0 if added_up else 1


def _completeness_text(store: Store) -> str:
    """Return the text that a store is complete, with the first and the last day of upload that it covers."""
    whole = _whole_window(store)
    return f"{store.path} is complete from {_day(whole.first)} to {_day(whole.last)}"


def _day(second: int) -> str:
    """Format a time in seconds since 1970 as its date, such as 2026-01-31."""
    return format_time(second * 1000)[:10]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `crawl` to its parser."""
    add = parser.add_argument
    add("store", type=Path, metavar="STORE", help="SQLite file of the crawl, to create or continue")
    add("--since", metavar="DATE", help="only sounds uploaded since this date; `last`: since the last crawl")
    add("--filter", help="only sounds that match a filter of the API, such as 'duration:[3 TO 120]'")
    refresh = "read stored sounds again, to update changed licences and preferences about the training of AI"
    add("--refresh", action="store_true", help=refresh)
    dry_run = "only print how many sounds, requests, days and bytes are left, which takes one request"
    add("--dry-run", action="store_true", help=dry_run)
    add_connection_options(parser)


def _check_filter(text: str) -> None:
    """Raise DataError for a --filter that is empty, filters by time, or has an unmatched quote or parenthesis."""
    if re.search(r"\bcreated(_range)?:", text):
        raise DataError(f"--filter {text}: must not contain created; use --since instead")
    outside = re.sub(r'"[^"]*"', "", re.sub(r"\\.", "", text))
    depths = [*accumulate(((sign == "(") - (sign == ")") for sign in outside), initial=0)]
    if min(depths) < 0 or depths[-1] or '"' in outside or not re.sub(r"[()\s]", "", text):
        raise DataError(f"--filter {text!a}: is empty, or has an unmatched quote or parenthesis; correct it")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `crawl`: read the descriptions of all of Freesound into a store; return the exit status."""
    if arguments.filter is not None:
        _check_filter(arguments.filter)
    if arguments.refresh and (arguments.since or arguments.dry_run):
        raise DataError("--refresh does not work with --since or --dry-run; run them one after the other")
    store = arguments.store
    if store.suffix.lower() in OF_TEXT and store.is_file() and not store.stat().st_size:
        raise DataError(
            f"{store}: is an empty file, not a store of Freesound sounds; give a new store, such as "
            f"{store.with_suffix('.sqlite')}"
        )
    read_access(arguments)  # raises its errors before a store is created
    if arguments.refresh or arguments.since == "last":
        require_file(store, f"make a store with lbar data crawl {store}")
    else:
        _first_second(arguments.since)
    with open_store(store, create=True) as opened:
        return asyncio.run(_crawl(arguments, opened))
