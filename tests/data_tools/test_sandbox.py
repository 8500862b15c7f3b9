"""The sandbox answers like Freesound's API: fields, filters, pages, errors, throttle, audio."""

import io
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import soundfile
from sandboxes import SITE, serving

from data_tools.__main__ import main
from data_tools.errors import DataError
from data_tools.freesound.access import KEY
from data_tools.freesound.sounds import FIELDS, PREVIEWS, Sound, format_time, parse_page, parse_time
from data_tools.sandbox.answers import Answers
from data_tools.sandbox.corpus import LICENCES, PREFERENCES, Catalogue
from data_tools.sandbox.faults import KINDS, Faults
from data_tools.sandbox.verb import make_answers

EVERYTHING = {"query": "", "sort": "created_asc", "fields": "id,created,duration,license,gen_ai_preference"}


def search(answers: Answers, **parameters: str) -> dict[str, Any]:
    reply = answers.search(EVERYTHING | parameters, SITE)
    assert reply.status == 200, reply.content
    return reply.content


def every(answers: Answers, **parameters: str) -> list[dict[str, Any]]:
    """Return all results over all pages."""
    found: list[dict[str, Any]] = []
    page = 1
    while True:
        content = search(answers, page=str(page), page_size="150", **parameters)
        found += content["results"]
        if content["next"] is None:
            assert len(found) == content["count"]
            return found
        page += 1


