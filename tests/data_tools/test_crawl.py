"""The crawl against the sandbox: in this process on a virtual clock, and over HTTP with kills and faults."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sandboxes import (
    SITE,
    Direct,
    LoopClock,
    assert_whole,
    read_all,
    stored,
    truth,
)
from test_quota import least_seconds

from data_tools.errors import DataError
from data_tools.freesound import crawl
from data_tools.freesound.client import AgainError, Response
from data_tools.freesound.sounds import PAGE_SIZE, parse_time
from data_tools.freesound.store import Store
from data_tools.sandbox.faults import Throttle
from data_tools.sandbox.verb import make_answers


@pytest.mark.parametrize("size", [1, 149, 150, 151, 1000])
def test_every_sound_is_stored_once_with_the_api_fields(tmp_path: Path, size: int) -> None:
    transport = Direct(make_answers(size, 7, 0.0, 0))
    read_all(tmp_path / "store", transport)
    assert_whole(tmp_path / "store", transport.answers)
    row = stored(tmp_path / "store", "*")[0]
    sound = transport.answers.corpus.sound(0, SITE)
    assert list(row[2:18]) == [
        *(sound["name"], sound["description"], " ".join(sound["tags"]), sound["username"], sound["license"]),
        *(sound["gen_ai_preference"], sound["duration"], "wav", 1, 44100.0, sound["filesize"], sound["md5"]),
        *(sound["category"], sound["subcategory"], sound["pack"], sound["is_explicit"]),
    ]
    assert row[18] == sound["previews"]["preview-hq-mp3"].removeprefix(SITE)
    assert len(transport.urls) <= math.ceil(size / (PAGE_SIZE - 1)) + 1, "one for the whole at the end"


@pytest.mark.slow
def test_crawl_reads_only_the_first_page_of_each_search_and_needs_few_searches(tmp_path: Path) -> None:
    transport = Direct(make_answers(4_500, 7, 0.0, 0))
    read_all(tmp_path / "store", transport)
    assert len(stored(tmp_path / "store")) == 4_500
    for part in ("sort=created_asc", "&page=1&", "page_size=150", "fields=id%2Cname%2C", "filter=created%3A%5B"):
        assert all(part in url for url in transport.urls)
    assert len(transport.urls) <= math.ceil(4_500 / (PAGE_SIZE - 1)) + 1


def test_crawl_takes_the_shortest_time_that_the_quota_allows(tmp_path: Path) -> None:
    """The sandbox's throttle refuses nothing, although answers take time."""
    rng = random.Random(3)
    transport = Direct(
        make_answers(3000, 7, 0.0, 0), Throttle(3, 9, LoopClock()), latency=lambda: rng.choice((0.05, 0.2, 1.0))
    )
    seconds = read_all(tmp_path / "store", transport, per_minute=3, per_day=9)
    assert transport.refused == 0
    assert len(stored(tmp_path / "store")) == 3000
    assert seconds <= 1.02 * least_seconds(len(transport.urls), 3, 9)


def test_crawl_waits_for_minute_and_day_throttling(tmp_path: Path) -> None:
    def throttled(number: int, answer: Response) -> Response:
        words = {2: "60/minute", 4: "2000/day"}.get(number)
        return (
            Response(429, json.dumps({"detail": f"exceeding a request limit rate ({words})"}).encode(), 0)
            if words
            else answer
        )

    transport = Direct(make_answers(1000, 7, 0.0, 0), tamper=throttled)
    seconds = read_all(tmp_path / "store", transport, workers=1)
    assert len(stored(tmp_path / "store")) == 1000
    assert seconds == pytest.approx(60 + 3600, abs=1)


