"""Windows of upload time.

A time window is a range of upload times. All of Freesound is read in such windows, each from its earliest sound on.

Every request asks for the first page of a window, sorted by rising upload time. The next window begins at the second of
the page's last sound, so that this second is read twice. This is done instead of requesting the second page, because
new uploads and removed sounds would shift the sounds between pages. A window with very many sounds is split, so that no
search is too large.

Times are whole seconds since 1970, UTC: the search index stores no fractions (MTG/freesound writes `created` into it as
%Y-%m-%dT%H:%M:%S), though a sound's own `created` has some.
"""

from dataclasses import dataclass, replace

from data_tools.freesound.sounds import PAGE_SIZE

LARGEST = 200 * PAGE_SIZE  # maximum sounds of a window
ATTEMPTS = 3  # at an answer that cannot be complete
UNPROVEN_SPLITS = 8  # of a window that overloads the API, before checking if the API answers at all


@dataclass(frozen=True)
class Window:
    """Uploads from the second `first` to the second `last`, both included.

    Attributes:
        page: Page to request; above 1 only if one second has more uploads than fit on a page.
        expected: Number of sounds that this window should have by the count in the previous answer; None if unknown.
            The API's own count of this window is lower if sounds were removed or omitted.
        read_from: First second of the part that was read just before this window; None if unknown.
        attempt: Number of answers so far that were not accepted, because sounds seemed to be missing from them.
        splits: Number of times that the window was halved because no page arrived.
        compared: Whether the window's sounds were read before. If so, a part whose number of stored sounds equals the
            API's count is not read again.
    """

    first: int
    last: int
    page: int = 1
    expected: int | None = None
    read_from: int | None = None
    attempt: int = 0
    splits: int = 0
    compared: bool = False

    @property
    def halves(self) -> tuple["Window", ...]:
        """The two halves of the time window; () for a single second."""
        middle = (self.first + self.last) // 2
        if middle == self.last:
            return ()
        parts = ((self.first, middle), (middle + 1, self.last))
        return tuple(Window(*part, compared=self.compared) for part in parts)


@dataclass(frozen=True)
class PageListing:
    """Summary of the items on a search page.

    Attributes:
        count: Number of sounds in the whole window.
        received: Number of items on the page, each counted once, including nulls.
        reached: Second of the last sound on the page, None if the page has no sound.
        passed: Number of items before that second.
    """

    count: int
    received: int
    reached: int | None
    passed: int


@dataclass(frozen=True)
class Progress:
    """State of a time window after an answer of the API.

    Attributes:
        windows: The parts that remain to be read.
        complete: Whether one answer listed all sounds of the window, so that all other stored sounds of the window no
            longer exist.
        uneven: Whether the API's count of sounds in the window differs, after the last attempt, from the number of
            sounds that the API listed.
    """

    windows: tuple[Window, ...] = ()
    complete: bool = False
    uneven: bool = False


def advance(window: Window, answer: PageListing, known: int) -> Progress:
    """Return the state of a time window after an answer. known: Number of sounds in the window that were known before.

    A sound counts as known if it was stored before, or if the API always returned it as null.
    """
    rest = max(0, answer.count - (window.page - 1) * PAGE_SIZE)
    short = answer.received not in (min(rest, PAGE_SIZE), rest)  # all of the rest: read one by one
    # At the end of a window: sounds were removed, or the API skipped some. Before it, the rest will show.
    fewer = rest <= PAGE_SIZE and answer.count < max(known, window.expected or 0)
    if (short or fewer) and window.attempt + 1 < ATTEMPTS:
        return Progress((replace(window, attempt=window.attempt + 1),))
    if short:
        return Progress(_unread_part(window, answer) if answer.received and rest > PAGE_SIZE else (), uneven=True)
    if answer.received == rest:
        return Progress(_part_to_read_again(window, answer), complete=window.page == 1)
    if window.compared and answer.count == known:
        return Progress()
    if window.compared and 2 * known > answer.count and window.halves:  # search the half that differs
        return Progress(window.halves)
    return Progress((*_part_to_read_again(window, answer), *_unread_part(window, answer)))


def progress_past_end(window: Window) -> Progress:
    """Return the progress of a time window after the API has answered that the requested page does not exist.

    Sounds of the window were removed since the previous answer. The window is read again from its first page, or given
    up after ATTEMPTS attempts.
    """
    attempt = window.attempt + 1
    again = Window(window.first, window.last, attempt=attempt, compared=window.compared)
    return Progress((again,)) if attempt < ATTEMPTS else Progress(uneven=True)


def split(window: Window) -> tuple[Window, ...]:
    """Return the halves of a time window, to be read one by one; () for a single second."""
    return tuple(replace(half, splits=window.splits + 1) for half in window.halves)


def _unread_part(window: Window, answer: PageListing) -> tuple[Window, ...]:
    """Return the part of a time window that the page did not reach, in two halves if it has very many sounds."""
    if answer.reached in (None, window.first):
        return (Window(window.first, window.last, window.page + 1, attempt=window.attempt, compared=window.compared),)
    assert answer.reached is not None
    expected = answer.count - answer.passed if window.page == 1 else None
    rest = Window(answer.reached, window.last, 1, expected, window.first, compared=window.compared)
    return rest.halves if expected and expected > LARGEST and rest.halves else (rest,)


def _part_to_read_again(window: Window, answer: PageListing) -> tuple[Window, ...]:
    """Return the part that was read just before `window` if it must be read again; () otherwise.

    The answer for that part also showed how many sounds `window` should have (`window.expected`). If the API now counts
    fewer sounds in `window`, the earlier answer may have omitted sounds.
    """
    if window.expected is None or window.read_from is None or answer.count >= window.expected:
        return ()
    return (Window(window.read_from, window.first - 1, compared=True),)
