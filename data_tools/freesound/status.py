"""Verb status: state of a crawl.

Prints the state of a crawl: stored sounds, open windows, requests, sounds that the API could not deliver.
"""

import argparse
import logging
from pathlib import Path

from data_tools.cli import about, add_json, counted, ending_in, section
from data_tools.documents.strict import Report, print_report
from data_tools.freesound.access import PER_DAY, PER_MINUTE
from data_tools.freesound.quota import Clock, Quota
from data_tools.freesound.sounds import format_time
from data_tools.freesound.store import Store, open_store
from data_tools.tables import write_table

log = logging.getLogger(__name__)


class Gap(Report):
    """A sound, or a time window, that the API could not deliver completely.

    first, last: Range of the upload times; `last` is "" for a range that ends now.
    """

    what: str
    first: str
    last: str
    where: str


class StatusReport(Report):
    """State of a crawl.

    Attributes:
        sounds: Number of stored sounds.
        counted: Number of sounds that the API last reported.
        missing: Number of stored sounds that the last searches did not find.
        gone: Number of missing sounds that a later search for their id did not find either.
        fitting: Number of sounds from 3 s to 2 min.
        windows: Number of time windows still to read.
        until: Time (UTC) up to which the crawl reads sounds; None before the first crawl.
        wait: Seconds until the next request is allowed, by the limits of the last crawl or fetch.
        licences: Dict from licence to its number of sounds.
        preferences: Dict from a preference on training of generative AI, which uploaders choose, to its number of
            sounds.
    """

    sounds: int
    counted: int | None
    missing: int
    gone: int
    fitting: int
    windows: int
    until: str | None
    requests_in_last_minute: int
    requests_in_last_day: int
    wait: float
    licences: dict[str, int]
    preferences: dict[str, int]
    gaps: list[Gap]


def _collect(store: Store) -> StatusReport:
    """Collect the state of a store: sounds, requests, licences, and gaps."""
    until, limits = store.fact("until"), (store.fact("per_minute", PER_MINUTE), store.fact("per_day", PER_DAY))
    used = Quota(store.database, *limits, Clock()).used()
    return StatusReport(
        sounds=store.count(),
        counted=store.fact("total"),
        missing=store.count("missing"),
        gone=store.count("gone"),
        fitting=store.count("NOT missing AND duration BETWEEN 3 AND 120"),
        windows=store.database.execute("SELECT COUNT(*) FROM windows").fetchone()[0],
        until=format_time(until * 1000) if until else None,
        requests_in_last_minute=used.minute,
        requests_in_last_day=used.day,
        wait=float(used.wait),
        licences=_count_by_value(store, "license"),
        preferences=_count_by_value(store, "gen_ai_preference"),
        gaps=_gaps(store),
    )


def _count_by_value(store: Store, column: str) -> dict[str, int]:
    """Return a dict from each value in a column to its number of sounds, most frequent value first."""
    query = f"SELECT {column}, COUNT(*) FROM sounds WHERE NOT missing GROUP BY 1 ORDER BY 2 DESC"
    return {value or "not stated": count for value, count in store.database.execute(query)}


def _gaps(store: Store) -> list[Gap]:
    """Return the null sounds, and the time windows with fewer or more stored sounds than the API counts."""
    gaps = []
    for after, before, page, position in store.nulls():
        last, where = format_time(before) if before else "", f"item {position} of page {page}"
        gaps.append(Gap(what="sound null or an error", first=format_time(after), last=last, where=where))
    for *span, count in store.uneven_windows():
        first, last = (format_time(second * 1000) for second in span)
        where = f"the API counts {count or 'an unknown number'}"
        gaps.append(
            Gap(what="time window with fewer or more sounds than the API counts", first=first, last=last, where=where)
        )
    return gaps


def _lines(report: StatusReport) -> list[str]:
    """Format the state of a store as lines of text."""
    until = f", up to {report.until}" if report.until else ""
    lines = [
        f"{report.sounds:>8}  sounds stored; the API has last counted {report.counted or 'an unknown number'}",
        f"{report.missing:>8}  stored sounds that the last searches did not find; {report.gone} of these are deleted",
        f"{report.fitting:>8}  stored sounds are 3 s to 2 min long",
        f"{report.windows:>8}  time windows are left to read{until}",
        f"{report.requests_in_last_minute:>8}  requests in the last minute",
        f"{report.requests_in_last_day:>8}  requests in the last 24 hours",
    ]
    if report.wait:
        lines.append(f"the limits of the last crawl or fetch allow the next request in {about(report.wait)}")
    for column, counts in (("license", report.licences), ("gen_ai_preference", report.preferences)):
        lines += [f"\n{column}:", *(f"{count:>8}  {value}" for value, count in counts.items())]
    rows = [f"{gap.what}: uploaded {gap.first} to {gap.last or 'now'}, {gap.where}" for gap in report.gaps]
    return [*lines, *section("sounds and time windows that the API could not deliver completely", rows)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `status` to its parser."""
    parser.add_argument("store", type=Path, metavar="STORE", help="SQLite file made by crawl")
    gaps = "also write the sounds and time windows that the API could not deliver completely to a table"
    parser.add_argument("--list", type=ending_in(".csv"), metavar="FILE.csv", help=gaps)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `status`: print the state of a crawl; return the exit status."""
    with open_store(arguments.store, read_only=True) as store:
        report = _collect(store)
    if arguments.json:
        print_report(report)
    else:
        print(*_lines(report), sep="\n")
    if arguments.list:
        rows = [(gap.what, gap.first, gap.last, gap.where) for gap in report.gaps]
        write_table(arguments.list, ["what", "from", "to", "where"], rows)
        log.info("wrote %s: %s", arguments.list, counted(len(rows), "row"))
    return 0
