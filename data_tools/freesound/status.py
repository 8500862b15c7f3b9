"""Where a crawl stands: what is kept, what is left, what the quota allows, what the API could not give."""

import argparse
from contextlib import closing
from pathlib import Path

from data_tools.cli import counted, ending_in, section
from data_tools.files import write_table
from data_tools.freesound.connection import PER_DAY, PER_MINUTE
from data_tools.freesound.crawl import duration
from data_tools.freesound.database import naming
from data_tools.freesound.quota import Clock, Quota
from data_tools.freesound.sounds import format_time
from data_tools.freesound.store import Store


def _describe(store: Store) -> list[str]:
    total, until = store.fact("total"), store.fact("until")
    windows = store.database.execute("SELECT COUNT(*) FROM windows").fetchone()[0]
    used = Quota(store.database, PER_MINUTE, PER_DAY, Clock()).used()
    lines = [
        f"{store.count():>8}  sounds kept, of {total or 'an unknown number'} that the API counted last",
        f"{store.count('gone'):>8}  more have gone from Freesound since they were read",
        f"{store.count('NOT gone AND duration BETWEEN 3 AND 120'):>8}  last 3 s to 2 min",
        f"{windows:>8}  windows are left to read" + (f", up to {format_time(int(until) * 1000)}" if until else ""),
        f"{used.minute:>8}  requests in the last minute, {used.day} in the last 24 hours",
    ]
    if used.wait:
        lines.append(f"{duration(used.wait):>8}  until the next request, at a standard key's limits")
    for column in ("license", "gen_ai_preference"):
        lines.append(f"\n{column}:")
        query = f"SELECT {column}, COUNT(*) FROM sounds WHERE NOT gone GROUP BY 1 ORDER BY 2 DESC"
        lines += [f"{count:>8}  {value or 'not stated'}" for value, count in store.database.execute(query)]
    return lines


def _gaps(store: Store) -> list[tuple[str, str, str, str]]:
    """Rows of the list: what, from, to, where."""
    gaps = [("null item", null.after_ms, null.before_ms, null.where) for null in store.nulls()]
    for first, last, count in store.uneven():
        gaps.append(("window that does not add up", first * 1000, last * 1000, f"count {count or 'unknown'}"))
    return [(what, format_time(first), format_time(last) if last else "", where) for what, first, last, where in gaps]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, metavar="STORE", help="made by crawl")
    parser.add_argument(
        "--list", type=ending_in(".csv"), metavar="FILE.csv", help="write all that the API could not give"
    )


def run(arguments: argparse.Namespace) -> int:
    with closing(Store(arguments.store, read_only=True)) as store, naming(arguments.store):
        gaps = _gaps(store)
        rows = [f"{what}: {first} to {last or 'now'}, {where}" for what, first, last, where in gaps]
        print(*_describe(store), *section("the API could not give (uploaded from .. to ..)", rows), sep="\n")
    if arguments.list:
        write_table(arguments.list, ["what", "from", "to", "where"], gaps)
        print(f"\nwrote {arguments.list}: {counted(len(gaps), 'row')}")
    return 0
