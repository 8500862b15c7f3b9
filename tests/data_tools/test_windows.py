"""Windows of upload time: the windows left after an answer, and walks over a corpus that changes meanwhile."""

import random
from collections.abc import Callable

import pytest

from data_tools.freesound import windows
from data_tools.freesound.windows import PageListing, Progress, Window, advance, progress_past_end, split

PAGE = windows.PAGE_SIZE


def test_time_window_whose_sounds_fit_one_page_is_complete() -> None:
    assert advance(Window(0, 999), PageListing(0, 0, None, 0), 0) == Progress(complete=True)
    assert advance(Window(0, 999), PageListing(PAGE, PAGE, 900, PAGE - 1), 0) == Progress(complete=True)


def test_next_crawl_window_starts_at_the_time_of_the_last_sound_read() -> None:
    first = advance(Window(0, 999), PageListing(400, PAGE, 300, 148), 0)
    assert first.windows == (Window(300, 999, expected=252, read_from=0),)
    second = advance(first.windows[0], PageListing(252, PAGE, 700, 149), 0)
    assert second.windows == (Window(700, 999, expected=103, read_from=300),)
    assert advance(second.windows[0], PageListing(103, 103, 990, 102), 0) == Progress(complete=True)


def test_unread_part_of_a_time_window_with_too_many_sounds_is_halved() -> None:
    large = windows.LARGEST + PAGE
    assert advance(Window(0, 999), PageListing(large, PAGE, 199, 149), 0).windows == (
        Window(199, 599),
        Window(600, 999),
    )
    assert len(advance(Window(0, 999), PageListing(large - 1, PAGE, 199, 149), 0).windows) == 1


def test_time_window_of_one_second_is_read_page_by_page() -> None:
    large = windows.LARGEST + PAGE
    progress = advance(Window(5, 5), PageListing(large, PAGE, 5, 0), 0)
    assert progress.windows == (Window(5, 5, page=2),)
    assert advance(Window(5, 9, page=2), PageListing(2 * PAGE + 1, PAGE, 7, 100), 0).windows == (
        Window(7, 9, read_from=5),
    )
    assert advance(Window(5, 5, page=2), PageListing(PAGE + 7, 7, 5, 0), 0) == Progress()
    assert Window(5, 5).halves == ()
    assert Window(5, 6).halves == (Window(5, 5), Window(6, 6))


def test_crawl_checks_already_read_sounds_of_a_time_window_again_if_sounds_have_vanished() -> None:
    gone = advance(Window(300, 999, expected=252, read_from=0), PageListing(251, PAGE, 700, 149), 0)
    assert gone.windows == (Window(0, 299, compared=True), Window(700, 999, expected=102, read_from=300))


def test_crawl_accepts_a_time_window_with_fewer_sounds_than_expected_at_the_third_request() -> None:
    window = Window(700, 999, expected=103, read_from=300)
    early = PageListing(100, 100, 990, 99)
    for attempt in (1, 2):
        assert advance(window, early, 0).windows == (Window(700, 999, 1, 103, 300, attempt),)
        window = Window(700, 999, 1, 103, 300, attempt)
    assert advance(window, early, 0) == Progress((Window(300, 699, compared=True),), complete=True)
    nothing = PageListing(0, 0, None, 0)
    assert advance(Window(0, 999, compared=True), nothing, 7).windows == (Window(0, 999, attempt=1, compared=True),)
    assert advance(Window(0, 999, attempt=2), nothing, 7) == Progress(complete=True)


def test_only_the_changed_part_of_a_time_window_is_read_again() -> None:
    window = Window(0, 999, compared=True)
    assert advance(window, PageListing(400, PAGE, 300, 149), 400) == Progress()
    assert advance(Window(0, 999), PageListing(400, PAGE, 300, 149), 400).windows == (
        Window(300, 999, expected=251, read_from=0),
    ), "a count alone says little of a window that was never read"
    halves = (Window(0, 499, compared=True), Window(500, 999, compared=True))
    for known in (399, 401):
        assert advance(window, PageListing(400, PAGE, 300, 149), known).windows == halves
    assert advance(window, PageListing(400, PAGE, 300, 149), 200).windows == (
        Window(300, 999, expected=251, read_from=0, compared=True),
    )
    assert advance(window, PageListing(100, 100, 300, 99), 100) == Progress(complete=True)


