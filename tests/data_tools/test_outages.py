"""A crawl while the search is down, overloaded, answered by a proxy, half rebuilt, or fails for one sound."""

import json
import logging
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sandboxes import (
    SITE,
    Direct,
    assert_whole,
    direct_client,
    everything,
    read_all,
    run_virtually,
    stored,
    truth,
    write_scores,
)

from data_tools.errors import DataError
from data_tools.freesound import completeness, crawl
from data_tools.freesound.client import Client, Response
from data_tools.freesound.completeness import look_up
from data_tools.freesound.http import retry_after
from data_tools.freesound.refresh import refresh
from data_tools.freesound.selection import Criteria, select
from data_tools.freesound.sounds import PAGE_SIZE, parse_time
from data_tools.freesound.store import Store
from data_tools.freesound.windows import UNPROVEN_SPLITS, Window
from data_tools.leakage.exclusion import read_exclusions
from data_tools.sandbox.answers import DOWN, HINT, Answers
from data_tools.sandbox.verb import make_answers

OVERLOADED = "Search is overloaded, please try again later."


def refusal(status: int, detail: str, pause: float = 0.0) -> Response:
    body = json.dumps({"detail": detail}).encode()
    return Response(status, body, len(body), None, pause)


def page_of(status: int, pause: float = 0.0) -> Response:
    """A page of a proxy."""
    return Response(status, b"<html>", 6, None, pause)


def asked(path: Path, transport: Direct, work: Callable[[Client, Store], Any]) -> tuple[Any, float]:
    """Return the result of the work, and the virtual seconds it took."""
    with closing(Store(path, create=True)) as store:
        return run_virtually(work(direct_client(store, transport), store))


# answers that will be better


@pytest.mark.parametrize(
    "answer",
    [
        *(refusal(400, f"Search server error: {words} {HINT}") for words in DOWN),
        refusal(400, "Search server error: Unhandled error"),
        *(page_of(status) for status in (302, 400, 401, 403, 404, 408, 502)),
        refusal(408, "Request Timeout"),
        refusal(500, OVERLOADED),
    ],
)
def test_crawl_waits_for_an_outage_to_end(answer: Response, tmp_path: Path) -> None:
    transport = Direct(
        make_answers(400, 7, 0.0, 0), tamper=lambda number, given: answer if number in (1, 2, 4) else given
    )
    read_all(tmp_path / "store", transport, workers=1)
    assert_whole(tmp_path / "store", transport.answers)


@pytest.mark.parametrize(
    "detail",
    [
        "Invalid filter.",
        "Search server error: Solr responded with an error (HTTP 400): undefined field x (please check ...)",
        "Malformed range",
        "Search server error: Malformed connect",
    ],
)
def test_invalid_filter_ends_the_crawl_at_once(detail: str, tmp_path: Path) -> None:
    transport = Direct(make_answers(10, 1, 0.0, 0), tamper=lambda *_: refusal(400, detail))
    with pytest.raises(DataError, match="refuses the request: 400"):
        read_all(tmp_path / "store", transport, workers=1)
    assert len(transport.urls) == 1


def test_crawl_ends_soon_if_the_server_does_not_answer_like_freesound(tmp_path: Path) -> None:
    transport = Direct(make_answers(10, 1, 0.0, 0), tamper=lambda *_: page_of(404))
    with pytest.raises(
        DataError, match=r"does not answer like Freesound's API \(the server answered 404.*check the address"
    ):
        read_all(tmp_path / "store", transport, workers=1)
    assert len(transport.urls) == 6
    later = Direct(make_answers(400, 1, 0.0, 0), tamper=lambda number, given: page_of(404) if number > 1 else given)
    with pytest.raises(DataError, match="does not answer"):  # it was right before: the proxy may be in trouble
        read_all(tmp_path / "other", later, workers=1)
    assert len(later.urls) == 1 + 40


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (refusal(429, "(60/minute)"), 60),
        (refusal(429, "(2000/day)"), 3600),
        (refusal(429, "(60/minute)", 17), 17),
        (page_of(503, 90), 90),
    ],
)
def test_pause_set_by_the_api_is_respected(answer: Response, seconds: float, tmp_path: Path) -> None:
    transport = Direct(make_answers(100, 7, 0.0, 0), tamper=lambda number, given: answer if number == 1 else given)
    assert read_all(tmp_path / "store", transport, workers=1) == pytest.approx(seconds, abs=0.1)


