"""A malicious server: every answer ends, with limited bytes and time, and loses at most one sound."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from pydantic import SecretStr
from sandboxes import LoopClock

from data_tools.errors import DataError
from data_tools.freesound import http
from data_tools.freesound.access import Token
from data_tools.freesound.client import AgainError, Client, LostError, Response, resolve_url
from data_tools.freesound.http import Http, time_limits
from data_tools.freesound.quota import Quota
from data_tools.freesound.store import Store
from data_tools.freesound.windows import Window

LIMIT = 100_000
KIND = r": [A-Za-z]+$"  # the kind of the error of a broken answer
Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *lines, "")).encode()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(head("Connection: close"))
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def endless_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(head("Transfer-Encoding: chunked"))
    while True:
        writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        await writer.drain()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(head("Connection: close"))
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def dripping_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    await dripping(reader, writer)


def once(data: bytes) -> Behave:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return behave


ZEROS = gzip.compress(bytes(50_000_000))
BEHAVIOURS: dict[str, tuple[Behave, type[Exception], str]] = {
    "endless body": (endless, LostError, "the server's answer has more than the maximum of 100000 bytes"),
    "endless chunks": (endless_chunks, LostError, "the server's answer has more than the maximum of 100000 bytes"),
    "announced too long": (
        once(head("Content-Length: 4800000000")),
        LostError,
        "4800000000 bytes, more than the maximum of 100000",
    ),
    "packed zeros": (
        once(head("Content-Encoding: gzip", f"Content-Length: {len(ZEROS)}") + ZEROS),
        LostError,
        "the server's answer has more than the maximum of 100000 bytes",
    ),
    "a byte now and then": (dripping, AgainError, "Timeout"),
    "a head that never ends": (dripping_head, AgainError, KIND),
    "less than announced": (once(head("Content-Length: 1000") + b"x"), AgainError, "ClientPayloadError"),
    "broken packing": (once(head("Content-Encoding: gzip", "Content-Length: 4") + b"xxxx"), AgainError, KIND),
    "no HTTP": (once(b"\xff\x00 hello\r\n\r\n"), AgainError, KIND),
    "nothing": (once(b""), AgainError, "ServerDisconnectedError"),
    "a long head": (once(head("X: " + "y" * 200_000, "Content-Length: 0")), AgainError, KIND),
    "many heads": (once(head(*(f"X{n}: y" for n in range(100_000)), "Content-Length: 0")), AgainError, KIND),
    "a negative length": (once(head("Content-Length: -5") + b"x"), AgainError, KIND),
    "a chunk of no size": (once(head("Transfer-Encoding: chunked") + b"zz\r\nx\r\n0\r\n\r\n"), AgainError, KIND),
}


@asynccontextmanager
async def behaving(behave: Behave) -> AsyncIterator[str]:
    """Run a local server that accepts a request and then behaves in this way; yields its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def got(behave: Behave, into: Path | None, limit: int | None = LIMIT) -> Response:
    async def work() -> Response:
        async with behaving(behave) as site, Http(0.3) as transport:
            return await transport.get(f"{site}/x", {}, into, limit)

    return asyncio.run(asyncio.wait_for(work(), 30))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set limits that a test reaches: a search of 100,000 bytes, and 1.5 s for an answer."""
    monkeypatch.setattr(http, "SEARCH_BYTES", LIMIT)
    monkeypatch.setattr(http, "TOTAL", 5)
    monkeypatch.setattr(http, "SLOWEST", 1e9)


WAITED = ("a byte now and then", "a head that never ends")  # for a second and a half


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "search"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in WAITED else []) for name in BEHAVIOURS]
)
def test_every_malicious_server_response_ends_with_an_error(tmp_path: Path, name: str, is_file: bool) -> None:
    behave, error, words = BEHAVIOURS[name]
    into = tmp_path / "part" if is_file else None
    with pytest.raises(error, match=words):
        got(behave, into)
    assert not is_file or not into.exists() or into.stat().st_size <= LIMIT  # type: ignore[union-attr]


def test_responses_at_the_size_limits_are_read(tmp_path: Path) -> None:
    body = bytes(LIMIT)
    packed = gzip.compress(body)
    for data in (
        head(f"Content-Length: {LIMIT}") + body,
        head("Content-Encoding: gzip", f"Content-Length: {len(packed)}") + packed,
        head("Connection: close") + body,
    ):
        assert got(once(data), tmp_path / "part").length == LIMIT
        assert (tmp_path / "part").read_bytes() == body
        assert got(once(data), None).body == body


def test_time_limit_of_a_download_grows_with_the_file_size() -> None:
    assert time_limits(60, 10**9).total == 5 * 60 + 1
    assert time_limits(60, 0).total == 5 * 60


def test_file_size_stated_in_metadata_cannot_raise_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SLOWEST", 50_000)
    for most, timeout in ((2**53, 60), (10**9, 86_400)):
        assert time_limits(timeout, most).total == 86_400
    monkeypatch.setattr(http, "FILE_BYTES", LIMIT)
    for limit in (2**53, None):
        with pytest.raises(LostError, match="the server's answer has more than the maximum of 100000 bytes"):
            got(endless, tmp_path / "part", limit)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("a" * 64 + ".freesound.org", "is not valid$"),
        ("a..freesound.org", "is not valid$"),
        *(
            (host, "does not belong to https://freesound.org$")
            for host in (
                *("localhost", "0x7f000001", "2130706433", "a:99999", "a..b", "8.8.8.8", "evilfreesound.org"),
                *("0.0.0.0", "127.0.0.1", "10.0.0.1", "169.254.169.254", "224.0.0.1", "１２７.0.0.1", "[::]", "[::1]"),
                *("[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::1]", "[2002:7f00:1::]", "[ff0e::1]"),
            )
        ),
    ],
)
def test_previews_from_other_sites_or_invalid_hosts_are_refused(tmp_path: Path, host: str, words: str) -> None:
    async def work(store: Store) -> None:
        async with Http(1) as transport:
            clock = LoopClock()
            quota = Quota(store.database, 60, 2000, clock)
            client = Client("https://freesound.org", SecretStr("k"), quota, transport, clock)
            await client.download_preview(f"https://{host}/x", tmp_path / "part")

    with closing(Store(tmp_path / "store", create=True)) as store, pytest.raises(LostError, match=words):
        asyncio.run(work(store))


@pytest.mark.parametrize(
    ("site", "url", "is_own"),
    [
        ("https://freesound.org", "https://freesound.org/x", True),
        ("https://freesound.org", "https://cdn.freesound.org/x", True),
        ("https://freesound.org", "https://CDN.Freesound.org:443/x", True),
        ("https://freesound.org", "http://cdn.freesound.org/x", False),
        ("https://freesound.org", "https://freesound.org@127.0.0.1/x", False),
        ("https://freesound.org", "https://freesound.org\\@127.0.0.1/x", False),
        ("https://mirror.intern", "https://cdn.mirror.intern/x", True),
        ("https://mirror.intern", "https://freesound.org/x", False),
        ("http://127.0.0.1:8025", "http://localhost:9000/x", True),
        ("http://127.0.0.1:8025", "https://127.0.0.1:9000/x", False),
        ("http://127.0.0.1:8025", "http://10.0.0.1/x", False),
    ],
)
def test_allowed_hosts_are_the_site_and_its_subdomains(site: str, url: str, is_own: bool) -> None:
    if is_own:
        assert resolve_url(site, site, url) == url
    else:
        with pytest.raises(LostError, match="does not belong to"):
            resolve_url(site, site, url)


def test_oversized_answer_skips_a_sound_but_ends_a_search_with_an_error(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        async with behaving(endless) as site, Http(0.3) as transport:
            clock = LoopClock()
            client = Client(
                site, SecretStr("k"), Quota(store.database, 60, 2000, clock), transport, clock, Token(SecretStr("t"))
            )
            with pytest.raises(LostError, match="the server's answer has more than the maximum of 500 bytes"):
                await client.download_preview("/x.mp3", tmp_path / "part", 500)
            with pytest.raises(LostError, match="the server's answer has more than the maximum of 700 bytes"):
                await client.download_original(7, tmp_path / "part", 700)
            with pytest.raises(
                DataError, match=f"the server's answer has more than the maximum of {LIMIT} bytes; check the address"
            ):
                await client.search(Window(0, 1))

    with closing(Store(tmp_path / "store", create=True)) as store:
        asyncio.run(asyncio.wait_for(work(store), 30))
