"""The API key: its sources, its uses, and that it appears nowhere else."""

import asyncio
import csv
import json
import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp import web
from pydantic import SecretStr
from sandboxes import SITE, UNLIMITED, Direct, LoopClock, direct_client, run_virtually, serving, write_scores

from data_tools.__main__ import main
from data_tools.cli import version
from data_tools.errors import DataError
from data_tools.freesound.access import KEY, TOKEN, Token, read_key, read_token
from data_tools.freesound.client import AgainError, Client, LostError, Response
from data_tools.freesound.http import Http
from data_tools.freesound.quota import Quota
from data_tools.freesound.selection import PREFERENCES
from data_tools.freesound.store import Store
from data_tools.freesound.windows import Window
from data_tools.sandbox.corpus import Catalogue
from data_tools.sandbox.verb import make_answers

MARK = "kEy-THAT-must-not-be-seen"


def test_api_key_is_read_from_a_private_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(DataError, match=r"no API key.*FREESOUND_API_KEY.*--key-file"):
        read_key(None)
    monkeypatch.setenv(KEY, f" {MARK}\n")
    assert read_key(None).get_secret_value() == MARK
    file = tmp_path / "key"
    with pytest.raises(DataError, match="key: no such file"):
        read_key(file)
    file.write_text("from-file\n")
    for mode in (0o644, 0o640, 0o604, 0o601):
        file.chmod(mode)
        with pytest.raises(DataError, match="other users may read this secret file; run `chmod 600"):
            read_key(file)
    file.chmod(0o600)
    assert read_key(file).get_secret_value() == "from-file"
    monkeypatch.delenv(TOKEN, raising=False)
    assert read_token(None) is None


