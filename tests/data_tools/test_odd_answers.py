"""Invalid answers, addresses and disks, and interruptions: one fault never affects the rest."""

import asyncio
import hashlib
import json
import logging
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pandas
import pytest
import soundfile
from pydantic import SecretStr
from sandboxes import FAST, SITE, UNLIMITED, Direct, LoopClock, everything, run_virtually, serving, stored, write_scores
from test_crawl import read_all, truth
from test_fetch import assert_folder, expected_numbers, fetch, write_list

from data_tools import cli
from data_tools.__main__ import main
from data_tools.errors import DataError
from data_tools.freesound.access import KEY, Token
from data_tools.freesound.audio_folder import Folder, StoredFile
from data_tools.freesound.client import AgainError, Client, LostError, Response
from data_tools.freesound.http import Http
from data_tools.freesound.quota import Quota
from data_tools.freesound.sounds import parse_page
from data_tools.freesound.store import Store
from data_tools.sandbox.answers import Answers
from data_tools.sandbox.verb import make_answers

SOUND = {"id": 7, "created": "2020-01-01", "duration": 1.5}


# one odd item of a page


def parsed(item: object) -> Any:
    return parse_page(json.dumps({"count": 1, "results": [item]}).encode()).sounds[0]


def test_null_texts_of_a_sound_become_empty_texts() -> None:
    texts = dict.fromkeys(("name", "description", "username", "license", "tags", "previews"))
    sound = parsed(SOUND | texts | dict.fromkeys(("type", "md5", "category", "channels", "filesize", "samplerate")))
    assert (sound.name, sound.description, sound.username, sound.license) == ("", "", "", "")
    assert (sound.tags, sound.previews, sound.type, sound.category) == ([], {}, None, None)
    assert parsed(SOUND | {"tags": ["a", None]}).tags == ["a", ""]
    assert parsed(SOUND | {"previews": {"preview-hq-mp3": None}}).previews == {"preview-hq-mp3": ""}


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"id": "7"},
        {"id": 2**53},
        {"id": 0},
        {"created": "soon"},
        {"created": None},
        {"created": 2**52},
        {"duration": None},
        {"duration": -2},
        {"type": 3},
        {"tags": "a b"},
        {"filesize": 2**63},
        {"channels": 2**53},
        {"channels": -1},
        {"category": json.loads("[" * 900 + "]" * 900)},
    ],
)
def test_sound_with_invalid_fields_counts_as_a_null_item(change: dict[str, object]) -> None:
    assert parsed(SOUND | change) is None or "category" in change
    assert parsed(7) is None
    assert parsed([]) is None


def test_unknown_duration_of_a_sound_is_kept_as_minus_one() -> None:
    assert parsed(SOUND | {"duration": -1}).duration == -1


def test_lone_surrogates_are_replaced_in_all_text() -> None:
    odd, mended = "a\ud800b", "a\ufffdb"
    sound = parsed(SOUND | {"category": odd, "previews": {"preview-hq-mp3": odd}, "tags": [odd]})
    assert (sound.category, sound.previews, sound.tags) == (mended, {"preview-hq-mp3": mended}, [mended])
    assert parsed(SOUND | {"category": ["x", odd]}).category.isascii()


def test_invalid_items_of_a_search_page_are_listed_and_the_others_stored(tmp_path: Path) -> None:
    def odd(number: int, answer: Response) -> Response:
        content = json.loads(answer.body)
        for item in content.get("results", ()):
            if item["id"] in spoilt:
                item |= {"duration": None}
            elif item["id"] in wordless:
                item |= {"description": None}
            elif item["id"] in smuggled:
                item |= {"category": "\ud800", "previews": {"preview-hq-mp3": f"{SITE}/\ud800"}}
        return Response(answer.status, json.dumps(content).encode(), 0)

    transport = Direct(make_answers(400, 7, 0.0, 0), tamper=odd)
    ids = [row[0] for row in truth(transport.answers)]
    spoilt, wordless, smuggled = {ids[5], ids[200]}, {ids[6]}, {ids[7]}
    read_all(tmp_path / "store", transport, workers=1)
    assert {row[0] for row in stored(tmp_path / "store")} == set(ids) - spoilt
    assert dict(stored(tmp_path / "store", "id, description"))[ids[6]] == ""
    with closing(Store(tmp_path / "store", read_only=True)) as store:
        assert len(store.nulls()) == 2
    assert len(transport.urls) < 30