def test_crawl_ends_with_an_error_if_every_answer_is_429(tmp_path: Path) -> None:
    transport = Direct(make_answers(100, 7, 0.0, 0), tamper=lambda *_: refusal(429, "(60/minute)"))
    with pytest.raises(DataError, match=r"does not answer \(too many requests\)"):
        read_all(tmp_path / "store", transport, workers=1)
    assert len(transport.urls) == 40


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("", 0, 0),
        ("soon", 0, 0),
        ("-5", 0, 0),
        (" 120 ", 120, 120),
        ("999999999", 86_400, 86_400),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400, 86_400),
        ("Fri, 99 Dec 2099 23:59:59 GMT", 0, 0),
    ],
)
def test_http_header_retry_after_is_read_as_seconds_or_as_a_date(header: str, least: float, most: float) -> None:
    assert least <= retry_after(header) <= most


# sounds that the server cannot describe


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_crawl_omits_only_the_sounds_that_the_server_fails_to_list(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = make_answers(700, seed, 0.0, 0, poison=0.003)
    bad = [number for number in range(700) if answers.is_poison(number)]
    assert bad
    transport = Direct(answers)
    read_all(tmp_path / "store", transport)
    kept = {row[0] for row in stored(tmp_path / "store")}
    assert kept == {answers.corpus.id(number) for number in range(700)} - {answers.corpus.id(n) for n in bad}
    with closing(Store(tmp_path / "store", read_only=True)) as store:
        assert store.fact("complete") == store.fact("until")
        for number, null in zip(bad, store.nulls(), strict=True):
            second = answers.corpus.created(number) // 1000
            assert null.after_ms // 1000 <= second <= (null.before_ms or 10**15) // 1000
    assert len(transport.urls) < 10 + 250 * len(bad)


def test_sounds_uploaded_in_the_same_second_as_a_failing_one_are_stored(tmp_path: Path) -> None:
    answers = make_answers(200, 7, 0.0, 0)
    answers.corpus.created = lambda number: parse_time("2020-01-01")  # type: ignore[method-assign]
    answers.is_poison = lambda number: number in (0, 77, 199)  # type: ignore[method-assign]
    read_all(tmp_path / "store", Direct(answers), workers=1)
    assert len(stored(tmp_path / "store")) == 197
    with closing(Store(tmp_path / "store", read_only=True)) as store:
        assert [null.position for null in store.nulls()] == [1, 78, 200]
        assert store.fact("complete") == store.fact("until")


def test_server_outage_does_not_mark_a_sound_as_failing(tmp_path: Path) -> None:
    transport = Direct(
        make_answers(700, 7, 0.0, 0), tamper=lambda number, given: page_of(500) if 2 < number < 20 else given
    )
    read_all(tmp_path / "store", transport, workers=1)
    assert_whole(tmp_path / "store", transport.answers)
    with closing(Store(tmp_path / "store", read_only=True)) as store:
        assert store.nulls() == []


# searches that are too large


def too_large(limit: int) -> Callable[[int, Response], Response]:
    def overloaded(number: int, given: Response) -> Response:
        return refusal(500, OVERLOADED) if json.loads(given.body).get("count", 0) > limit else given

    return overloaded


def test_crawl_adds_up_counts_of_shorter_time_spans_if_the_server_cannot_give_the_total(tmp_path: Path) -> None:
    transport = Direct(make_answers(1000, 7, 0.0, 0), tamper=too_large(400))
    read_all(tmp_path / "store", transport)
    assert_whole(tmp_path / "store", transport.answers)
    with closing(Store(tmp_path / "store")) as store:
        assert (store.fact("total"), store.fact("complete")) == (1000, store.fact("until"))
    again = Direct(transport.answers, tamper=too_large(400))
    transport.answers._hidden = {5, 900}
    read_all(tmp_path / "store", again, since="2004-01-01")
    assert_whole(tmp_path / "store", transport.answers)


def test_crawl_dry_run_adds_up_counts_of_shorter_spans_if_the_server_gives_no_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transport = Direct(make_answers(1000, 7, 0.0, 0), tamper=too_large(400))
    asked(tmp_path / "store", transport, lambda client, store: crawl._dry_run(client, store, None, None))
    assert "1000 sounds since 2005-01-01, 0 of them in" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["type:mp3 OR type:wav", 'license:"Attribution" OR duration:[900 TO 1000]'])
