"""Check that the store is complete.

Checks that the store is complete: compares counts, looks up missing sounds, detects a rebuild of the search index.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from data_tools.errors import DataError
from data_tools.freesound.client import Client, NoPageError, PastEndError
from data_tools.freesound.sounds import PAGE_SIZE, Page, Sound
from data_tools.freesound.store import Store, transaction
from data_tools.freesound.windows import ATTEMPTS, Progress, Window, progress_past_end, split

PART = 10_000  # stored sounds per part, if the API cannot count the whole at once
FALL_SOUNDS, FALL_SHARE = 20, 0.03  # allowed fall of a count between two crawls; a small count may fall by half
FEW_SOUNDS = 3  # sounds that may disappear from a store of any size
MIN_NULL_ATTEMPTS, NULL_ATTEMPTS = 3, 10  # attempts at a page with items that the API gives as null
REBUILD = 6 * 3600  # seconds after which a missing sound is searched again
ACCEPTED = 3 * 86_400  # seconds after which a larger fall is accepted

log = logging.getLogger(__name__)


async def read_page(client: Client, window: Window, user_filter: str | None) -> tuple[Window, Page] | Progress:
    """Read a page of search results of a time window, or find out which windows must be read instead.

    Returns: The window and its page. If the API has no such page, or fails for a window of several seconds, the result
    is a Progress, which lists the windows to read instead: after a failure the window's two halves. If the API fails
    for a window of a single second, all sounds of this second are read one by one and returned as one page.
    """
    try:
        return window, await _merged_page(client, window, user_filter)
    except PastEndError:
        return progress_past_end(window)
    except NoPageError:
        if window.halves:
            return Progress(split(window))
        return replace(window, page=1, expected=None), await search_one_by_one(client, window, user_filter)


async def _merged_page(client: Client, window: Window, user_filter: str | None) -> Page:
    """Read a page of a time window, several times if items are null; return it with the sounds of all answers.

    The API sometimes lists null in place of a sound. A page with nulls is requested at least three times
    (MIN_NULL_ATTEMPTS), and at most ten times (NULL_ATTEMPTS). The requests end when every item that is null in the
    last answer was null in all earlier answers, too. Only items that were null in all answers stay null in the result.
    """
    page = await client.search(window, user_filter)
    for attempt in range(2, NULL_ATTEMPTS + 1):
        if None not in page.sounds:
            break
        again = await client.search(window, user_filter)
        if len(again.sounds) != len(page.sounds) or again.count != page.count:
            page = again  # sounds have moved; the check at the window's end finds any error now
            continue
        page = Page(page.count, [ours or theirs for ours, theirs in zip(page.sounds, again.sounds, strict=True)])
        if attempt >= MIN_NULL_ATTEMPTS and again.sounds.count(None) == page.sounds.count(None):
            break
    return page


async def search_one_by_one(client: Client, window: Window, user_filter: str | None) -> Page:
    """Search every sound of a one-second window separately; return a page of all, None for a sound that fails."""
    sounds: list[Sound | None] = []
    while True:
        try:
            page = await client.search(replace(window, page=len(sounds) + 1), user_filter, size=1)
        except PastEndError:
            break
        except NoPageError:
            sounds.append(None)
            continue
        if not page.sounds:
            break
        sounds += page.sounds
    return Page(len(sounds), sounds)


async def count_sounds(client: Client, window: Window, user_filter: str | None) -> int:
    """Return the API's number of sounds in a time window; if the API fails for it, add the numbers of its halves."""
    try:
        return (await client.search(window, user_filter, size=1)).count
    except NoPageError:
        if not window.halves:
            return len((await search_one_by_one(client, window, user_filter)).sounds)
        return sum([await count_sounds(client, half, user_filter) for half in split(window)])