@pytest.mark.parametrize("size", [1, 2000, 500_000])
def test_sandbox_sounds_depend_on_the_seed_and_are_ordered_in_time(size: int) -> None:
    corpus, other = Catalogue(size, 3), Catalogue(size, 4)
    numbers = sorted({0, size - 1, *range(0, size, max(1, size // 500))})
    sounds = [corpus.sound(number, SITE) for number in numbers]
    assert sounds == [Catalogue(size, 3).sound(number, SITE) for number in numbers]
    assert sounds != [other.sound(number, SITE) for number in numbers]
    ids, times = [sound["id"] for sound in sounds], [corpus.created(number) for number in numbers]
    assert ids == sorted(set(ids))
    assert times == sorted(times)
    assert [corpus.number(sound_id) for sound_id in ids] == numbers
    for number, created in zip(numbers, times, strict=True):
        assert corpus.from_time(created) <= number < corpus.from_time(created + 1)
    for purpose in ("id", "a longer name"):
        several = list(corpus.uniform(purpose, np.array(numbers)))
        assert [corpus.one_uniform(purpose, number) for number in numbers] == several
    assert corpus.number(0) is None
    assert corpus.number(10**9) is None


def test_sandbox_has_no_sound_for_unknown_ids() -> None:
    corpus = Catalogue(100, 1)
    ids = {corpus.id(number) for number in range(100)}
    assert {found for found in range(1, 2000) if corpus.number(found) is not None} == {i for i in ids if i < 2000}


def test_some_sandbox_sounds_are_uploaded_in_the_same_second() -> None:
    corpus = Catalogue(20_000, 1)
    times = np.array([corpus.created(number) for number in range(20_000)])
    _, counts = np.unique(times, return_counts=True)
    assert counts.max() >= 64
    assert 0.9 < len(counts) / 20_000 < 1


def test_sandbox_sounds_have_the_fields_that_the_api_documents() -> None:
    sound = Catalogue(10, 1).sound(3, SITE)
    assert set(FIELDS.split(",")) <= sound.keys()
    assert set(sound["previews"]) == set(PREVIEWS)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", sound["created"])
    parsed = Sound.model_validate(sound)
    assert (parsed.id, parsed.created) == (sound["id"], Catalogue(10, 1).created(3) // 1000 * 1000)
    assert sound["filesize"] == 44 + 2 * round(44_100 * sound["duration"])


def test_sounds_found_by_a_filter_equal_a_scan_of_every_sound() -> None:
    answers = make_answers(1200, 2, 0.0, 0)
    sounds = every(answers)
    assert [sound["created"] for sound in sounds] == sorted(sound["created"] for sound in sounds)
    first, last = (parse_time(sounds[position]["created"]) // 1000 * 1000 for position in (300, 700))

    def within(low: float, value: float, high: float) -> bool:
        return low <= value <= high

    cases = {
        f"created:[{format_time(first)} TO {format_time(last)}]": lambda s: within(
            first, parse_time(s["created"]), last
        ),
        f"created:[* TO {format_time(last)}] duration:[3 TO *]": lambda s: (
            parse_time(s["created"]) <= last and s["duration"] >= 3
        ),
        "duration:[3 TO 8]": lambda s: 3 <= s["duration"] <= 8,
        'license:"Creative Commons 0"': lambda s: "zero" in s["license"],
        'license:("Attribution" OR "Sampling+")': lambda s: "/by/" in s["license"] or "sampling" in s["license"],
        "gen_ai_preference:no-gen-ai": lambda s: s["gen_ai_preference"] == "no-gen-ai",
        "type:(wav OR aiff)": lambda s: True,
        "type:mp3": lambda s: False,
        "created:[* TO NOW]": lambda s: True,
    }
    for text, rule in cases.items():
        expected = [sound for sound in sounds if rule(sound)]
        assert every(answers, filter=text) == expected, text
    assert every(answers, sort="created_desc") == sounds[::-1]
    assert sorted(every(answers, sort="nonsense"), key=lambda s: s["id"]) == sounds


def test_sandbox_search_pages_have_the_sizes_and_fields_of_the_api() -> None:
    answers = make_answers(400, 2, 0.0, 0)
    assert len(search(answers)["results"]) == 15
    assert len(search(answers, page_size="1000")["results"]) == 150
    assert search(answers, page="x")["results"] == search(answers, page="1")["results"]
    assert search(answers, fields="id")["results"][0].keys() == {"id"}
    assert search(answers, filter="duration:[900 TO 1000]") == {
        "count": 0,
        "next": None,
        "previous": None,
        "results": [],
    }
    for page, size in (("4", "150"), ("0", "15"), ("-1", "15"), ("1", "0"), ("1", "-3")):
        assert answers.search(EVERYTHING | {"page": page, "page_size": size}, SITE).status == 404
    assert answers.search({}, SITE).content["results"][0].keys() == {"id", "name", "tags", "username", "license"}


@pytest.mark.parametrize(
    "text",
    [
        "created:[NOW-99999YEARS TO NOW]",
        "(" * 2000 + "type:wav" + ")" * 2000,
        "x",
        "duration",
        "duration:[1 to 2]",
        "duration:[a TO b]",
        "colour:red",
        "(",
        "created:[1]",
    ],
)
def test_sandbox_refuses_invalid_search_filters_with_status_400(text: str) -> None:
    reply = make_answers(10, 1, 0.0, 0).search({"filter": text}, SITE)
    assert reply.status == 400
    assert reply.content["detail"].startswith("Search server error: ")


def test_sandbox_sounds_have_the_stated_shares_of_licences_and_preferences() -> None:
    corpus, numbers = Catalogue(50_000, 1), np.arange(50_000)
    for found, shares in (
        (corpus.licences(numbers), {name: share for name, (_, share) in LICENCES.items()}),
        (corpus.preferences(numbers), PREFERENCES),
    ):
        for name, share in shares.items():
            assert (found == name).mean() == pytest.approx(share, abs=0.01)
    seconds = corpus.seconds(numbers)
    assert ((seconds >= 3) & (seconds <= 120)).mean() == pytest.approx(0.82, abs=0.01)
    assert (seconds == 8).mean() == pytest.approx(0.55, abs=0.01)


def test_sandbox_sounds_appear_and_vanish_over_time() -> None:
    answers = make_answers(300, 5, 0.0, 3)
    counts = [search(answers)["count"] for _ in range(4)]
    assert counts[-1] == 297
    assert len(answers._hidden) == 3


def test_sounds_marked_as_null_are_null_in_every_answer() -> None:
    answers = make_answers(2000, 5, 0.01, 0)
    sounds = every(answers)
    assert len(sounds) == 2000
    nulls = {position for position, sound in enumerate(sounds) if sound is None}
    assert nulls == {number for number in range(2000) if answers.is_null(number)}
    assert 5 < len(nulls) < 40


@pytest.mark.parametrize("suffix", ["mp3", "ogg", "wav"])
def test_sandbox_audio_has_the_stated_duration(suffix: str) -> None:
    answers = make_answers(400, 2, 0.0, 0)
    seconds = answers.corpus.seconds(np.arange(400))
    for number in (int(np.argmin(seconds)), int(np.argmin(abs(seconds - 20))), int(np.flatnonzero(seconds == 8)[0])):
        samples, rate = soundfile.read(io.BytesIO(answers.audio(number, suffix)))
        assert rate == 44_100
        assert abs(len(samples) / rate - seconds[number]) < 0.1
        assert np.abs(samples).max() > 0.01
        assert answers.audio(number, suffix) == answers.audio(number, suffix) or suffix == "ogg"  # serial numbers
    broken = next(number for number in range(400) if answers.corpus.is_broken(number))
    with pytest.raises(soundfile.LibsndfileError):
        soundfile.read(io.BytesIO(answers.audio(broken, suffix)))


def test_simulated_faults_have_the_given_rates_and_repeat_with_the_seed() -> None:
    faults, again = (Faults(dict.fromkeys(KINDS, 0.05), 3) for _ in range(2))
    drawn = [faults.draw() for _ in range(20_000)]
    assert drawn == [again.draw() for _ in range(20_000)]
    for kind in KINDS:
        assert drawn.count(kind) / 20_000 == pytest.approx(0.05, abs=0.005)
    assert Faults({}, 1).draw() is None
    body = json.dumps({"count": 1}).encode()
    assert all(body.startswith(cut) and len(cut) < len(body) for cut in (faults.cut(body) for _ in range(100)))


@pytest.mark.parametrize(
    ("body", "output"),
    [
        (b'{"count": 1, "res', "not JSON"),
        (b"null", "is not a JSON object"),
        (b'{"results": []}', "no valid count"),
        (b'{"count": true, "results": []}', "no valid count"),
        (b'{"count": 1, "results": {}}', "no list of results"),
        (b'{"count": 9007199254740992, "results": []}', "no valid count"),
        (b'{"count": 1, "results": ' + b"[" * 200_000, "are nested too deeply"),
    ],
)
def test_invalid_search_answers_of_the_api_are_refused(body: bytes, output: str) -> None:
    with pytest.raises(DataError, match=output):
        parse_page(body)


def test_lone_surrogates_in_search_pages_are_replaced() -> None:
    name = rb'"name": "a\ud800b\ud83d\ude00"'
    body = b'{"count": 1, "results": [{"id": 1, "created": "2020-01-01", "duration": 1, ' + name + b"}]}"
    sound = parse_page(body).sounds[0]
    assert sound is not None
    assert sound.name == "a\ufffdb\U0001f600"


def test_api_times_are_parsed_to_milliseconds_and_formatted_back() -> None:
    assert parse_time("1970-01-01T00:00:01.5") == 1500
    assert parse_time("2014-04-16T20:07:11.145") == 1_397_678_831_145
    assert parse_time("2014-04-16T22:07:11.145+02:00") == 1_397_678_831_145
    assert parse_time("2005-01-01") == 1_104_537_600_000
    assert format_time(1_397_678_831_145) == "2014-04-16T20:07:11.145Z"
    assert format_time(-1) == "1969-12-31T23:59:59.999Z"


# over HTTP


def ask(settings: dict[str, str], path: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(settings["FREESOUND_API"] + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_sandbox_answers_search_and_sound_requests_over_http() -> None:
    with serving("--sounds", "300", "--per-minute", "9") as settings:
        token = {"Authorization": f"Token {settings[KEY]}"}
        bearer = {"Authorization": f"Bearer {settings['FREESOUND_ACCESS_TOKEN']}"}
        status, body = ask(
            settings, "/apiv2/search/?query=&page_size=150&sort=created_asc&fields=id,previews,duration", **token
        )
        assert status == 200
        first = json.loads(body)["results"][0]
        assert ask(settings, "/apiv2/search/text/?query=", **token)[0] == 200
        assert ask(settings, "/apiv2/search/?filter=", **token)[0] == 400
        assert ask(settings, f"/apiv2/search/?token={settings[KEY]}")[0] == 200
        assert ask(settings, f"/apiv2/sounds/{first['id']}/", **token)[0] == 200
        assert ask(settings, "/apiv2/sounds/999999999/", **token)[0] == 404
        absent = {"detail": "Authentication credentials were not provided."}
        for headers, words in (
            ({}, absent),
            ({"Authorization": "Bearer x"}, absent),
            ({"Authorization": "Token x"}, {"detail": "Invalid token"}),
        ):
            status, body = ask(settings, "/apiv2/search/?query=", **headers)
            assert (status, json.loads(body)) == (401, words)
        assert ask(settings, "/apiv2/search/?query=", **bearer)[0] == 200
        cdn, _, preview = first["previews"]["preview-hq-mp3"].partition("/previews/")
        assert cdn != settings["FREESOUND_API"]
        there = {"FREESOUND_API": cdn}
        whole = ask(there, f"/previews/{preview}")[1]
        assert abs(soundfile.info(io.BytesIO(whole)).duration - first["duration"]) < 0.1
        assert ask(there, f"/previews/{preview}", Range="bytes=100-199") == (206, whole[100:200])
        assert ask(there, f"/previews/{preview}", Range=f"bytes={len(whole)}-")[0] == 416
        assert ask(there, "/previews/0/x.mp3")[0] == 404
        original = ask(settings, f"/apiv2/sounds/{first['id']}/download/", **bearer)
        assert original[0] == 200
        assert len(original[1]) == 44 + 2 * round(44_100 * first["duration"])
        assert ask(settings, f"/apiv2/sounds/{first['id']}/download/", **token)[0] == 401
        assert ask(settings, "/apiv2/search/?query=", **token)[0] == 200
        status, body = ask(settings, "/apiv2/search/?query=", **token)
        assert (status, json.loads(body)["detail"].rpartition(" ")[2]) == (429, "(9/minute)")


@pytest.mark.slow
def test_sandbox_answers_the_requests_of_the_client_freesound_python() -> None:
    """The requests of freesound-python, with another address: a search, its pages by `next`, a sound, its previews and
    original.

    As in that client, all have the same Authorization header.
    """
    with serving("--sounds", "50", "--no-throttle") as settings:
        site = settings["FREESOUND_API"]

        def get(url: str, **query: str) -> bytes:
            full = f"{url}?{urlencode(query)}" if query else url
            return ask({"FREESOUND_API": ""}, full, Authorization=f"Bearer {settings['FREESOUND_ACCESS_TOKEN']}")[1]

        wanted = {"query": "", "filter": "duration:[0 TO 600] (type:wav OR type:flac)", "page_size": "7"}
        pages = [json.loads(get(f"{site}/apiv2/search/", fields="id,name,previews", **wanted))]
        while pages[-1]["next"]:
            pages.append(json.loads(get(pages[-1]["next"])))
        found = [sound for page in pages for sound in page["results"]]
        assert len(found) == len({sound["id"] for sound in found}) == pages[0]["count"] == 50
        assert all(sound.keys() == {"id", "name", "previews"} for sound in found)
        assert [len(page["results"]) for page in pages] == [7] * 7 + [1]
        previous = json.loads(get(pages[2]["previous"]))
        assert previous["results"] == pages[1]["results"]
        sound = json.loads(get(f"{site}/apiv2/sounds/{found[0]['id']}/"))
        some = json.loads(get(f"{site}/apiv2/sounds/{found[0]['id']}/", fields="id,duration"))
        assert some == {"id": sound["id"], "duration": sound["duration"]}
        files = [*found[0]["previews"].values(), f"{site}/apiv2/sounds/{sound['id']}/download/"]
        for url in files:
            assert abs(soundfile.info(io.BytesIO(get(url))).duration - sound["duration"]) < 0.1


FILTERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "type:wav OR duration:[900 TO *]": lambda s: True,
    "-type:wav": lambda s: False,
    "NOT gen_ai_preference:no-gen-ai": lambda s: s["gen_ai_preference"] != "no-gen-ai",
    "duration:[3 TO 8] NOT duration:8": lambda s: 3 <= s["duration"] < 8,
    "duration:{3 TO 8}": lambda s: 3 < s["duration"] < 8,
    "(duration:8 AND license:Attribution) OR is_explicit:true": lambda s: (
        (s["duration"] == 8 and "/by/" in s["license"]) or s["is_explicit"]
    ),
    "category:Sound*": lambda s: True,
    'subcategory:"Objects / House appliances"': lambda s: s["subcategory"] is not None,
    "created:[NOW-10YEARS/DAY TO NOW]": lambda s: parse_time(s["created"]) > time.time() * 1000 - 10 * 31_556_952_000,
    "created:[* TO NOW-10YEARS/DAY]": lambda s: parse_time(s["created"]) < time.time() * 1000 - 10 * 31_556_952_000,
}


@pytest.mark.parametrize("text", FILTERS)
def test_filters_with_operators_find_the_expected_sounds(text: str) -> None:
    answers = make_answers(400, 2, 0.0, 0)
    fields = "id,created,duration,license,gen_ai_preference,type,is_explicit,category,subcategory"
    expected = [sound for sound in every(answers, fields=fields) if FILTERS[text](sound)]
    assert every(answers, filter=text, fields=fields) == expected


def test_word_or_outside_parentheses_makes_the_other_clauses_of_an_api_filter_optional() -> None:
    """Lucene's parser does this. Parentheses around a user's filter avoid it."""
    answers = make_answers(400, 2, 0.0, 0)
    within = "created:[2020-01-01T00:00:00Z TO NOW]"
    some = search(answers, filter=within)["count"]
    assert 0 < some < 400
    assert search(answers, filter=f"{within} type:mp3 OR duration:[900 TO *]")["count"] == some
    assert search(answers, filter=f"{within} (type:mp3 OR duration:[900 TO *])")["count"] == 0
    assert search(answers, filter=f"{within} OR type:wav")["count"] == 400


@pytest.mark.parametrize("text", ["tag:dog~2", "name:/dog/", "license:Attr?bution", "tag:dog^3"])
def test_sandbox_answers_unsupported_search_filters_with_status_501(text: str) -> None:
    assert make_answers(10, 1, 0.0, 0).search({"filter": text}, SITE).status == 501


def test_sandbox_verb_refuses_invalid_options(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, output in (
        (["--sounds", "0"], "--sounds 0: use 1 to 760000"),
        (["--sounds", "10", "--churn", "6"], "--churn 6: must be from 0 to half of --sounds"),
        (["--port", "65536"], "--port 65536: use 0 to 65535"),
        (["--port", "-1"], "--port -1: use 0 to 65535"),
        (["--seed", "-1"], "--seed -1: use 0 to"),
        (["--per-minute", "0"], "--per-minute 0: use 1 to"),
        (["--per-day", "-5"], "--per-day -5: use 1 to"),
        (["--speed", "0"], "--speed 0.0: use 0.01 to"),
        (["--speed", "inf"], "--speed inf: use 0.01 to"),
        (["--nulls", "1.5"], "--nulls 1.5: use 0 to 1"),
        (["--nulls", "nan"], "--nulls nan: use 0 to 1"),
        (["--storm", "nan"], "at most 1 in total"),
        (["--then", "status 'a b"], '--then "status \'a b": No closing quotation'),
        (["--fault", "flood=0.1"], "unknown fault 'flood'; choose from 429, throttle, 500"),
        (["--fault", "500"], "--fault 500: expects KIND=SHARE"),
        (["--storm", "0.5"], "at most 1 in total"),
    ):
        assert main(["sandbox", "--port", "0", *arguments]) == 1
        errors = capsys.readouterr().err
        assert output in errors
        assert len(errors.splitlines()) == 1
    with pytest.raises(DataError, match="must be 0 or more"):
        Faults({"500": -0.1}, 1)


def test_sandbox_verb_runs_its_follow_up_commands_in_order_and_stops_at_the_first_failure(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "a b.sqlite"
    assert main(["sandbox", "--port", "0", "--sounds", "20", "--then", f"crawl '{store}'", f"status '{store}'"]) == 0
    assert "20  sounds stored" in capfd.readouterr().out
    assert main(["sandbox", "--port", "0", "--then", f"status '{tmp_path}/none'", f"crawl '{tmp_path}/new'"]) == 1
    assert not (tmp_path / "new").exists()