def test_crawl_stays_in_each_time_window_if_the_search_filter_contains_an_or_clause(text: str, tmp_path: Path) -> None:
    transport = Direct(make_answers(600, 7, 0.0, 0))
    with closing(Store(tmp_path / "store", create=True)) as store:
        crawl._plan_windows(store, None, text, SITE)
        run_virtually(crawl.read_whole(direct_client(store, transport), store, 1))
        kept = {row[0] for row in store.database.execute("SELECT license FROM sounds")}
        assert store.fact("complete") == store.fact("until")
    assert ("by/4.0" in next(iter(kept)) and len(kept) == 1) or "mp3" in text
    bare = transport.answers.search({"filter": f"created:[2020-01-01T00:00:00Z TO NOW] {text}"}, SITE).content
    within = transport.answers.search({"filter": f"created:[2020-01-01T00:00:00Z TO NOW] ({text})"}, SITE).content
    assert bare["count"] > within["count"] or "mp3" in text


def test_single_sound_with_an_upload_time_outside_the_time_window_is_stored(tmp_path: Path) -> None:
    answers = make_answers(700, 7, 0.0, 0)
    odd = answers.corpus.id(400)

    def moved(number: int, given: Response) -> Response:
        content = json.loads(given.body)
        for item in content["results"]:
            if item["id"] == odd:
                item["created"] = "1999-05-05T00:00:00Z"
        return Response(given.status, json.dumps(content).encode(), 0)

    for since in (None, "2004-01-01"):
        read_all(tmp_path / "store", Direct(answers, tamper=moved), since=since)
        assert len(stored(tmp_path / "store")) == 700
        with closing(Store(tmp_path / "store")) as store:
            assert store.fact("complete") == store.fact("until")
            row = store.database.execute("SELECT created, indexed FROM sounds WHERE id = ?", (odd,)).fetchone()
        assert row[0] == parse_time("1999-05-05")
        assert row[1] > parse_time("2005-01-01")


# an index that is rebuilt, sounds that go


def test_partly_rebuilt_search_index_marks_no_stored_sound_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = make_answers(700, 7, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    answers.seen, now = 1 / 7, time.time()
    for hours in (0, 5, 30):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + 3600 * hours + 60)
        with pytest.raises(DataError, match=r"counts 100 sounds instead of 700.*run the same command in some hours"):
            read_all(tmp_path / "store", Direct(answers), since="2004-01-01")
        assert len(stored(tmp_path / "store")) == 700
    answers.seen = 1.0
    read_all(tmp_path / "store", Direct(answers))
    assert_whole(tmp_path / "store", answers)


@pytest.mark.slow
def test_later_rebuild_of_the_search_index_marks_no_stored_sound_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, now = make_answers(3000, 7, 0.0, 0), time.time()
    read_all(tmp_path / "store", Direct(answers))
    answers._hidden = {5}
    for hours, seen in ((1, 0.3), (9, 0.5)):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + 3600 * hours)
        answers.seen = 1.0

        def rebuilt(number: int, given: Response, seen: float = seen) -> Response:
            answers.seen = seen
            return given

        with pytest.raises(DataError, match="No sound was marked as missing"):
            read_all(tmp_path / "store", Direct(answers, tamper=rebuilt), since="2004-01-01")
        with closing(Store(tmp_path / "store")) as store:
            assert store.count("missing") == store.count("gone") == 0
    answers.seen = 1.0
    read_all(tmp_path / "store", Direct(answers), since="2004-01-01")
    assert len(stored(tmp_path / "store")) == 2999


