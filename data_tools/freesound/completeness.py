"""Checks that the store has all sounds: counts of windows, missing sounds, a search index that is being rebuilt."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from data_tools.errors import DataError
from data_tools.freesound.client import Client, NoPageError, PastEndError
from data_tools.freesound.sounds import PAGE_SIZE, Page, Sound
from data_tools.freesound.store import Store
from data_tools.freesound.windows import ATTEMPTS, Progress, Window, split

PART = 10_000  # stored sounds of a part, if the whole is too much for the API
FALL_SOUNDS, FALL_SHARE = 20, 0.03  # a count may fall so much between two crawls; a small one by half
FEW_SOUNDS = 3  # that may go from a store of any size
MIN_NULL_ATTEMPTS, NULL_ATTEMPTS = 3, 10  # at a page that has items the API gives as null
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
        mark_complete(store, window.last)
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
    if not has_fallen(known, count):
        store.set_fact("fallen", "0")
        return None
    if window.attempt + 1 < ATTEMPTS:
        return replace(window, attempt=window.attempt + 1)
    now, since = time.time(), float(store.fact("fallen") or 0)
    if abs(count - int(store.fact("fallen_to") or 0)) > FALL_SHARE * known:
        since = now  # another count than last time: a rebuild goes on, or another one has begun
    if since and now - since >= ACCEPTED:
        log.warning(
            "%s: the API has counted %d instead of %d sounds for days; this is believed", store.path, count, known
        )
        return None
    store.set_fact("fallen", str(since or now))
    store.set_fact("fallen_to", str(count))
    store.forget_missing(float(store.fact("checked") or 0))  # by searches since the whole added up last
    raise DataError(
        f"{store.path}: the API counts {count} sounds where it had {known}; its index may be in the middle of a "
        f"rebuild. No sound was marked as missing; run the same command in some hours"
    )


def has_fallen(known: int, count: int) -> bool:
    """Return whether a count is so much below an earlier one that the search's index cannot be whole."""
    fall = known - count
    return fall > max(FALL_SOUNDS, FALL_SHARE * known) or (fall > FEW_SOUNDS and 2 * count < known)


def _tops(store: Store) -> list[tuple[int, int]]:
    """Return the first and last second of the whole crawl, and of this command."""
    until = int(store.fact("until") or 0)
    return [(int(store.fact(name) or 0), until) for name in ("from", "reading_from")]


def mark_complete(store: Store, last: int) -> None:
    """Note that the whole, up to a second, has added up now; so have its windows that did not when they were read."""
    store.forget_uneven(last)
    store.set_fact("complete", str(last))
    store.set_fact("checked", str(int(time.time())))


async def whole_page(client: Client, window: Window, narrowed: str | None) -> Page:
    """Return a page; ask again while it has null items, because the next answer may have their sounds.

    An item is null for good if every answer has null for it and the last answer has no further nulls. An answer with
    more nulls is no evidence.
    """
    page = await client.search(window, narrowed)
    for asked in range(2, NULL_ATTEMPTS + 1):
        if None not in page.sounds:
            break
        again = await client.search(window, narrowed)
        if len(again.sounds) != len(page.sounds) or again.count != page.count:
            page = again  # sounds have moved; an error now is found at the window's end
            continue
        page = Page(page.count, [ours or theirs for ours, theirs in zip(page.sounds, again.sounds, strict=True)])
        if asked >= MIN_NULL_ATTEMPTS and again.sounds.count(None) == page.sounds.count(None):
            break
    return page


async def look_up(client: Client, store: Store, ids: Sequence[int]) -> tuple[set[int], list[int]]:
    """Ask for the current metadata of sounds, PAGE_SIZE a request, and store it.

    Returns the ids that the search finds, and those that it does not find; a sound at which the server fails is in
    neither.
    """
    found, absent = set[int](), list[int]()
    for start in range(0, len(ids), PAGE_SIZE):
        sounds, missing = await client.sounds(ids[start : start + PAGE_SIZE], store.fact("filter") or None)
        with store.transaction():
            store.upsert(sounds, {})
        found |= {sound.id for sound in sounds}
        absent += missing
    return found, absent


async def ask_for_missing(client: Client, store: Store) -> None:
    """Ask by id for the sounds that searches of some hours ago did not find; mark as gone those still not found.

    To be called after the whole has added up: an index in the middle of a rebuild finds few sounds.
    """
    _, absent = await look_up(client, store, store.missing(time.time() - REBUILD))
    with store.transaction():
        store.mark_gone(absent)
