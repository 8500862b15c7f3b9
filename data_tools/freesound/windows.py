"""How the whole of Freesound is walked: windows of upload time, each read page by page, split where too large.

A search that is sorted by `created` and bounded by it does not change behind the walk when new sounds are uploaded, and
no page is deep. What may still change is told by `count`: a sound that goes away moves the later ones forward, so that
one slips from the next page to the page already read; a sound that is published late appears among those already read.
A deletion and an addition that cancel out between two pages are not seen.
"""

from dataclasses import dataclass, replace

from data_tools.freesound.sounds import PAGE_SIZE

DEEPEST = 60  # pages of a window; a larger window is split
ATTEMPTS = 3  # at a window whose sounds do not add up to its count


@dataclass(frozen=True)
class Window:
    """Uploads from first_ms to last_ms, both included (milliseconds since 1970, UTC).

    page: the next one to ask for, from 1. reached_ms: when the last sound of the pages before was uploaded.
    count: sounds of the window as the last answer told; None: no answer yet that was about this window alone.
    attempt: how often its sounds did not add up so far.
    """

    first_ms: int
    last_ms: int
    page: int = 1
    reached_ms: int | None = None
    count: int | None = None
    attempt: int = 0

    @property
    def parts(self) -> tuple["Window", "Window"] | None:
        """Two windows: the earlier half of the time that is left, with the pages read so far, and the rest.

        None where the time left cannot be halved, or one part would be nothing.
        """
        start = self.first_ms if self.reached_ms is None else self.reached_ms
        middle = (start + self.last_ms) // 2
        if middle == self.last_ms:
            return None
        return replace(self, last_ms=middle, count=None), Window(middle + 1, self.last_ms, attempt=self.attempt)


@dataclass(frozen=True)
class Answer:
    """What a page told. count: of the whole window. received: items of the page, null ones too. reached_ms: upload
    time of its last sound, None: it had none."""

    count: int
    received: int
    reached_ms: int | None


@dataclass(frozen=True)
class Progress:
    """What is left of a window. complete: one answer listed all its sounds, so that others stored of it are gone.
    uneven: given up although its sounds do not add up to its count."""

    windows: tuple[Window, ...] = ()
    complete: bool = False
    uneven: bool = False


def advance(window: Window, answer: Answer, known_before: int, known_after: int) -> Progress:
    """After an answer to the window's next page.

    known_before, known_after: sounds of the window that are stored, or known to be null, before and after the answer.
    """
    if window.page == 1:
        return _first_page(window, answer, known_before)
    if window.count is not None and answer.count < window.count:
        return reread(window)
    walked = _walked(window, answer)
    if window.count is None and answer.count > DEEPEST * PAGE_SIZE and walked.parts:
        return Progress(walked.parts)
    if window.page * PAGE_SIZE < answer.count:
        return Progress((walked,))
    return Progress() if known_after == answer.count else _uneven(window)


def reread(window: Window) -> Progress:
    """After sounds went away: what follows the last sound read is a window of its own, since its pages have moved."""
    start = window.first_ms if window.reached_ms is None else window.reached_ms
    return Progress((Window(start, window.last_ms, attempt=window.attempt),))


def _first_page(window: Window, answer: Answer, known_before: int) -> Progress:
    if answer.count == known_before:
        return Progress()
    if answer.count <= PAGE_SIZE:
        return Progress(complete=True) if answer.received == answer.count else _uneven(window)
    if 2 * known_before > answer.count and window.parts:  # a few differ: the half that does is looked into
        return Progress(window.parts)
    walked = _walked(window, answer)
    if answer.count > DEEPEST * PAGE_SIZE and walked.parts:
        return Progress(walked.parts)
    return Progress((walked,))


def _walked(window: Window, answer: Answer) -> Window:
    reached = window.reached_ms if answer.reached_ms is None else answer.reached_ms
    return replace(window, page=window.page + 1, reached_ms=reached, count=answer.count)


def _uneven(window: Window) -> Progress:
    attempt = window.attempt + 1
    again = Window(window.first_ms, window.last_ms, attempt=attempt)
    return Progress((again,)) if attempt < ATTEMPTS else Progress(uneven=True)