def test_all_crawl_workers_wait_a_minute_after_an_answer_429(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_tools.freesound.windows.LARGEST", 300)

    def throttled(number: int, answer: Response) -> Response:
        detail = b'{"detail": "exceeding a request limit rate (60/minute)"}'
        return Response(429, detail, 0) if number == 6 else answer

    transport = Direct(make_answers(3000, 7, 0.0, 0), tamper=throttled, latency=lambda: 0.5)
    read_all(tmp_path / "store", transport)
    assert len(stored(tmp_path / "store")) == 3000
    paused = transport.times[5] + 0.5
    assert len(transport.urls) > 20
    assert not [time for time in transport.times if paused < time < paused + 60]


def bad(status: int, body: bytes) -> Callable[[int, Response], Response]:
    return lambda number, answer: Response(status, body, len(body)) if number in (1, 3, 4) else answer


def broken(number: int, answer: Response) -> Response:
    if number in (1, 3, 4):
        raise AgainError("no connection, or a broken one: ServerDisconnectedError")
    return answer


@pytest.mark.parametrize(
    "tamper",
    [
        bad(500, b"<h1>Server Error (500)</h1>"),
        bad(502, b""),
        bad(200, b'{"count": 400, "results": [{"id": 1, "na'),
        bad(200, b"[]"),
        bad(200, b'{"count": -1, "results": []}'),
        bad(200, b'{"count": 1}'),
        bad(200, b'{"count": 9007199254740992, "results": []}'),
        bad(200, b"[" * 200_000),
        broken,
    ],
)
def test_failed_requests_of_a_crawl_are_repeated(tmp_path: Path, tamper: Callable[[int, Response], Response]) -> None:
    transport = Direct(make_answers(1000, 7, 0.0, 0), tamper=tamper)
    seconds = read_all(tmp_path / "store", transport, workers=1)
    assert_whole(tmp_path / "store", transport.answers)
    assert len(transport.urls) == math.ceil(1000 / (PAGE_SIZE - 1)) + 1 + 3
    assert 3 <= seconds <= 8, "two, two and four seconds, or up to half of it less"


def test_search_that_overloads_the_server_is_split_into_shorter_time_windows(tmp_path: Path) -> None:
    def overloaded(number: int, answer: Response) -> Response:
        span = json.loads(answer.body).get("count", 0)
        detail = b'{"detail": "Search is overloaded, please try again later."}'
        return Response(500, detail, len(detail)) if span > 400 else answer

    transport = Direct(make_answers(1000, 7, 0.0, 0), tamper=overloaded)
    read_all(tmp_path / "store", transport)
    assert_whole(tmp_path / "store", transport.answers)


def answer_of(sounds: list[dict[str, Any]], count: int | None = None) -> Response:
    return Response(200, json.dumps({"count": len(sounds) if count is None else count, "results": sounds}).encode(), 0)


@pytest.mark.parametrize("number", [1, 4, 7])
def test_search_answers_with_too_few_sounds_are_requested_again(tmp_path: Path, number: int) -> None:
    """A search that ran out of time may return few or no sounds, and a count that fits them."""
    for kept in (0, 40):
        transport = Direct(
            make_answers(1000, 7, 0.0, 0),
            tamper=lambda now, answer, kept=kept: (  # type: ignore[misc]
                answer_of(json.loads(answer.body)["results"][:kept]) if now == number else answer
            ),
        )
        path = tmp_path / f"store{kept}"
        read_all(path, transport, workers=1)
        assert_whole(path, transport.answers)


def test_single_empty_api_answer_marks_no_sound_as_gone(tmp_path: Path) -> None:
    answers = make_answers(2500, 7, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    transport = Direct(answers, tamper=lambda number, answer: answer_of([]) if number in (1, 2) else answer)
    read_all(tmp_path / "store", transport, since="2004-01-01")
    assert len(stored(tmp_path / "store")) == 2500


@pytest.mark.slow
def test_upload_times_with_milliseconds_are_found_by_searches_of_whole_seconds(tmp_path: Path) -> None:
    """Five thousand uploads in a minute, with milliseconds, are found by whole seconds."""
    answers = make_answers(5000, 7, 0.0, 0)
    begin = parse_time("2020-01-01")
    answers.corpus.created = lambda number: begin + number * 12 + 345  # type: ignore[method-assign]
    transport = Direct(answers)
    read_all(tmp_path / "store", transport)
    assert_whole(tmp_path / "store", answers)
    assert len(transport.urls) < 150, "in a second there are 83"


@pytest.mark.parametrize(
    "second_page",
    [
        pytest.param(Response(404, b'{"detail": "Invalid page."}', 0), id="404", marks=pytest.mark.slow),
        pytest.param(Response(200, b'{"count": 200, "results": []}', 0), id="empty"),
    ],
)
def test_crawl_records_a_time_window_as_incomplete_if_the_second_search_page_is_missing(
    tmp_path: Path, second_page: Response
) -> None:
    answers = make_answers(200, 7, 0.0, 0)
    answers.corpus.created = lambda number: parse_time("2020-01-01")  # type: ignore[method-assign]
    transport = Direct(answers)
    get = transport.get

    async def without(url: str, *arguments: Any) -> Response:
        answer = await get(url, *arguments)
        return second_page if "&page=2&" in url else answer

    transport.get = without  # type: ignore[method-assign]
    read_all(tmp_path / "store", transport)
    assert len(stored(tmp_path / "store")) == 150
    assert len(transport.urls) < 300
    store = Store(tmp_path / "store")
    assert store.fact("complete") is None
    assert [row[:2] for row in store.uneven_windows()] == [(parse_time("2020-01-01") // 1000,) * 2]
    store.close()


def test_lasting_overload_ends_the_crawl_with_an_error(tmp_path: Path) -> None:
    detail = b'{"detail": "Search is overloaded, please try again later."}'
    transport = Direct(make_answers(3000, 7, 0.0, 0), tamper=lambda *_: Response(500, detail, 0))
    with pytest.raises(DataError, match=r"does not answer .the server answered 500 Search is overloaded"):
        read_all(tmp_path / "store", transport)
    assert len(transport.urls) < 500


def test_search_answer_with_sounds_outside_the_time_window_is_refused(tmp_path: Path) -> None:
    old = [{"id": number, "created": "1999-01-01", "duration": 1.0} for number in range(1, 31)]
    transport = Direct(make_answers(30, 7, 0.0, 0), tamper=lambda *_: answer_of(old))
    with pytest.raises(
        DataError, match=r"the API returned a sound uploaded at 1999-01-01T.* for a search from 2005-01-01T"
    ):
        read_all(tmp_path / "store", transport)
    assert stored(tmp_path / "store") == []


def test_null_items_in_search_results_are_listed_once(tmp_path: Path) -> None:
    answers = make_answers(2500, 5, 0.01, 0)
    read_all(tmp_path / "store", Direct(answers))
    nulls = 2500 - len(stored(tmp_path / "store"))
    assert nulls > 10
    for _ in range(2):
        transport = Direct(answers)
        read_all(tmp_path / "store", transport, since="2004-01-01")
        assert len(transport.urls) <= 4, "the count is right: nothing is read again"
        store = Store(tmp_path / "store")
        assert len(store.nulls()) == nulls
        store.close()


def test_crawl_stopped_by_503_answers_resumes_with_the_remaining_sounds(tmp_path: Path) -> None:
    answers = make_answers(1800, 7, 0.0, 0)
    with pytest.raises(DataError, match=r"does not answer \(the server answered 503\); run the same command later"):
        read_all(
            tmp_path / "store",
            Direct(answers, tamper=lambda number, answer: answer if number < 9 else Response(503, b"", 0)),
        )
    before = stored(tmp_path / "store")
    assert 150 <= len(before) <= 8 * PAGE_SIZE
    transport = Direct(answers)
    read_all(tmp_path / "store", transport)
    assert_whole(tmp_path / "store", answers)
    assert len(transport.urls) <= math.ceil((1800 - len(before)) / PAGE_SIZE) + 4


@pytest.mark.parametrize(
    ("status", "body", "output"),
    [
        (401, '{"detail": "Invalid token"}', "refuses the key (Invalid token); correct FREESOUND_API_KEY or its file"),
        (403, "{}", "refuses the key (403)"),
        (400, '{"detail": "Search server error: undefined field x"}', "refuses the request: 400 Search server error"),
        (429, '{"detail": "Your credential has been suspended"}', "has suspended this key"),
        (405, '{"detail": "a\\nb\\u001b[2Jc"}', "405 a"),
    ],
)
def test_permanent_api_errors_end_a_crawl_within_4_requests(
    tmp_path: Path, status: int, body: str, output: str
) -> None:
    transport = Direct(make_answers(10, 1, 0.0, 0), tamper=lambda *_: Response(status, body.encode(), 0))
    with pytest.raises(DataError) as refusal:
        read_all(tmp_path / "store", transport)
    assert output in str(refusal.value)
    assert str(refusal.value).isprintable()
    assert len(transport.urls) <= 4


def test_temporary_null_items_are_stored_and_permanent_ones_listed(tmp_path: Path) -> None:
    def flicker(number: int, answer: Response) -> Response:
        content = json.loads(answer.body)
        if number in (1, 4) and content.get("results"):
            content["results"][3] = content["results"][-1] = None
        return Response(answer.status, json.dumps(content).encode(), 0)

    transport = Direct(make_answers(2000, 5, 0.004, 0), tamper=flicker)
    answers = transport.answers
    read_all(tmp_path / "store", transport, workers=1)
    assert_whole(tmp_path / "store", answers)
    nulls = [number for number in range(2000) if answers.is_null(number)]
    assert len(nulls) > 3
    store = Store(tmp_path / "store")
    listed = store.nulls()
    assert not store.uneven_windows()
    store.close()
    assert len(listed) == len(nulls)
    for number, null in zip(nulls, listed, strict=True):
        assert null.after_ms <= answers.corpus.created(number) <= (null.before_ms or math.inf)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_items_that_are_null_only_in_some_answers_are_stored(tmp_path: Path, seed: int) -> None:
    """Half of all answers lack a third of their items, different ones each time."""
    rng = random.Random(seed)

    def hold_back(number: int, answer: Response) -> Response:
        content = json.loads(answer.body)
        if rng.random() < 0.5 and "results" in content:
            content["results"] = [None if rng.random() < 1 / 3 else item for item in content["results"]]
        return Response(answer.status, json.dumps(content).encode(), 0)

    transport = Direct(make_answers(2000, 5, 0.004, 0), tamper=hold_back)
    read_all(tmp_path / "store", transport, workers=1)
    assert_whole(tmp_path / "store", transport.answers)


def test_crawl_stores_all_sounds_that_exist_throughout_while_others_appear_and_vanish(tmp_path: Path) -> None:
    transport = Direct(make_answers(3000, 9, 0.0, 4))
    read_all(tmp_path / "store", transport, workers=2)
    kept = {row[0] for row in stored(tmp_path / "store")}
    corpus = transport.answers.corpus
    changed = {corpus.id(change.number) for change in make_answers(3000, 9, 0.0, 4)._changes}
    assert len(changed) == 8
    assert {row[0] for row in truth(transport.answers)} - changed <= kept


@pytest.mark.slow
def test_later_crawl_of_a_store_reads_only_time_windows_whose_counts_have_changed(tmp_path: Path) -> None:
    answers = make_answers(4000, 9, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    answers._hidden = {100, 3500}
    transport = Direct(answers)
    read_all(tmp_path / "store", transport, since="2004-01-01")
    assert_whole(tmp_path / "store", answers)
    assert len(transport.urls) < 27, "there are 27 pages"
    answers._hidden = set()
    read_all(tmp_path / "store", Direct(answers), since="2004-01-01")
    assert len(stored(tmp_path / "store")) == 4000


def test_later_crawl_reads_the_sounds_uploaded_after_the_first_crawl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = make_answers(3000, 9, 0.0, 0)
    until = answers.corpus.created(2000)
    monkeypatch.setattr(crawl.time, "time", lambda: until / 1000)
    read_all(tmp_path / "store", Direct(answers))
    first = len(stored(tmp_path / "store"))
    assert 2000 < first < 2100
    monkeypatch.undo()
    transport = Direct(answers)
    read_all(tmp_path / "store", transport, since="last")
    assert len(stored(tmp_path / "store")) == 3000
    assert len(transport.urls) <= 9


@pytest.mark.parametrize(
    ("since", "output"), [("last", "never crawled"), ("soon", "expects `last` or a date"), ("2100-01-01", "future")]
)
def test_invalid_values_of_the_crawl_option_since_are_refused(tmp_path: Path, since: str, output: str) -> None:
    with pytest.raises(DataError, match=output):
        read_all(tmp_path / "store", Direct(make_answers(10, 1, 0.0, 0)), since=since)


def twice(answer: Response) -> Response:
    """Return the page with its second item repeated in place of the third."""
    content = json.loads(answer.body)
    if len(content["results"]) > 2:
        content["results"][2] = content["results"][1]
    return Response(answer.status, json.dumps(content).encode(), 0)


def test_crawl_is_complete_once_the_sounds_missing_from_earlier_answers_are_found(tmp_path: Path) -> None:
    def short(number: int, answer: Response) -> Response:
        content = json.loads(answer.body)
        if number in (2, 3, 4):
            content["results"].pop()
        return Response(answer.status, json.dumps(content).encode(), 0)

    transport = Direct(make_answers(2000, 5, 0.0, 0), tamper=short)
    read_all(tmp_path / "store", transport, workers=1)
    assert_whole(tmp_path / "store", transport.answers)
    store = Store(tmp_path / "store")
    assert store.fact("complete") is not None
    assert store.uneven_windows() == []
    store.close()


def test_search_page_that_lists_a_sound_twice_counts_as_incomplete(tmp_path: Path) -> None:
    """Ten items of nine sounds do not complete a count of ten, however often they come; after one such page, it is
    asked again.
    """
    path, answers = tmp_path / "store", make_answers(10, 7, 0.0, 0)
    read_all(path, Direct(answers, tamper=lambda number, answer: twice(answer) if number == 1 else answer))
    assert_whole(path, answers)
    path = tmp_path / "for good"
    read_all(path, Direct(answers, tamper=lambda number, answer: twice(answer)))
    store = Store(path)
    assert store.count() == 9
    assert store.fact("complete") is None
    assert store.uneven_windows() != []
    store.close()
    read_all(path, Direct(answers))
    assert_whole(path, answers)