def test_error_answer_with_deeply_nested_json_is_reported(tmp_path: Path) -> None:
    transport = Direct(make_answers(10, 1, 0.0, 0), tamper=lambda *_: Response(403, b"[" * 200_000, 0))
    with pytest.raises(
        DataError,
        match=r"does not answer like Freesound's API \(the server answered 403, with a page that is not ",
    ):
        read_all(tmp_path / "store", transport)


# files and their addresses


class Scripted:
    """A transport that returns the answers of a list, then the last one for ever."""

    def __init__(self, *answers: Response | Exception) -> None:
        self.answers, self.urls = list(answers), list[str]()

    async def get(self, url: str, headers: Any, into: Path | None = None, limit: int | None = None) -> Response:
        self.urls.append(url)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def ask(tmp_path: Path, transport: Scripted, work: Callable[[Client], Any], site: str = "https://a.b") -> Any:
    with closing(Store(tmp_path / "store", create=True)) as store:

        async def asked() -> Any:
            clock = LoopClock()
            quota = Quota(store.database, 60, 2000, clock)
            return await work(Client(site, SecretStr("k"), quota, transport, clock, Token(SecretStr("t"))))

        return run_virtually(asked())


@pytest.mark.parametrize("status", [204, 302, 400, 401, 403, 404, 405, 410, 451])
def test_fetch_skips_only_the_sound_whose_preview_is_refused(tmp_path: Path, status: int) -> None:
    for moved in ([], [Response(302, b"", 0, "https://cdn.a.b/x")]):
        transport = Scripted(*moved, Response(status, b"", 0, "https://cdn.a.b/x" if status == 302 else None))
        with pytest.raises(LostError, match=f"the server answered {status}"):
            ask(tmp_path, transport, lambda client: client.download_preview("/x", tmp_path / "x"))
        assert len(transport.urls) <= 4


def test_error_mentions_the_access_token_only_if_the_api_itself_refuses_the_original_file(tmp_path: Path) -> None:
    def original(client: Client) -> Any:
        return client.download_original(7, tmp_path / "x")

    for status in (401, 403):
        with pytest.raises(DataError, match="correct FREESOUND_ACCESS_TOKEN"):
            ask(tmp_path, Scripted(Response(status, b"{}", 0)), original)
        with pytest.raises(LostError, match=f"the server answered {status}"):  # not the API's word on the token
            ask(tmp_path, Scripted(Response(status, b"<h1>", 0)), original)
        with pytest.raises(LostError, match=f"the server answered {status}"):
            ask(tmp_path, Scripted(Response(302, b"", 0, "https://cdn.a.b/x"), Response(status, b"{}", 0)), original)
    with pytest.raises(LostError, match="the server answered 400"):
        ask(tmp_path, Scripted(Response(400, b"", 0)), original)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_preview_that_the_server_cannot_deliver_yet_is_requested_again(tmp_path: Path, status: int) -> None:
    transport = Scripted(Response(status, b"", 0), Response(200, b"", 9))
    length, seconds = ask(tmp_path, transport, lambda client: client.download_preview("/x", tmp_path / "x"))
    assert length == 9
    assert seconds >= (60 if status == 429 else 1)


def test_endless_throttling_of_originals_ends_the_fetch(tmp_path: Path) -> None:
    transport = Scripted(Response(429, b'{"detail": "(2000/day)"}', 0))
    with pytest.raises(DataError, match=r"does not answer \(too many requests today\)"):
        ask(tmp_path, transport, lambda client: client.download_original(7, tmp_path / "x"))
    assert len(transport.urls) == 40