async def compare_parts(client: Client, store: Store, window: Window, user_filter: str | None) -> Progress:
    """Compare the store's and the API's counts for parts of a time window, and return the parts to read.

    Used if the API fails to list the whole window. A part must be read if the two counts differ.
    """
    parts = store.split_by_sounds(window, PART)
    counts = [await count_sounds(client, part, user_filter) for part in parts]
    if again := window_to_retry(store, window, sum(counts)):
        return Progress((again,))
    store.set_facts(total=sum(counts))
    others = [part for part, count in zip(parts, counts, strict=True) if count != store.count_known(part)]
    if not others:
        mark_complete(store, window.last)
    return Progress(tuple(others) if len(parts) > 1 else split(window) if others else ())


def window_to_retry(store: Store, window: Window, count: int) -> Window | None:
    """Return the window for another attempt if the API's `count` is far below the known one; None to accept it.

    The known count is that of the stored sounds, or an earlier one of the API. Raises DataError if the API counts too
    few sounds at the third attempt as well: the search index is being rebuilt, which takes hours. A lower count that
    lasts for three days (ACCEPTED) is accepted.
    """
    span, until = (window.first, window.last), store.fact("until", 0)
    whole = span == (store.fact("from", 0), until)
    if not window.compared or window.page > 1 or not (whole or span == (store.fact("reading_from", 0), until)):
        return None
    known = max(store.count_known(window), store.fact("total", 0) if whole else 0)
    if not has_fallen(known, count):
        store.set_facts(fallen=0)
        return None
    if window.attempt + 1 < ATTEMPTS:
        return replace(window, attempt=window.attempt + 1)
    _require_lasting_fall(store, known, count)
    message = "%s: the API has counted %d instead of %d sounds for days; accepting the new count"
    log.warning(message, store.path, count, known)
    return None


def has_fallen(known: int, count: int) -> bool:
    """Return whether the API's `count` is so far below the `known` one that its search index cannot be complete."""
    fall = known - count
    return fall > max(FALL_SOUNDS, FALL_SHARE * known) or (fall > FEW_SOUNDS and 2 * count < known)


def _require_lasting_fall(store: Store, known: int, count: int) -> None:
    """Raise DataError for a low count of sounds from the API, unless it has stayed low for ACCEPTED seconds.

    known, count: Number of sounds before, and now.
    """
    now = time.time()
    since = store.fact("fallen") or now
    if abs(count - store.fact("fallen_to", 0)) > FALL_SHARE * known:
        since = now  # the count differs from last time: a rebuild goes on, or another one has begun
    if now - since >= ACCEPTED:
        return
    store.set_facts(fallen=since, fallen_to=count)
    store.forget_missing(store.fact("checked", 0))  # by searches since the last time that the counts matched
    raise DataError(
        f"{store.path}: the API counts {count} sounds instead of {known}; its index may be in the middle of a "
        f"rebuild. No sound was marked as missing; run the same command in some hours"
    )


def mark_complete(store: Store, last: int) -> None:
    """Record that the store has as many sounds as the API counts, in every time window up to second `last`."""
    store.forget_uneven(last)
    store.set_facts(complete=last, checked=int(time.time()))


async def look_up(client: Client, store: Store, ids: Sequence[int]) -> dict[int, Sound | None]:
    """Read and store the current metadata of sounds; return a dict from id to sound, None for one that is not found.

    The function makes one request per 150 ids (PAGE_SIZE). An id has no key in the dict if the server fails for it.
    """
    results: dict[int, Sound | None] = {}
    for start in range(0, len(ids), PAGE_SIZE):
        sounds = await client.sounds_by_id(ids[start : start + PAGE_SIZE], store.fact("filter"))
        with transaction(store.database):
            store.upsert(filter(None, sounds.values()), {})
        results |= sounds
    return results


async def look_up_missing(client: Client, store: Store) -> None:
    """Search by id the stored sounds that searches have not listed for hours; mark those still not found as gone.

    Call this only after the API's total count has matched: an index in the middle of a rebuild finds few sounds.
    """
    sounds = await look_up(client, store, store.missing_ids(time.time() - REBUILD))
    with transaction(store.database):
        store.mark_gone([sound_id for sound_id, sound in sounds.items() if sound is None])