def test_search_answer_with_fewer_sounds_than_its_count_is_repeated_then_reported() -> None:
    window = Window(0, 999)
    for attempt in range(1, windows.ATTEMPTS):
        progress = advance(window, PageListing(400, PAGE - 1, 300, 148), 0)
        assert progress.windows == (Window(0, 999, attempt=attempt),)
        window = progress.windows[0]
    progress = advance(window, PageListing(400, PAGE - 1, 300, 148), 0)
    assert progress == Progress((Window(300, 999, expected=252, read_from=0),), uneven=True)
    assert advance(Window(0, 999, attempt=2), PageListing(40, 39, 300, 38), 0) == Progress(uneven=True)


def test_time_window_whose_second_page_is_always_missing_is_given_up() -> None:
    window, asked = Window(5, 5), 0
    while True:
        asked += 1
        first = advance(window, PageListing(PAGE + 9, PAGE, 5, 0), 0)
        assert first.windows == (Window(5, 5, page=2, attempt=window.attempt),)
        missing = progress_past_end(first.windows[0])
        if missing.uneven:
            break
        window = missing.windows[0]
    assert asked == windows.ATTEMPTS


def test_time_window_is_split_down_to_one_second() -> None:
    parts, splits = (Window(0, 10_000, compared=True),), 0
    while parts:
        part, splits = parts[0], splits + 1
        assert part.compared
        assert part.splits == splits - 1
        parts = split(part)
    assert (part.first, part.last) == (0, 0)
    assert split(Window(3, 3)) == ()


class Walk:
    """A walk in memory over upload times that change between requests."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self.rng = rng
        self.there = {number: rng.randrange(2000) // rng.choice((1, 1, 1, 8)) for number in range(size)}
        self.known: dict[int, int] = {}
        self.requests = 0

    def within(self, sounds: dict[int, int], window: Window) -> list[int]:
        inside = [number for number, time in sounds.items() if window.first <= time <= window.last]
        return sorted(inside, key=lambda number: (sounds[number], number))

    def step(self, window: Window) -> tuple[Window, ...]:
        self.requests += 1
        found = self.within(self.there, window)
        page = found[(window.page - 1) * windows.PAGE_SIZE : window.page * windows.PAGE_SIZE]
        if window.page > 1 and not page:
            return progress_past_end(window).windows
        times = [self.there[number] for number in page]
        reached = max(times, default=None)
        passed = sum(time != reached for time in times)
        progress = advance(
            window, PageListing(len(found), len(page), reached, passed), len(self.within(self.known, window))
        )
        assert not progress.uneven
        self.known |= {number: self.there[number] for number in page}
        if progress.complete:
            for number in set(self.within(self.known, window)) - set(page):
                del self.known[number]
        return progress.windows

    def go_away(self) -> None:
        del self.there[self.rng.choice(list(self.there))]

    def appear(self) -> None:
        self.there[10_000 + self.requests] = self.rng.randrange(2000)

    def come_and_go(self) -> None:
        self.rng.choice((self.go_away, self.appear))()

    def all(self, change: Callable[[], None] | None = None) -> None:
        """Read all windows in random order. change: called after one request in ten."""
        left = [Window(0, 1999, compared=bool(self.known))]
        while left:
            window = left.pop(self.rng.randrange(len(left)))
            left += self.step(window)
            if change and self.rng.random() < 0.1:
                change()


@pytest.mark.parametrize("seed", range(30))
def test_random_crawls_find_every_sound_with_few_requests(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "PAGE_SIZE", 5)
    monkeypatch.setattr(windows, "LARGEST", 100)
    rng = random.Random(seed)
    walk = Walk(rng, rng.choice((0, 1, 5, 6, 100, 101, 700)))
    walk.all()
    assert walk.known == walk.there
    size = len(walk.there)
    assert walk.requests <= 1 + size / 3.5 + size / 50, (
        "of five a sound or two are read twice, and half a page a window"
    )


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("what", ["go_away", "appear", "come_and_go"])
def test_crawl_finds_all_sounds_that_exist_throughout_while_others_appear_and_vanish(
    seed: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "PAGE_SIZE", 5)
    monkeypatch.setattr(windows, "LARGEST", 100)
    walk = Walk(random.Random(seed), 500)
    before = dict(walk.there)
    walk.all(getattr(walk, what))
    assert before != walk.there
    stayed = before.keys() & walk.there.keys()
    assert not stayed - walk.known.keys()
    if what != "come_and_go":  # where counts do not cancel out
        first, walk.requests = walk.requests, 0
        walk.all()  # an update of the same time
        assert walk.known == walk.there
        assert walk.requests < first, "only where the counts differ"
