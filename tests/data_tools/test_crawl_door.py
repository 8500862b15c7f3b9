"""The crawl at the command line: against the sandbox over HTTP, with kills and faults, and half a million sounds."""

import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sandboxes import FAST, UNLIMITED, Direct, LoopClock, assert_whole, read_all, serving, stored
from test_quota import least_seconds

from data_tools.__main__ import main
from data_tools.freesound.client import Response
from data_tools.freesound.export import _write_csv, _write_parquet
from data_tools.freesound.sounds import PAGE_SIZE
from data_tools.freesound.store import Store
from data_tools.sandbox.corpus import Catalogue
from data_tools.sandbox.faults import Throttle
from data_tools.sandbox.verb import make_answers


def crawled(path: Path, settings: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "data_tools", "crawl", str(path), *arguments],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_verbs_crawl_and_status_and_export_work_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas

    path = tmp_path / "store.sqlite"
    with serving("--sounds", "700", "--nulls", "0.01") as settings:
        plan = crawled(path, settings, "--dry-run")
        assert "700 sounds since 2005-01-01, 0 of them in" in plan.stdout
        assert "at least 5 requests left, which take about 0 s at this key's limits" in plan.stdout
        mistyped = crawled(path, settings, "--filter", "duration:[3 TO")
        assert "refuses the request: 400" in mistyped.stderr
        done = crawled(path, settings)
        assert done.returncode == 0, done.stderr
        other = crawled(path, settings, "--filter", "duration:[3 TO 120]")
        assert "was crawled with filter none, not duration:[3 TO 120]" in other.stderr
        small = crawled(tmp_path / "small.sqlite", settings, "--filter", "duration:[3 TO 120]")
        assert small.returncode == 0
    again = crawled(path, {**settings, "FREESOUND_API_KEY": "x"})
    assert "is complete from 2005-01-01 to" in again.stdout, "without a request"
    with serving("--sounds", "700", "--nulls", "0.01") as settings:  # on another port
        update = crawled(path, settings, "--since", "2005-01-01")
        assert update.returncode == 0, update.stderr
    elsewhere = crawled(path, settings, "--site", "https://freesound.org", "--since", "last")
    assert "was crawled with site http://127.0.0.1:" in elsewhere.stderr
    assert main(["status", str(path), "--list", str(tmp_path / "gaps.csv")]) == 0
    output = capsys.readouterr().out
    nulls = 700 - len(stored(path))
    assert nulls > 0
    assert f"{len(stored(path)):>8}  sounds stored; the API has last counted 700" in output
    assert len((tmp_path / "gaps.csv").read_text().splitlines()) == 1 + nulls
    assert all(3 <= row[0] <= 120 for row in stored(tmp_path / "small.sqlite", "duration"))
    assert len(stored(tmp_path / "small.sqlite")) < len(stored(path))
    for suffix, read in ((".csv", pandas.read_csv), (".parquet", pandas.read_parquet)):
        assert main(["export", str(path), "--out", str(tmp_path / f"sounds{suffix}")]) == 0
        table = read(tmp_path / f"sounds{suffix}")
        assert list(zip(table["id"], table["duration"], strict=True)) == stored(path, "id, duration")
        assert table["description"].fillna("").tolist() == [row[0] for row in stored(path, "description")]


def test_freesound_verbs_refuse_invalid_arguments_and_stores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FREESOUND_API_KEY", "k")
    text = tmp_path / "text.csv"
    text.write_text("id,description\n" * 3)
    blank, empty, damaged = tmp_path / "blank", tmp_path / "empty", tmp_path / "damaged"
    blank.touch()
    Store(empty, create=True).close()
    store = Store(damaged, create=True)
    store.database.execute("DROP TABLE windows")
    store.close()
    before = {path.name: path.read_bytes() for path in (text, blank, empty)}
    cases = [
        (["status", tmp_path / "none.sqlite"], "no such file; make a store with lbar data crawl"),
        (["crawl", text], "text.csv: not a store of Freesound sounds, or damaged at its beginning; give"),
        (["crawl", tmp_path / "a", "--site", "http://freesound.org"], "must begin with https://"),
        (["crawl", tmp_path / "a", "--site", "https://freesound.org/?token=x"], "must have only a host and a path"),
        (["crawl", tmp_path / "a", "--speed", "2"], "--speed only works with a sandbox on this machine"),
        (["crawl", tmp_path / "a", "--filter", "created:[* TO NOW]"], "must not contain created"),
        (["crawl", tmp_path / "a", "--filter", "created_range:[* TO NOW]"], "must not contain created"),
        *(
            (["crawl", tmp_path / "a", "--filter", text], "is empty, or has an unmatched quote or parenthesis")
            for text in ("", "()", "a) OR (b", '"a', 'name:\\") OR id:[1 TO *] OR (name:\\"')
        ),
        (["crawl", tmp_path / "a", "--per-day", "0"], "--per-day 0: use 1 to 1000000"),
        (["crawl", tmp_path / "a", "--per-minute", str(10**30)], "--per-minute 1000000000000000000000000000000: use 1"),
        (["crawl", tmp_path / "a", "--workers", "65"], "--workers 65: use 1 to 64"),
        (["crawl", tmp_path / "a", "--timeout", "inf"], "--timeout inf: use 0.1 to 86400"),
        (["crawl", tmp_path / "a", "--speed", "nan"], "--speed nan: use 0.01 to 10000000"),
        *(
            (
                ["crawl", tmp_path / "a", "--site", site],
                "is not a valid address; it should look like https://freesound.org",
            )
            for site in ("https://[::1", "https://a:99999", "https://a:x", "https://", "freesound.org", "https://a b")
        ),
        (["crawl", tmp_path / "a", "--key-file", tmp_path / "none"], "none: no such file"),
        (["status", tmp_path / "a"], "no such file"),
        (["crawl", tmp_path], ": is a folder; name a file"),
        (["export", empty, "--out", tmp_path / "a.txt"], "give a file name that ends in .csv or .parquet"),
        (["export", empty, "--out", tmp_path / "a.csv"], "has no sounds yet"),
        (["export", blank, "--out", tmp_path / "a.csv"], "not a store of Freesound sounds of format"),
        (["status", blank], "not a store of Freesound sounds of format"),
        (["status", damaged], "damaged: SQLite cannot use this file (no such table: windows)"),
    ]
    for arguments, output in cases:
        assert main([str(argument) for argument in arguments]) == 1
        errors = capsys.readouterr().err
        assert output in errors
        assert errors.count("error: ") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path != damaged} == before


