"""Checks that the store has all sounds: counts of windows, missing sounds, a search index that is being rebuilt."""

import logging
import time
from dataclasses import replace

from data_tools.errors import DataError
from data_tools.freesound.client import Client, NoPageError, PastEndError
from data_tools.freesound.sounds import PAGE_SIZE, Page, Sound
from data_tools.freesound.store import Store
from data_tools.freesound.windows import ATTEMPTS, Progress, Window, split

PART = 10_000  # stored sounds of a part, if the whole is too much for the API
FALL_SOUNDS, FALL_SHARE = 20, 0.03  # a count may fall so much between two crawls
REBUILD = 6 * 3600  # seconds after which a sound that was missing is asked for again
ACCEPTED = 3 * 86_400  # seconds after which a greater fall is believed

log = logging.getLogger(__name__)


async def compare_parts(client: Client, store: Store, window: Window, narrowed: str | None) -> Progress:
    """Compare the whole part by part, because the API fails at its pages; its count is the sum of the parts' counts."""
    parts = store.parts(window, PART)
    counts = [await count_of(client, part, narrowed) for part in parts]
    if again := fallen(store, window, sum(counts)):
        return Progress((again,))
    store.set_fact("total", str(sum(counts)))
    others = [part for part, count in zip(parts, counts, strict=True) if count != store.known(part)]
    if not others:
        store.set_fact("complete", str(window.last))
    return Progress(tuple(others) if len(parts) > 1 else split(window) if others else ())


async def count_of(client: Client, window: Window, narrowed: str | None) -> int:
    """Return the API's count of sounds in a window, or the sum over its halves if the API fails at the window."""
    try:
        return (await client.search(window, narrowed, size=1)).count
    except NoPageError:
        if not window.halves:
            return len((await one_by_one(client, window, narrowed)).sounds)
        return sum([await count_of(client, half, narrowed) for half in split(window)])


async def one_by_one(client: Client, window: Window, narrowed: str | None) -> Page:
    """Return the sounds of one second, each by a search of its own; None for a sound at which the API fails."""
    sounds: list[Sound | None] = []
    while True:
        try:
            page = await client.search(replace(window, page=len(sounds) + 1), narrowed, size=1)
        except PastEndError:
            break
        except NoPageError:
            sounds.append(None)
            continue
        if not page.sounds:
            break
        sounds += page.sounds
    return Page(len(sounds), sounds)


def fallen(store: Store, window: Window, count: int) -> Window | None:
    """Return the window for another attempt if the API counts far fewer sounds than are stored or were counted before.

    Raises DataError when it still does the third time: the search's index is being rebuilt, which takes it hours. A
    fall that lasts for ACCEPTED is believed.
    """
    if not window.compared or (window.first, window.last) not in _tops(store) or window.page > 1:
        return None
    known = store.known(window)
    if window.first == int(store.fact("from") or 0):
        known = max(known, int(store.fact("total") or 0))
    if known - count <= max(FALL_SOUNDS, FALL_SHARE * known):
        store.set_fact("fallen", "0")
        return None
    if window.attempt + 1 < ATTEMPTS:
        return replace(window, attempt=window.attempt + 1)
    now, since = time.time(), float(store.fact("fallen") or 0)
    if since and now - since >= ACCEPTED:
        log.warning(
            "%s: the API has counted %d instead of %d sounds for days; this is believed", store.path, count, known
        )
        return None
    store.set_fact("fallen", str(since or now))
    raise DataError(
        f"{store.path}: the API counts {count} sounds where it had {known}; its index may be in the middle of a "
        f"rebuild. No sound was marked as missing; run the same command in some hours"
    )


def _tops(store: Store) -> list[tuple[int, int]]:
    """Return the first and last second of the whole crawl, and of this command."""
    until = int(store.fact("until") or 0)
    return [(int(store.fact(name) or 0), until) for name in ("from", "reading_from")]


async def ask_for_missing(client: Client, store: Store) -> None:
    """Ask by id for the sounds that searches of some hours ago did not find; mark as gone those still not found."""
    left = store.missing(time.time() - REBUILD)
    for number in range(0, len(left), PAGE_SIZE):
        asked = left[number : number + PAGE_SIZE]
        found = await client.sounds(asked)
        with store.transaction():
            store.upsert(found, {})
            store.mark_gone(set(asked) - {sound.id for sound in found})
