"""Update changed sounds.

Updates stored sounds that changed since a crawl: AI preferences, licences, descriptions.
"""

from collections import Counter

from data_tools.errors import DataError
from data_tools.freesound.client import Client
from data_tools.freesound.completeness import count_sounds, has_fallen, read_page
from data_tools.freesound.filters import filter_in_parentheses
from data_tools.freesound.selection import LICENCES, PREFERENCES
from data_tools.freesound.store import Store
from data_tools.freesound.windows import Progress, Window

# Names of the licences in the search.
NAMES = {
    "cc0": "Creative Commons 0",
    "by": "Attribution",
    "by-nc": "Attribution NonCommercial",
    "sampling+": "Sampling+",
}


async def refresh(client: Client, store: Store) -> Counter[str]:
    """Update stored sounds whose licence or AI preference changed on Freesound; return numbers of changes per column.

    An AI preference is an uploader's choice whether a sound may be used to train generative AI. All sounds whose
    uploader objects to this are read again, so that no objection is missed. For every other AI preference and every
    licence, the numbers of sounds in the API and in the store are compared by period of upload. Only periods with
    different numbers are read again. A change is therefore missed if another sound of the period changed in the
    opposite way, and if only the description changed. This has no effect on downloads: the verb `fetch` reads the
    current data of every sound that it chooses.

    Returns a counter from each of the columns licence, AI preference and description to the number of stored sounds
    whose value changed. Raises DataError for a crawl that is not complete, and for an error of the API that no later
    attempt can change.
    """
    if store.fact("complete") is None:
        raise DataError(f"{store.path}: the crawl is not complete yet; run the same command without --refresh first")
    whole, known = Window(store.fact("from"), store.fact("until")), store.fact("total")
    count = await count_sounds(client, whole, store.fact("filter"))
    if has_fallen(known, count):
        raise DataError(
            f"{store.path}: the API counts {count} sounds instead of {known}; its index may be in the middle of a "
            "rebuild; run the same command in some hours"
        )
    objecting, *others = reversed(PREFERENCES)
    changes = await _read_matching(client, store, f'gen_ai_preference:"{objecting}"', None)
    for preference in others:
        condition = f"gen_ai_preference = '{preference}'"
        changes += await _read_matching(client, store, f'gen_ai_preference:"{preference}"', condition)
    for licence, name in NAMES.items():
        changes += await _read_matching(client, store, f'license:"{name}"', f"license LIKE '%{LICENCES[licence]}%'")
    return changes


async def _read_matching(client: Client, store: Store, kind: str, condition: str | None) -> Counter[str]:
    """Read again the sounds that match the filter `kind`; return the number of changes per column.

    kind: Filter in the API's syntax. condition: The same filter as an SQL condition on the stored sounds; with it, the
    function reads only periods for which the API and the store have different numbers of such sounds. None: read all
    periods.
    """
    user_filter = " ".join([kind, *filter_in_parentheses(store.fact("filter"))])
    windows = [Window(store.fact("from"), store.fact("until"), compared=condition is not None)]
    changes = Counter[str]()
    while windows:
        answer = await read_page(client, windows.pop(), user_filter)
        if isinstance(answer, Progress):
            windows += answer.windows
            continue
        progress, changed = store.update_page(*answer, condition)
        if progress.uneven:
            raise DataError(
                f"{store.path}: the API lists fewer or more sounds than it counts; run the same command again later"
            )
        windows += progress.windows
        changes += changed
    return changes