def test_crawl_looks_up_missing_sounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.sqlite"
    with serving("--sounds", "20", "--no-throttle") as settings:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        assert main(["crawl", str(path)]) == 0
        store = Store(path)
        store.database.execute("INSERT INTO sounds (id, created, duration, missing) VALUES (999999, 0, 1, 5)")
        store.close()
        later = time.time() + 60
        monkeypatch.setattr(time, "time", lambda: later)
        assert main(["crawl", str(path), "--since", "last"]) == 0
    store = Store(path)
    assert store.database.execute("SELECT id FROM sounds WHERE gone").fetchall() == [(999_999,)]
    store.close()


def test_crawl_is_refused_while_another_process_writes_to_the_store(tmp_path: Path) -> None:
    with serving("--sounds", "300") as settings:
        from data_tools.locks import lock_of

        with lock_of(tmp_path / "store"):
            refused = crawled(tmp_path / "store", settings)
        assert refused.returncode == 1
        assert "another process is writing to it" in refused.stderr


def run_and_kill(path: Path, settings: dict[str, str], rng: random.Random, arguments: list[str]) -> bool:
    """Start a crawl and kill it at a random moment; returns False if it had already ended."""
    command = [sys.executable, "-m", "data_tools", "crawl", str(path), *arguments]
    process = subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, errors = process.communicate(timeout=rng.uniform(0.7, 2.0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, errors.decode()
    return False


def storm(path: Path, sounds: int, kills: int) -> int:
    """Crawl through every kind of fault and this many kills; returns the number of kills. Asserts the stored result."""
    rng = random.Random(4)
    patient = [*UNLIMITED, "--speed", "1000000", "--timeout", "1", "--workers", "8"]
    killed = 0
    with serving("--sounds", str(sounds), "--storm", "0.05", "--nulls", "0.001", "--no-throttle") as settings:
        while killed < kills and run_and_kill(path, settings, rng, patient):
            killed += 1
        done = crawled(path, settings, *patient)
        assert done.returncode == 0, done.stderr
    answers = make_answers(sounds, 1, 0.001, 0)
    assert_whole(path, answers)
    nulls = np.flatnonzero(answers.corpus.uniform("null", np.arange(sounds)) < 0.001)
    store = Store(path)
    listed = store.nulls()
    assert not store.uneven_windows()
    assert not store.open_windows(1)
    store.close()
    times = [answers.corpus.created(int(number)) for number in nulls]
    assert len(listed) == len(times)
    for moment, null in zip(times, listed, strict=True):
        assert null.after_ms <= moment <= (null.before_ms or math.inf)
    return killed


@pytest.mark.slow
def test_crawl_survives_faults_and_one_kill(tmp_path: Path) -> None:
    assert storm(tmp_path / "store", 3000, 1) == 1


@pytest.mark.slow
def test_crawl_survives_outages_and_bad_sounds_over_http(tmp_path: Path) -> None:
    faults = [f"--fault={kind}=0.05" for kind in ("down", "proxy", "throttle", "partial", "500")]
    with serving("--sounds", "1500", "--no-throttle", "--poison", "0.003", *faults) as settings:
        command = [sys.executable, "-m", "data_tools", "crawl", str(tmp_path / "store"), *FAST]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    answers = make_answers(1500, 1, 0.0, 0, poison=0.003)
    bad = [number for number in range(1500) if answers.is_poison(number)]
    assert 1 < len(bad) < 6
    assert done.returncode == 0, done.stderr
    assert f"is complete from 2005-01-01 to {time.strftime('%Y-%m-%d', time.gmtime())}" in done.stdout
    assert f"for {len(bad)} sounds, the API returned only null or an error; they were uploaded:" in done.stdout
    assert done.stdout.count("  between 20") == len(bad)
    assert len(stored(tmp_path / "store")) == 1500 - len(bad)


@pytest.mark.slow
def test_crawl_survives_twenty_kills(tmp_path: Path) -> None:
    assert storm(tmp_path / "store", 100_000, 20) == 20


@pytest.mark.slow
def test_half_a_million_sounds_are_crawled_in_little_memory(tmp_path: Path) -> None:
    """Every id once, hardly any request too many, little memory."""
    path = tmp_path / "store"
    code = "import sys; from data_tools.__main__ import main; status = main(sys.argv[1:]); "
    code += "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]); sys.exit(status)"
    with serving("--sounds", "500000", "--no-throttle") as settings:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", code, "crawl", str(path), *UNLIMITED],
            env=os.environ | settings,
            capture_output=True,
            text=True,
        )
        seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    kib = int(done.stdout.splitlines()[-1])
    corpus = Catalogue(500_000, 1)
    assert [row[0] for row in stored(path)] == [corpus.id(number) for number in range(500_000)]
    store = Store(path)
    (requests,) = store.database.execute("SELECT COUNT(*) FROM requests").fetchone()
    store.close()
    print(f"\n{requests} requests of {math.ceil(500_000 / PAGE_SIZE)}, {seconds:.0f} s, {kib / 1024:.0f} MiB")
    assert requests <= 1.02 * math.ceil(500_000 / PAGE_SIZE)
    assert kib < 250_000


@pytest.mark.slow
def test_crawl_of_half_a_million_sounds_takes_hardly_longer_than_the_quota_requires(tmp_path: Path) -> None:
    """The clock is virtual: the throttle refuses nothing, and the crawl takes hardly more than two days."""
    transport = Direct(make_answers(500_000, 1, 0.0, 0), Throttle(60, 2000, LoopClock()), latency=lambda: 0.3)
    seconds = read_all(tmp_path / "store", transport, per_minute=60, per_day=2000)
    assert transport.refused == 0
    assert len(stored(tmp_path / "store")) == 500_000
    least = least_seconds(len(transport.urls), 60, 2000)
    print(f"\n{len(transport.urls)} requests in {seconds / 3600:.2f} hours, at least {least / 3600:.2f}")
    assert seconds <= 1.02 * least


OVERLOADED = Response(500, b'{"detail": "Search is overloaded, please try again later."}', 0)


def overloaded_by_chance() -> Callable[[int, Response], Response]:
    """Overload every twentieth answer."""
    rng = random.Random(5)
    return lambda number, given: OVERLOADED if rng.random() < 0.05 else given


def overloaded_by_size() -> Callable[[int, Response], Response]:
    """Overload searches of more than 20,000 sounds."""
    count = re.compile(rb'"count": (\d+)')

    def answer(number: int, given: Response) -> Response:
        found = count.search(given.body)
        return OVERLOADED if found and int(found[1]) > 20_000 else given

    return answer


@pytest.mark.parametrize(
    ("sounds", "overloaded", "most"),
    [
        pytest.param(100_000, overloaded_by_chance, 1.09, marks=pytest.mark.slow),
        pytest.param(100_000, overloaded_by_size, 1.1, marks=pytest.mark.slow),
        pytest.param(500_000, overloaded_by_chance, 1.07, marks=pytest.mark.campaign),
        pytest.param(500_000, overloaded_by_size, 1.18, marks=pytest.mark.campaign),
    ],
)
def test_overloaded_search_needs_few_additional_crawl_requests(
    sounds: int, overloaded: Callable[[], Callable[[int, Response], Response]], most: float, tmp_path: Path
) -> None:
    transport = Direct(make_answers(sounds, 1, 0.0, 0), tamper=overloaded())
    read_all(tmp_path / "store", transport)
    needed = math.ceil(sounds / PAGE_SIZE)
    print(f"\n{len(transport.urls)} requests of {needed}: {len(transport.urls) / needed:.3f}")
    store = Store(tmp_path / "store")
    assert store.count() == sounds
    assert store.fact("complete") == store.fact("until")
    store.close()
    assert len(transport.urls) <= most * needed


FORMULAS = ['=HYPERLINK("http://x")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1"]


def test_csv_export_escapes_texts_that_a_spreadsheet_would_run_as_formulas(tmp_path: Path) -> None:
    import pandas

    harmless = ["a dog barks", "'quoted'", "", "3 - 4", " =1", "ends with ="]
    texts = [*FORMULAS, *harmless]
    chunk = pandas.DataFrame({"id": range(len(texts)), "description": texts, "duration": [-1.5] * len(texts)})
    for write, suffix in ((_write_csv, "csv"), (_write_parquet, "parquet")):
        write(iter([chunk.copy()]), tmp_path / f"t.{suffix}")
    read = pandas.read_csv(tmp_path / "t.csv", keep_default_na=False)
    assert read["description"].tolist() == [*(f"'{text}" for text in FORMULAS), *harmless]
    assert read["duration"].tolist() == [-1.5] * len(texts)
    assert pandas.read_parquet(tmp_path / "t.parquet")["description"].tolist() == texts