def test_errors_for_every_nonempty_page_mark_no_sound_as_failing(tmp_path: Path) -> None:
    def failing(number: int, given: Response) -> Response:
        return page_of(500) if json.loads(given.body).get("count") else given

    answers = make_answers(300, 7, 0.0, 0)
    with pytest.raises(DataError, match=r"does not answer \(the server answered 500\)"):
        read_all(tmp_path / "store", Direct(answers, tamper=failing), workers=1)
    with closing(Store(tmp_path / "store")) as store:
        assert store.nulls() == []
    read_all(tmp_path / "store", Direct(answers))
    assert_whole(tmp_path / "store", answers)


@pytest.mark.parametrize("kind", ["poison", "null"])
def test_stored_sound_that_starts_failing_is_kept(kind: str, tmp_path: Path) -> None:
    answers = make_answers(700, 7, 0.0, 0)
    answers._hidden = {402}
    read_all(tmp_path / "store", Direct(answers))
    answers._hidden = set()
    setattr(answers, f"is_{kind}", lambda number: number == 400)
    transport = Direct(answers)
    read_all(tmp_path / "store", transport, since="2004-01-01")
    assert len(stored(tmp_path / "store")) == 700
    with closing(Store(tmp_path / "store")) as store:
        assert store.fact("complete") == store.fact("until")
        assert store.nulls() == []