@pytest.mark.parametrize("moved", [[], [Response(302, b"", 0, "http://[::1")]])
def test_sound_with_an_invalid_file_address_is_given_up(tmp_path: Path, moved: list[Response]) -> None:
    url = "/x" if moved else "http://[::1"
    with pytest.raises(LostError, match=r"^the server returned the address 'http://\[::1.*', which is not valid$"):
        ask(
            tmp_path,
            Scripted(*moved, Response(200, b"", 9)),
            lambda client: client.download_preview(url, tmp_path / "x"),
        )


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("/data/x.mp3", "https://a.b/prefix/data/x.mp3"),
        ("/data//x.mp3", "https://a.b/prefix/data//x.mp3"),
        ("https://a.b/elsewhere/x.mp3", "https://a.b/elsewhere/x.mp3"),
        ("//cdn.a.b/x.mp3", "https://cdn.a.b/x.mp3"),
    ],
)
def test_previews_of_a_site_with_a_path_prefix_are_requested_correctly(tmp_path: Path, url: str, asked: str) -> None:
    transport = Scripted(Response(200, b"", 9))
    ask(tmp_path, transport, lambda client: client.download_preview(url, tmp_path / "x"), "https://a.b/prefix")
    assert transport.urls == [asked]


def test_connection_problem_is_logged_within_ten_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    offline = [AgainError("no connection, or a broken one: ClientConnectorError")] * 3
    transport = Scripted(*offline, Response(200, b"", 9))
    _, seconds = ask(tmp_path, transport, lambda client: client.download_preview("/x", tmp_path / "x"))
    assert seconds <= 14
    (output,) = caplog.messages
    assert output.startswith(
        "https://a.b: no connection, or a broken one: ClientConnectorError; next attempt in about "
    )
    caplog.clear()
    ask(
        tmp_path,
        Scripted(*offline[:2], Response(200, b"", 9)),
        lambda client: client.download_preview("/x", tmp_path / "x"),
    )
    assert not caplog.messages, "two quick failures are nobody's business"

    class Slow(Scripted):
        async def get(self, url: str, headers: Any, into: Path | None = None, limit: int | None = None) -> Response:
            await asyncio.sleep(60)
            return await super().get(url, headers, into, limit)

    ask(tmp_path, Slow(offline[0], Response(200, b"", 9)), lambda client: client.download_preview("/x", tmp_path / "x"))
    assert len(caplog.messages) == 1, "after a minute the first one is logged"


# HTTP


class Noting(BaseHTTPRequestHandler):
    """Records the requests and their secrets."""

    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * 200_000)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    Noting.seen = []
    with HTTPServer(("127.0.0.1", 0), Noting) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def got(url: str, into: Path | None = None, limit: int | None = None) -> Response:
    async def work() -> Response:
        async with Http(5) as http:
            return await http.get(url, {}, into)

    return asyncio.run(work())