@pytest.mark.parametrize("value", [b"", b"two words", b"line\nbreak", b"\xff\xfe", "schlüssel".encode(), b"a\x00b"])
def test_invalid_api_key_is_refused_without_printing_it(tmp_path: Path, value: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(value)
    file.chmod(0o600)
    with pytest.raises(DataError, match="is not a key or token") as refusal:
        read_key(file)
    assert not value or value.decode("utf-8", "replace") not in str(refusal.value)


def test_secret_is_masked_when_settings_are_printed() -> None:
    secret = SecretStr(MARK)
    for text in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert MARK not in text


def echo(number: int, answer: Response) -> Response:
    return Response(401, f'{{"detail": "the token {MARK} is not known"}}'.encode(), 0)


def test_api_key_is_removed_from_error_messages(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)

    class Quoting(Direct):
        async def get(self, url: str, headers: Any, into: Path | None = None, limit: int | None = None) -> Response:
            assert headers["Authorization"] == f"Token {MARK}"
            return echo(1, Response(200, b"", 0))

    async def work() -> None:
        clock = LoopClock()
        quota = Quota(store.database, 60, 2000, clock)
        client = Client(SITE, SecretStr(MARK), quota, Quoting(make_answers(1, 1, 0.0, 0)), clock)
        await client.search(Window(0, 1))

    with pytest.raises(DataError, match=r"refuses the key \(the token \.\.\. is not known\)"):
        run_virtually(work())
    store.close()


class Recording:
    """A transport that follows a map of redirects and notes which hosts saw the key."""

    def __init__(self, moved: dict[str, str]) -> None:
        self.moved, self.seen = moved, list[tuple[str, bool]]()

    async def get(self, url: str, headers: Any, into: Path | None = None, limit: int | None = None) -> Response:
        self.seen.append((url, "Authorization" in headers))
        if url in self.moved:
            return Response(302, b"", 0, self.moved[url])
        return Response(200, b"", 7)


def client_of(site: str, store: Store, transport: Recording) -> Client:
    clock = LoopClock()
    return Client(
        site, SecretStr(MARK), Quota(store.database, 60, 2000, clock), transport, clock, Token(SecretStr(MARK))
    )


def preview(tmp_path: Path, site: str, url: str, moved: dict[str, str]) -> tuple[int, list[tuple[str, bool]]]:
    store = Store(tmp_path / "store", create=True)
    transport = Recording(moved)

    async def work() -> int:
        clock = LoopClock()
        client = Client(site, SecretStr(MARK), Quota(store.database, 60, 2000, clock), transport, clock)
        return await client.download_preview(url, tmp_path / "part")

    try:
        return run_virtually(work())[0], transport.seen
    finally:
        store.close()


def test_previews_are_fetched_without_the_api_key_and_only_from_freesound_hosts(tmp_path: Path) -> None:
    site = "https://freesound.org"
    for url, expected in (
        ("https://freesound.org/data/1.mp3", True),
        ("https://cdn.freesound.org/1.mp3", True),
        ("http://cdn.freesound.org/1.mp3", False),
        ("https://freesound.org.example.com/1.mp3", False),
        ("https://evilfreesound.org/1.mp3", False),
    ):
        if expected:
            assert preview(tmp_path, site, url, {}) == (7, [(url, False)])
            continue
        with pytest.raises(LostError, match="does not belong to"):
            preview(tmp_path, site, url, {})
    assert preview(tmp_path, site, "/data/1.mp3", {})[1] == [("https://freesound.org/data/1.mp3", False)]
    moved = {f"{site}/a": "https://cdn.freesound.org/b", "https://cdn.freesound.org/b": "/c"}
    seen = preview(tmp_path, site, "/a", moved)[1]
    assert seen == [
        (f"{site}/a", False),
        ("https://cdn.freesound.org/b", False),
        ("https://cdn.freesound.org/c", False),
    ]


@pytest.mark.parametrize(
    "url",
    ["https://other.example/b", "http://freesound.org/b", "https://127.0.0.1/b", "http://169.254.169.254/latest",
     "https://[::1]/b", "https://10.1.2.3/b", "https://localhost/b", "file:///etc/passwd", "ftp://freesound.org/b",
     "//other.example/b", "https://freesound.org.example.com/1.mp3", "https://x:y@other.example/b",
     "https://[::1/b", "javascript:1"],
)  # fmt: skip
def test_preview_redirect_to_another_site_is_not_followed(tmp_path: Path, url: str) -> None:
    site = "https://freesound.org"
    transport = Recording({f"{site}/a": url})
    pattern = f"does not belong to {site}$|is not valid$"
    with closing(Store(tmp_path / "store", create=True)) as store, pytest.raises(LostError, match=pattern):
        run_virtually(client_of(site, store, transport).download_preview("/a", tmp_path / "part"))
    assert transport.seen == [(f"{site}/a", False)]


def test_redirected_original_sound_is_fetched_without_the_access_token(tmp_path: Path) -> None:
    site = "https://freesound.org"
    at = f"{site}/apiv2/sounds/5/download/"
    for url, asked in (
        ("https://cdn.freesound.org/b", True),
        ("https://files.example/b", False),
        ("https://8.8.8.8/b", False),
        ("http://cdn.freesound.org/b", False),
        ("https://127.0.0.1/b", False),
        ("https://192.168.1.1/b", False),
        ("https://[fe80::1]/b", False),
        ("file:///etc/passwd", False),
    ):
        transport = Recording({at: url})
        with closing(Store(tmp_path / "store", create=True)) as store:
            work = client_of(site, store, transport).download_original(5, tmp_path / "part")
            if asked:
                assert run_virtually(work)[0] == 7
                assert transport.seen == [(at, True), (url, False)]
                continue
            with pytest.raises(LostError, match="does not belong to"):
                run_virtually(work)
            assert transport.seen == [(at, True)]


@pytest.mark.parametrize("good", [pytest.param(True, marks=pytest.mark.slow), False])
def test_expired_token_is_renewed(good: bool, tmp_path: Path) -> None:
    file, store = tmp_path / "token.json", tmp_path / "store"
    refresh = "sandbox-refresh" if good else "used-up"
    file.write_text(json.dumps({"access_token": "ended", "refresh_token": refresh, "client_id": "me", "note": "mine"}))
    file.chmod(0o600)
    out = tmp_path / "out"
    with serving("--sounds", "30", "--no-throttle") as settings:
        del settings["FREESOUND_ACCESS_TOKEN"]
        with patch.dict(os.environ, settings):
            assert main(["crawl", str(store), *UNLIMITED]) == 0
            corpus = Catalogue(30, 1)
            numbers = [n for n in range(30) if not corpus.is_broken(n) and corpus.sound(n, "")["duration"] == 8][:3]
            rows = [(corpus.id(number), 0.9, "x") for number in numbers]
            arguments = [
                "--scores",
                str(write_scores(tmp_path / "s.csv", rows)),
                "--exclude",
                "none",
                "--out",
                str(out),
            ]
            arguments += ["--originals", "--token-file", str(file), "--ai-preferences", *PREFERENCES, *UNLIMITED]
            assert main(["fetch", str(store), *arguments]) == (0 if good else 1)
    assert len(list(out.glob("*.flac"))) == (3 if good else 0)
    content = json.loads(file.read_text())
    if good:
        assert content == {
            "access_token": "sandbox-token-2",
            "refresh_token": "sandbox-refresh-2",
            "client_id": "me",
            "note": "mine",
        }
        with (out / "ATTRIBUTION.csv").open() as attribution:
            changes = {row["changes"] for row in csv.DictReader(attribution)}
        assert changes == {"original file mixed down to mono, at 44100 Hz, as FLAC of 16 bit"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text", ['{"access_token": "a"}', '{"access_token": "a", "refresh_token": "", "client_id": "c"}']
)
def test_incomplete_token_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token.json"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(DataError, match=r"token.json: has no valid refresh_token"):
        read_token(file)
    file.chmod(0o644)
    with pytest.raises(DataError, match="other users may read this secret file"):
        read_token(file)


def test_user_agent_has_version_and_contact() -> None:
    agents = []

    async def answer(request: web.Request) -> web.Response:
        agents.append(request.headers["User-Agent"])
        return web.Response()

    async def work() -> None:
        app = web.Application()
        app.router.add_get("/", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        site = f"http://127.0.0.1:{runner.addresses[0][1]}"
        for contact in ("", "me@example.org"):
            async with Http(5, contact) as http:
                await http.get(site, {})
        await runner.cleanup()

    asyncio.run(work())
    assert agents == [f"lbar-kit/{version()}", f"lbar-kit/{version()} (me@example.org)"]


def test_contact_that_is_invalid_in_an_http_header_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch.dict(os.environ, {KEY: "k"}):
        assert main(["crawl", str(tmp_path / "s.sqlite"), "--contact", "me\nX: y"]) == 1
    assert "the contact 'me\\nX: y' is invalid; use at most 200" in capsys.readouterr().err


def test_preview_that_cannot_be_fetched_in_six_attempts_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    async def get(self: Recording, url: str, *rest: Any) -> Response:
        asked.append(url)
        raise AgainError("no connection, or a broken one: ConnectionResetError")

    with pytest.raises(LostError, match="the server answered 302"):
        preview(tmp_path, SITE, "/a", {f"{SITE}/a": "/a"})
    monkeypatch.setattr(Recording, "get", get)
    with pytest.raises(LostError, match=r"a broken one: ConnectionResetError \(6 attempts\)"):
        preview(tmp_path, SITE, "/b", {})
    assert asked == [f"{SITE}/b"] * 6


def test_api_key_is_not_in_the_url_of_a_search(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)
    transport = Direct(make_answers(10, 1, 0.0, 0))

    async def work() -> None:
        await direct_client(store, transport).search(Window(0, 2**31), "duration:[1 TO 2]")

    run_virtually(work())
    store.close()
    assert "sandbox-key" not in transport.urls[0]
    assert "+%28duration%3A%5B1+TO+2%5D%29" in transport.urls[0]


@pytest.mark.slow
def test_api_key_appears_in_no_file_and_no_output_and_no_process_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks files, output and process arguments of crawls that succeed, are refused, and fail."""
    out = b""
    with serving("--sounds", "300", "--fault", "500=0.3", "--no-throttle") as settings:
        file = tmp_path / "private" / "key"
        file.parent.mkdir()
        file.write_text(settings.pop(KEY))
        file.chmod(0o600)
        address = settings["FREESOUND_API"]
        runs = [
            (["--key-file", str(file), "--speed", "1000"], {}),
            (["--speed", "1000"], {KEY: MARK}),
            (["--site", address.replace(address[-5:], "9"), "--speed", "1e7", "--dry-run"], {KEY: MARK}),
        ]
        for number, (arguments, variables) in enumerate(runs):
            command = [sys.executable, "-m", "data_tools", "crawl", str(tmp_path / f"store{number}"), *arguments]
            environment = {name: value for name, value in os.environ.items() if name != KEY} | settings | variables
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            while not (seen := Path(f"/proc/{process.pid}/cmdline").read_bytes()):
                assert process.poll() is None
            assert b"data_tools\0crawl" in seen
            out += seen + process.communicate(timeout=120)[0]
            assert process.returncode == (0 if number == 0 else 1), out.decode()
        secret = file.read_text().encode()
    file.unlink()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "store0" for path in files)
    for text in (out, caplog.text.encode(), *(path.read_bytes() for path in files)):
        assert secret not in text
        assert MARK.encode() not in text


@pytest.mark.parametrize(
    "site",
    [
        "https://jo:SECRET@freesound.org/apiv2",
        "https://SECRET@freesound.org/apiv2",
        "https://:SECRET@freesound.org/apiv2",
        "https://freesound.org/apiv2?token=SECRET",
        "https://freesound.org/apiv2#SECRET",
        "http://jo:SECRET@freesound.org/apiv2",
        "https://jo:SECRET@freesound.org:port/apiv2",
        "jo:SECRET@freesound.org",
        "ftp://jo:SEC@SECRET@host name/",
    ],
)
def test_secrets_in_the_api_address_are_not_printed(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FREESOUND_API", site)
    monkeypatch.setenv("FREESOUND_API_KEY", "k" * 40)
    assert main(["crawl", str(tmp_path / "s.sqlite"), "--dry-run"]) == 1
    error = capsys.readouterr().err
    assert "address" in error
    assert "SEC" not in error
