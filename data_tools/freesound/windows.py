"""How the whole of Freesound is walked: windows of upload time, each read from its earliest sound on.

Every request asks for the sounds of a window by rising upload time, and the next one begins where the answer ended: at
the upload time of its last sound, which is read twice. So no page is deep, and neither new uploads nor sounds that go
away move anything past the walk. Only a sound that appears in a part that was read already is left to the next update.
A window with very many sounds is split, so that no search is a burden.
"""

from dataclasses import dataclass

from data_tools.freesound.sounds import PAGE_SIZE

LARGEST = 200 * PAGE_SIZE  # sounds of a window
ATTEMPTS = 3  # at a window whose sounds do not add up to its count


@dataclass(frozen=True)
class Window:
    """Uploads from first_ms to last_ms, both included (milliseconds since 1970, UTC).

    page: to ask for; above 1 only where more sounds than a page holds were uploaded in one millisecond.
    expected, read_from_ms: the count if nothing has gone, and where the part read just before begins.
    attempt: how often its sounds did not add up so far.
    compared: its sounds were read before, so that a part whose count is right need not be read again.
    """

    first_ms: int
    last_ms: int
    page: int = 1
    expected: int | None = None
    read_from_ms: int | None = None
    attempt: int = 0
    compared: bool = False

    @property
    def halves(self) -> tuple["Window", ...]:
        """Its halves in time; () for a single millisecond."""
        middle = (self.first_ms + self.last_ms) // 2
        if middle == self.last_ms:
            return ()
        parts = ((self.first_ms, middle), (middle + 1, self.last_ms))
        return tuple(Window(*part, compared=self.compared) for part in parts)


@dataclass(frozen=True)
class Answer:
    """What a page told. count: of the whole window. received: items of the page, null ones too. reached_ms: upload
    time of its last sound, None: it had none. passed: how many of the items come before that time."""

    count: int
    received: int
    reached_ms: int | None
    passed: int


@dataclass(frozen=True)
class Progress:
    """What is left of a window. complete: one answer listed all its sounds, so that others stored of it are gone.
    uneven: given up although its sounds do not add up to its count."""

    windows: tuple[Window, ...] = ()
    complete: bool = False
    uneven: bool = False


def advance(window: Window, answer: Answer, known: int) -> Progress:
    """After an answer.

    known: sounds of the window that were stored, or known to be null, before the answer.
    """
    rest = max(0, answer.count - (window.page - 1) * PAGE_SIZE)
    if answer.received != min(rest, PAGE_SIZE):
        return _uneven(window, answer)
    if rest <= PAGE_SIZE:
        return Progress(_missed(window, answer), complete=window.page == 1)
    if window.compared and answer.count == known:
        return Progress()
    if window.compared and 2 * known > answer.count and window.halves:  # the half that differs is looked into
        return Progress(window.halves)
    return Progress((*_missed(window, answer), *_unread(window, answer)))


def _unread(window: Window, answer: Answer) -> tuple[Window, ...]:
    """What the answer did not reach."""
    if answer.reached_ms in (None, window.first_ms):
        return (Window(window.first_ms, window.last_ms, window.page + 1, compared=window.compared),)
    assert answer.reached_ms is not None
    expected = answer.count - answer.passed if window.page == 1 else None
    rest = Window(
        answer.reached_ms, window.last_ms, expected=expected, read_from_ms=window.first_ms, compared=window.compared
    )
    return rest.halves if expected and expected > LARGEST and rest.halves else (rest,)


def _missed(window: Window, answer: Answer) -> tuple[Window, ...]:
    """The part read just before, where the count has become less than was left: sounds after it have gone, or it had
    more sounds than the answer gave."""
    if window.expected is None or window.read_from_ms is None or answer.count >= window.expected:
        return ()
    return (Window(window.read_from_ms, window.first_ms - 1, compared=True),)


def _uneven(window: Window, answer: Answer) -> Progress:
    attempt = window.attempt + 1
    if attempt < ATTEMPTS:
        return Progress((Window(window.first_ms, window.last_ms, attempt=attempt, compared=window.compared),))
    more = answer.count > window.page * PAGE_SIZE and answer.received > 0
    return Progress(_unread(window, answer) if more else (), uneven=True)