def test_netrc_credentials_are_not_sent(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert got(f"http://{server}/x").length == 200_000
    assert Noting.seen == [("/x", None)]


def test_proxy_is_used_only_for_hosts_other_than_this_machine(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for proxy in (f"http://{server}", server):
        monkeypatch.setenv("http_proxy", proxy)
        got("http://freesound.invalid/x")
        assert Noting.seen.pop() == ("http://freesound.invalid/x", None)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    got(f"http://{server}/y")
    assert Noting.seen.pop() == ("/y", None)
    monkeypatch.setenv("no_proxy", "freesound.invalid")
    with pytest.raises(AgainError, match="ClientConnectorDNSError"):
        got("http://freesound.invalid/x")


def test_error_for_an_unwritable_file_names_it(server: str, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        got(f"http://{server}/x", full)
    assert not isinstance(error.value, AgainError)
    assert error.value.filename == str(full)


# disks that are full: no file may grow beyond so many bytes


def limited(limit: int, *arguments: object, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "data_tools", *map(str, arguments)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


def one_error(done: subprocess.CompletedProcess[str], *output: object) -> None:
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert all(str(part) in line for part in output), line


@pytest.mark.slow
def test_full_disk_during_a_crawl_is_reported_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with serving("--sounds", "1500", "--no-throttle") as settings:
        one_error(limited(400_000, "crawl", path, *UNLIMITED, settings=settings), path, "SQLite cannot use this file")
        files = len(stored(path))
        assert 0 < files < 1500
        assert limited(10**9, "crawl", path, *UNLIMITED, settings=settings).returncode == 0
    assert len(stored(path)) == 1500


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, scores of everything and an exclusion list."""
    folder = tmp_path_factory.mktemp("tables")
    command = f"crawl {folder / 'store'}"
    assert main(["sandbox", "--port", "0", "--sounds", "60", "--then", command]) == 0
    write_scores(folder / "scores.csv", everything(ANSWERS))
    write_list(folder / "never.csv", [1])
    return folder


ANSWERS: Answers = make_answers(60, 1, 0.0, 0)


def fetching(tables: Path, out: Path) -> list[object]:
    return ["fetch", tables / "store", "--scores", tables / "scores.csv", "--exclude", "none", "--out", out, *UNLIMITED]


@pytest.mark.slow
def test_full_disk_while_writing_audio_is_reported(tables: Path, tmp_path: Path) -> None:
    """The limit is first too low for the MP3, then high enough for it but too low for the FLAC."""
    out = tmp_path / "out"
    with serving("--sounds", "60") as settings:
        for limit, suffix in ((70_000, ".part"), (300_000, ".flac")):
            done = limited(limit, *fetching(tables, out), "--seconds", 8, 8, "--rate", 192_000, settings=settings)
            one_error(done, f"{out}/", f"{suffix}: File too large")
            assert not list(out.glob(".*.part*"))
            assert not list(out.glob("*.flac"))


def test_invalid_crawl_databases_are_refused(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(KEY, "k")
    out = tmp_path / "out"
    out.mkdir()
    (out / "fetched.sqlite").write_bytes(b"garbage" * 1000)
    stores = [(Path("/proc/store"), "unable to open database file")]
    cases = [(["crawl", path], path, why) for path, why in stores]
    cases.append((fetching(tables, out), out / "fetched.sqlite", "file is not a database"))
    for arguments, path, why in cases:
        assert main([str(argument) for argument in arguments]) == 1
        errors = capsys.readouterr().err
        assert errors.startswith(f"error: {path}: SQLite cannot use this file ({why})")
        assert len(errors.splitlines()) == 1


def test_fetched_file_that_was_changed_afterwards_is_fetched_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Folder(tmp_path / "out", 16_000, False)) as folder:
        for number in (1, 2, 3, 4):
            folder.flac_path(number).write_bytes(b"xxxxx")
            folder.add_file(StoredFile(number, hashlib.sha256(b"xxxxx").hexdigest(), 1.0))
        folder.flac_path(2).write_bytes(b"xx")
        folder.flac_path(3).unlink()
        folder.flac_path(3).mkdir()
        folder.flac_path(4).write_bytes(b"xxyxx")
    with closing(Folder(tmp_path / "out", 16_000, False)) as folder:
        assert list(folder.files) == [1]
        assert f"{folder.flac_path(4)} is damaged: its checksum has changed; it will be fetched again" in caplog.text


def test_fetch_refuses_a_selected_sound_with_an_empty_caption(tables: Path, tmp_path: Path, capsys: Any) -> None:
    rows = everything(ANSWERS)
    position = expected_numbers(ANSWERS, [])[0][3]
    rows[position] = (*rows[position][:2], " ")
    rows[-1] = (*rows[-1][:2], "")  # its score is too low for it to matter
    scores = write_scores(tmp_path / "scores.csv", rows)
    arguments = ["fetch", tables / "store", "--scores", scores, "--exclude", "none", "--out", tmp_path / "out"]
    assert main([str(argument) for argument in arguments]) == 1
    output = f"scores.csv, line {position + 2}: the text of id {rows[position][0]}, its caption, is empty"
    assert output in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Ctrl-C, and a look at a store in use


def test_interrupt_during_import_prints_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", interrupted)
    assert main(["crawl", "x"]) == 130
    assert capsys.readouterr().err == "interrupted; run the same command to continue where it stopped\n"
    assert main(["--help"]) == 0
    assert main(["nonsense"]) == 2


def started(settings: dict[str, str], *arguments: object) -> subprocess.Popen[str]:
    """Start a process that can be interrupted, even if the tests run in the background of a shell, which ignores SIGINT
    for its children.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "data_tools", *map(str, arguments)],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted; run the same command to continue where it stopped"
    assert "Traceback" not in errors


def sounds_in(path: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT COUNT(*) FROM sounds").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
def test_verbs_status_and_export_read_a_running_crawl_which_resumes_after_an_interrupt(
    tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "store"
    with serving("--sounds", "2000", "--no-throttle") as settings:
        process = started(settings, "crawl", path, "--per-minute", "6")
        until(process, lambda: sounds_in(path) > 600)
        assert main(["status", str(path)]) == 0
        assert "windows are left to read" in capsys.readouterr().out
        least = sounds_in(path)
        assert main(["export", str(path), "--out", str(tmp_path / "sounds.csv")]) == 0
        assert least <= len(pandas.read_csv(tmp_path / "sounds.csv")) <= sounds_in(path)
        interrupt(process)
        before = stored(path)
        assert 600 < len(before) < 2000
        process = started(settings, "crawl", path, *UNLIMITED)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert len(stored(path)) == 2000
    assert {child.name for child in tmp_path.iterdir()} == {"store", "store.lock", "sounds.csv"}


def test_reading_a_crawl_database_does_not_change_it(tables: Path, tmp_path: Path, capsys: Any) -> None:
    """Even if it is not in the journal mode of crawl, and while another process writes."""
    path = tmp_path / "store"
    with closing(sqlite3.connect(tables / "store")) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
    before = path.read_bytes()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert main(["status", str(path)]) == 0
        assert main(["export", str(path), "--out", str(tmp_path / "sounds.csv")]) == 0
        other.execute("ROLLBACK")
    assert path.read_bytes() == before
    assert {child.name for child in tmp_path.iterdir()} == {"store", "sounds.csv"}
    with closing(Store(path, read_only=True)) as store, pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.set_facts(until=0)


def test_interrupt_ends_all_running_requests(tmp_path: Path) -> None:
    """One request is answered, the others never: the crawl ends at once, before their timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {"FREESOUND_API": f"http://127.0.0.1:{silent.getsockname()[1]}", KEY: "k"}
        process = started(settings, "crawl", tmp_path / "store", "--timeout", "300")
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            interrupt(process)


def test_refused_key_ends_all_running_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_tools.freesound.windows.LARGEST", 300)
    answered: list[int] = []

    def refused(number: int, answer: Response) -> Response:
        answered.append(number)
        return Response(401, b"{}", 0) if number == 6 else answer

    transport = Direct(
        make_answers(3000, 7, 0.0, 0), tamper=refused, latency=lambda: 0.5 if len(transport.urls) < 7 else 1e5
    )
    with pytest.raises(DataError, match="refuses the key"):
        read_all(tmp_path / "store", transport)
    assert len(transport.urls) > 6
    assert max(answered) == 6


@pytest.mark.slow
def test_interrupted_fetch_resumes(tables: Path, tmp_path: Path) -> None:
    out = tables / "out"
    with serving("--sounds", "60") as settings:
        process = started(settings, *fetching(tables, out), "--rate", 16_000, "--workers", 2)
        until(process, lambda: len(list(out.glob("*.flac"))) > 3)
        interrupt(process)
        there = list(out.glob("*.flac"))
        assert 3 < len(there) < len(expected_numbers(ANSWERS, [])[0])
        for path in there:
            soundfile.read(path)
        assert not list(out.glob(".*.part*"))
        assert not (out / "manifest.jsonl").exists()
        done = fetch(tables / "store", out, settings, *FAST, "--rate", "16000")
        assert done.returncode == 0, done.stderr
    assert_folder(out, ANSWERS, [1], 16_000)
