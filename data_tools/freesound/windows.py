"""How the whole of Freesound is walked: windows of upload time, each read from its earliest sound on.

Every request asks for the sounds of a window by rising upload time, and the next one begins where the answer ended: in
the second in which its last sound was uploaded, which is read twice. So no page is deep, and neither new uploads nor
sounds that go away move anything past the walk. A window with very many sounds is split, so that no search is a burden.

Times are whole seconds, since 1970, UTC: the search's index knows no fractions of them (MTG/freesound writes `created`
into it as %Y-%m-%dT%H:%M:%S), though a sound's own `created` has some.
"""

from dataclasses import dataclass, replace

from data_tools.freesound.sounds import PAGE_SIZE

LARGEST = 200 * PAGE_SIZE  # sounds of a window
ATTEMPTS = 3  # at an answer that cannot be all
SPLITS = 8  # of a window that overloads the API, until the API is asked whether it answers at all


@dataclass(frozen=True)
class Window:
    """Uploads from the second `first` to the second `last`, both included.

    page: to ask for; above 1 only where more sounds than a page holds were uploaded in one second.
    expected, read_from: the count if nothing has gone, and where the part read just before begins.
    attempt: how often it was asked for in vain. splits: how often it was halved because no page of it came.
    compared: its sounds were read before, so that a part whose count is right need not be read again.
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
        """Its halves in time; () for a single second."""
        middle = (self.first + self.last) // 2
        if middle == self.last:
            return ()
        parts = ((self.first, middle), (middle + 1, self.last))
        return tuple(Window(*part, compared=self.compared) for part in parts)


@dataclass(frozen=True)
class PageListing:
    """What a page of a search listed.

    count: of the whole window. received: items of the page, each once, null ones too. reached: second in which its last
    sound was uploaded, None: it had none. passed: how many of the items come before that second.
    """

    count: int
    received: int
    reached: int | None
    passed: int


@dataclass(frozen=True)
class Progress:
    """What is left of a window. complete: one answer listed all its sounds, so that others stored of it are gone.
    uneven: given up although its sounds do not add up to its count."""

    windows: tuple[Window, ...] = ()
    complete: bool = False
    uneven: bool = False


def advance(window: Window, answer: PageListing, known: int) -> Progress:
    """After an answer.

    known: sounds of the window that were stored, or known to be null, before the answer.
    """
    rest = max(0, answer.count - (window.page - 1) * PAGE_SIZE)
    short = answer.received not in (min(rest, PAGE_SIZE), rest)  # all of the rest: read one by one
    # At the end of a window: sounds have gone, or the API did not look at all of them. Before it, the rest will tell.
    fewer = rest <= PAGE_SIZE and answer.count < max(known, window.expected or 0)
    if (short or fewer) and window.attempt + 1 < ATTEMPTS:
        return Progress((replace(window, attempt=window.attempt + 1),))
    if short:
        return Progress(_unread(window, answer) if answer.received and rest > PAGE_SIZE else (), uneven=True)
    if answer.received == rest:
        return Progress(_missed(window, answer), complete=window.page == 1)
    if window.compared and answer.count == known:
        return Progress()
    if window.compared and 2 * known > answer.count and window.halves:  # the half that differs is looked into
        return Progress(window.halves)
    return Progress((*_missed(window, answer), *_unread(window, answer)))


def past_end(window: Window) -> Progress:
    """After the answer that there is no such page: the window has become shorter."""
    attempt = window.attempt + 1
    again = Window(window.first, window.last, attempt=attempt, compared=window.compared)
    return Progress((again,)) if attempt < ATTEMPTS else Progress(uneven=True)


def split(window: Window) -> tuple[Window, ...]:
    """Return the halves of a window, to be read one by one; () for a single second."""
    return tuple(replace(half, splits=window.splits + 1) for half in window.halves)


def _unread(window: Window, answer: PageListing) -> tuple[Window, ...]:
    """What the answer did not reach."""
    if answer.reached in (None, window.first):
        return (Window(window.first, window.last, window.page + 1, attempt=window.attempt, compared=window.compared),)
    assert answer.reached is not None
    expected = answer.count - answer.passed if window.page == 1 else None
    rest = Window(answer.reached, window.last, 1, expected, window.first, compared=window.compared)
    return rest.halves if expected and expected > LARGEST and rest.halves else (rest,)


def _missed(window: Window, answer: PageListing) -> tuple[Window, ...]:
    """The part read just before, where fewer sounds are left than its answer promised: it may have held back some."""
    if window.expected is None or window.read_from is None or answer.count >= window.expected:
        return ()
    return (Window(window.read_from, window.first - 1, compared=True),)