def test_failing_sound_does_not_block_looking_up_others(tmp_path: Path) -> None:
    answers = make_answers(300, 7, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    ids = [answers.corpus.id(number) for number in range(150)]
    answers.is_poison = lambda number: number == 70  # type: ignore[method-assign]
    transport = Direct(answers)
    found, _ = asked(tmp_path / "store", transport, lambda client, store: look_up(client, store, ids))
    assert found.keys() == set(ids) - {ids[70]}
    assert None not in found.values()
    assert len(transport.urls) < 80
    both, _ = asked(
        tmp_path / "store", Direct(answers), lambda client, store: client.sounds_by_id([ids[70], ids[3], 5])
    )
    assert both.keys() == {ids[3], 5}, "a bad sound is not gone"
    assert [sound_id for sound_id, sound in both.items() if sound] == [ids[3]]


@pytest.mark.slow
def test_search_for_ids_that_overloads_the_server_is_repeated(tmp_path: Path) -> None:
    """The search is too small to be split, so no id is marked as not found."""
    answers = make_answers(300, 7, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    ids = [answers.corpus.id(number) for number in range(150)]
    transport = Direct(answers, tamper=lambda number, given: refusal(500, OVERLOADED) if number < 12 else given)
    found, _ = asked(tmp_path / "store", transport, lambda client, store: look_up(client, store, ids))
    assert {sound_id for sound_id, sound in found.items() if sound} == set(ids)
    assert len(transport.urls) == 12


def test_search_of_a_one_second_window_that_overloads_the_server_is_repeated(tmp_path: Path) -> None:
    """Even if another search is answered: no smaller window can be requested."""
    answers, second = make_answers(200, 7, 0.0, 0), parse_time("2020-01-01") // 1000
    answers.corpus.created = lambda number: second * 1000  # type: ignore[method-assign]

    def overloaded(number: int, given: Response) -> Response:
        pages = [url for url in transport.urls if url.endswith(f"page_size={PAGE_SIZE}")]
        return refusal(500, OVERLOADED) if transport.urls[number - 1] in pages and len(pages) < 9 else given

    transport = Direct(answers, tamper=overloaded)
    window = Window(second, second, splits=UNPROVEN_SPLITS)
    page, _ = asked(tmp_path / "store", transport, lambda client, store: client.search(window))
    assert page.count == 200


def test_search_for_a_single_sound_is_tried_six_times(tmp_path: Path) -> None:
    """Three failures in a row may be chance."""
    answers, second = make_answers(5, 7, 0.0, 0), parse_time("2020-01-01") // 1000
    answers.corpus.created = lambda number: second * 1000  # type: ignore[method-assign]
    transport = Direct(answers, tamper=lambda number, given: page_of(500) if number < 6 else given)
    window = Window(second, second)
    page, _ = asked(
        tmp_path / "store", transport, lambda client, store: completeness.search_one_by_one(client, window, None)
    )
    assert page.count == 5
    assert None not in page.sounds


def test_refresh_of_a_crawl_keeps_a_filter_that_only_excludes_sounds(tmp_path: Path) -> None:
    answers = make_answers(900, 7, 0.0, 0)
    with closing(Store(tmp_path / "store", create=True)) as store:
        crawl._plan_windows(store, None, 'NOT license:"Attribution"', SITE)
        run_virtually(crawl.read_whole(direct_client(store, Direct(answers)), store, 1))
    others = [n for n in agreeing(answers) if "/by/" not in answers.corpus.sound(n, "")["license"]]
    attributed = [n for n in agreeing(answers) if "/by/" in answers.corpus.sound(n, "")["license"]]
    now_objecting(answers, others[5], attributed[5])
    changes, _ = asked(tmp_path / "store", Direct(answers), refresh)
    assert dict(changes) == {"gen_ai_preference": 1}
    licences = {licence for _, licence in stored(tmp_path / "store", "id, license")}
    assert not any("/by/" in licence for licence in licences)


@pytest.mark.parametrize("kind", ["poison", "null"])
def test_refresh_stores_sounds_that_the_api_can_deliver_again(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = make_answers(700, 7, 0.0, 0)
    setattr(answers, f"is_{kind}", lambda number: number in (200, 400))
    read_all(tmp_path / "store", Direct(answers))
    assert len(stored(tmp_path / "store")) == 698
    setattr(answers, f"is_{kind}", lambda number: number == 400)
    asked(tmp_path / "store", Direct(answers), lambda client, store: crawl._read_nulls_again(client, store, 1))
    assert "read again 2 sounds that the API could not deliver before: 1 could be read now" in capsys.readouterr().out
    assert len(stored(tmp_path / "store")) == 699


def test_crawl_with_a_filter_that_only_excludes_sounds_finds_the_others(tmp_path: Path) -> None:
    answers = make_answers(300, 7, 0.0, 0)
    assert answers.search({"filter": '(NOT license:"Attribution")'}, SITE).content["count"] == 0
    with closing(Store(tmp_path / "store", create=True)) as store:
        crawl._plan_windows(store, None, 'NOT license:"Attribution"', SITE)
        run_virtually(crawl.read_whole(direct_client(store, Direct(answers)), store, 1))
        assert 0 < store.count() < 300


@pytest.mark.slow
def test_refresh_during_an_index_rebuild_is_refused(tmp_path: Path) -> None:
    answers = make_answers(2000, 7, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    answers.seen = 0.5
    with pytest.raises(DataError, match="counts 1000 sounds instead of 2000"):
        asked(tmp_path / "store", Direct(answers), refresh)


def test_index_rebuild_during_a_crawl_is_detected(tmp_path: Path) -> None:
    answers = make_answers(1500, 7, 0.0, 0)
    answers.seen = 1.0

    def rebuilt(number: int, given: Response) -> Response:
        answers.seen = 0.5 if number >= 4 else 1.0
        return given

    with pytest.raises(DataError, match="instead of 1500"):
        read_all(tmp_path / "store", Direct(answers, tamper=rebuilt), workers=1)
    answers.seen = 1.0
    read_all(tmp_path / "store", Direct(answers))
    assert_whole(tmp_path / "store", answers)


def test_crawl_marks_no_sound_missing_if_the_api_lists_50_percent_then_80_percent_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rebuilds, a week apart, with no read between them."""
    answers, now = make_answers(700, 7, 0.0, 0), time.time()
    read_all(tmp_path / "store", Direct(answers))
    for days, seen in ((0, 0.5), (7, 0.8)):
        monkeypatch.setattr(time, "time", lambda days=days: now + 86_400 * days)
        answers.seen = seen
        with pytest.raises(DataError, match="No sound was marked"):
            read_all(tmp_path / "store", Direct(answers), since="2004-01-01")


def test_drop_of_the_number_of_sounds_is_forgotten_once_the_number_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, now = make_answers(700, 7, 0.0, 0), time.time()
    read_all(tmp_path / "store", Direct(answers))
    for days, seen in ((0, 0.5), (1, 1.0), (7, 0.5)):
        monkeypatch.setattr(time, "time", lambda days=days: now + 86_400 * days)
        answers.seen = seen
        if seen == 1:
            read_all(tmp_path / "store", Direct(answers), since="2004-01-01")
            continue
        with pytest.raises(DataError, match="No sound was marked"):
            read_all(tmp_path / "store", Direct(answers), since="2004-01-01")


@pytest.mark.parametrize(
    ("known", "count", "fallen"),
    [
        *((700, 678, True), (700, 679, False), (10_000, 9_701, False), (10_000, 9_699, True)),
        *((18, 0, True), (18, 9, False), (3, 0, False), (4, 0, True), (0, 0, False), (5, 9, False)),
    ],
)
def test_only_a_large_drop_of_the_number_of_sounds_is_suspicious(known: int, count: int, fallen: bool) -> None:
    assert completeness.has_fallen(known, count) == fallen


def test_drop_of_the_number_of_sounds_that_lasts_for_days_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers, now = make_answers(700, 7, 0.0, 0), time.time()
    read_all(tmp_path / "store", Direct(answers))
    answers.seen = 0.5
    with pytest.raises(DataError, match="counts 350"):
        read_all(tmp_path / "store", Direct(answers), since="2004-01-01")
    monkeypatch.setattr(time, "time", lambda: now + completeness.ACCEPTED + 60)
    caplog.set_level(logging.WARNING)
    read_all(tmp_path / "store", Direct(answers))
    assert "has counted 350 instead of 700 sounds for days" in caplog.text
    assert len(stored(tmp_path / "store")) == 350


def test_sound_still_missing_hours_later_is_marked_as_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, now = make_answers(700, 7, 0.0, 0), time.time()
    read_all(tmp_path / "store", Direct(answers))
    answers._hidden = {100, 200}

    def marked() -> list[tuple[int, bool]]:
        with closing(Store(tmp_path / "store")) as store:
            return store.database.execute("SELECT id, gone FROM sounds WHERE missing OR gone ORDER BY id").fetchall()

    read_all(tmp_path / "store", Direct(answers), since="2004-01-01")
    first, second = answers.corpus.id(100), answers.corpus.id(200)
    assert marked() == [(first, 0), (second, 0)]
    read_all(tmp_path / "store", Direct(answers), since="2004-01-01")
    assert marked() == [(first, 0), (second, 0)], "at once is too early to ask again"
    answers._hidden = {100}
    monkeypatch.setattr(time, "time", lambda: now + completeness.REBUILD + 60)
    read_all(tmp_path / "store", Direct(answers), since="2004-01-01")
    assert marked() == [(first, 1)]


# changes by uploaders


def now_objecting(answers: Answers, *numbers: int) -> None:
    """Make the uploaders of these sounds object to generative training from now on."""
    sound, preferences = answers.corpus.sound, answers.corpus.preferences

    def described(number: int, site: str, cdn: str = "") -> Any:
        changed = {"gen_ai_preference": "no-gen-ai"} if number in numbers else {}
        return dict(sound(number, site, cdn)) | changed

    def all_of(asked: Any) -> Any:
        return [
            "no-gen-ai" if number in numbers else one for number, one in zip(asked, preferences(asked), strict=True)
        ]

    answers.corpus.sound, answers.corpus.preferences = described, all_of  # type: ignore[method-assign]


def agreeing(answers: Answers) -> list[int]:
    """Return the sounds whose uploaders do not object."""
    return [n for n in range(answers.corpus.size) if answers.corpus.sound(n, "")["gen_ai_preference"] != "no-gen-ai"]


def test_refresh_finds_sounds_whose_generative_ai_preference_has_changed(tmp_path: Path) -> None:
    answers = make_answers(2000, 7, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    first, second = agreeing(answers)[100:900:799]
    now_objecting(answers, first, second)
    transport = Direct(answers)
    changes, _ = asked(tmp_path / "store", transport, refresh)
    assert dict(changes) == {"gen_ai_preference": 2}
    preferences = dict(stored(tmp_path / "store", "id, gen_ai_preference"))
    assert preferences[answers.corpus.id(first)] == preferences[answers.corpus.id(second)] == "no-gen-ai"
    assert len(stored(tmp_path / "store")) == 2000
    assert len(transport.urls) < 2000 / PAGE_SIZE + 20


def test_refresh_finds_a_changed_licence_by_comparing_sound_counts_per_licence(tmp_path: Path) -> None:
    answers = make_answers(2000, 7, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    with closing(Store(tmp_path / "store")) as store:
        (sound_id, true), *_ = store.database.execute("SELECT id, license FROM sounds WHERE license LIKE '%zero%'")
        store.database.execute("UPDATE sounds SET license = 'x/licenses/by/4.0/' WHERE id = ?", (sound_id,))
    changes, _ = asked(tmp_path / "store", Direct(answers), refresh)
    assert dict(changes) == {"license": 1}
    assert dict(stored(tmp_path / "store", "id, license"))[sound_id] == true
    with pytest.raises(DataError, match="is not complete yet"):
        asked(tmp_path / "new", Direct(answers), refresh)


def test_fetch_looks_up_the_selected_sounds(tmp_path: Path) -> None:
    answers = make_answers(400, 7, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    scores = write_scores(tmp_path / "scores.csv", everything(answers))
    wanted, nothing = Criteria(0.2), read_exclusions([])
    with closing(Store(tmp_path / "store")) as store:
        before = [sound.id for sound in select(store, scores, wanted, nothing).chosen]
    objecting, hidden = answers.corpus.number(before[3]), answers.corpus.number(before[7])
    assert objecting is not None
    assert hidden is not None
    now_objecting(answers, objecting)
    answers._hidden = {hidden}
    transport = Direct(answers)
    found, _ = asked(tmp_path / "store", transport, lambda client, store: look_up(client, store, before))
    assert [sound_id for sound_id, sound in found.items() if sound is None] == [before[7]]
    with closing(Store(tmp_path / "store")) as store:
        now = [sound.id for sound in select(store, scores, wanted, nothing).chosen]
    assert set(before) - set(now) == {before[3]}
    assert len(transport.urls) == -(-len(before) // PAGE_SIZE)


def test_sounds_marked_as_explicit_can_be_excluded_from_fetch(tmp_path: Path) -> None:
    answers = make_answers(400, 7, 0.0, 0)
    read_all(tmp_path / "store", Direct(answers))
    scores = write_scores(tmp_path / "scores.csv", everything(answers))
    explicit = {answers.corpus.id(n) for n in range(400) if answers.corpus.sound(n, "")["is_explicit"]}
    with closing(Store(tmp_path / "store")) as store:
        every = {sound.id for sound in select(store, scores, Criteria(0.0), read_exclusions([])).chosen}
        some = {sound.id for sound in select(store, scores, Criteria(0.0, explicit=False), read_exclusions([])).chosen}
    assert every & explicit
    assert some == every - explicit
    assert len(truth(answers)) == 400
