"""Changes since a crawl: AI preferences, licences, descriptions."""

from collections import Counter

from data_tools.cli import counted
from data_tools.errors import DataError
from data_tools.freesound.client import Client, NoPageError, PastEndError, grouped
from data_tools.freesound.completeness import count_of, has_fallen, one_by_one, whole_page
from data_tools.freesound.selection import LICENCES, PREFERENCES
from data_tools.freesound.store import CHANGING, Store
from data_tools.freesound.windows import Window, past_end, split

# The search's names of the licences.
NAMES = {
    "cc0": "Creative Commons 0",
    "by": "Attribution",
    "by-nc": "Attribution NonCommercial",
    "sampling+": "Sampling+",
}


async def refresh(client: Client, store: Store) -> Counter[str]:
    """Read all sounds whose uploaders object to generative training, and, for every other preference and every licence,
    those of the times at which the API counts others than are stored.

    So no objection is missed. Another change is missed where one sound takes the place of another in its time, and a
    description is read only with one of these: `fetch` asks for every sound it chooses.

    Returns the number of stored sounds that have changed, by column of CHANGING. Raises DataError for a crawl that is
    not complete, and as Client.search does.
    """
    if store.fact("complete") is None:
        raise DataError(f"{store.path}: is not complete yet; run the same command without --refresh first")
    first, last = int(store.fact("from") or 0), int(store.fact("until") or 0)
    count = await count_of(client, Window(first, last), store.fact("filter") or None)
    known = int(store.fact("total") or 0)
    if has_fallen(known, count):
        problem = f"the API counts {count} sounds where it had {known}; its index may be in the middle of a rebuild"
        raise DataError(f"{store.path}: {problem}; run the same command in some hours")
    objecting, *others = reversed(PREFERENCES)
    changes = await _walk(client, store, f'gen_ai_preference:"{objecting}"', None)
    for preference in others:
        condition = f"gen_ai_preference = '{preference}'"
        changes += await _walk(client, store, f'gen_ai_preference:"{preference}"', condition)
    for licence, name in NAMES.items():
        changes += await _walk(client, store, f'license:"{name}"', f"license LIKE '%{LICENCES[licence]}%'")
    return changes


async def _walk(client: Client, store: Store, kind: str, condition: str | None) -> Counter[str]:
    """All sounds of a kind; with a condition only where their count differs from that of the stored sounds."""
    narrowed = " ".join([kind, *grouped(store.fact("filter"))])
    first, last = int(store.fact("from") or 0), int(store.fact("until") or 0)
    windows, changes = [Window(first, last, compared=condition is not None)], Counter[str]()
    while windows:
        window = windows.pop()
        try:
            page = await whole_page(client, window, narrowed)
        except PastEndError:
            windows += past_end(window).windows
            continue
        except NoPageError:
            if window.halves:
                windows += split(window)
                continue
            page = await one_by_one(client, window, narrowed)
        progress, found = store.renew(window, page, condition)
        if progress.uneven:
            raise DataError(f"{store.path}: the API's answers do not add up to its count; run the same command later")
        windows += progress.windows
        changes += found
    return changes


def summary(store: Store, changes: Counter[str]) -> str:
    what = {"license": "licence", "gen_ai_preference": "AI preference"}
    parts = [f"{what.get(name, name)} {changes[name]}" for name in CHANGING]
    return f"{store.path}: {counted(store.count(), 'sound')} compared with Freesound; changed: {', '.join(parts)}"
