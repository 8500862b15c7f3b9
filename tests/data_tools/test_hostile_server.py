"""A server that means harm: every answer ends, in bounded bytes and time, and costs one sound at most."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from sandboxes import LoopClock

from data_tools.errors import DataError
from data_tools.freesound import http
from data_tools.freesound.client import Client, LostError
from data_tools.freesound.credentials import Secret, Token
from data_tools.freesound.http import Http, PublicResolver
from data_tools.freesound.quota import Quota
from data_tools.freesound.store import Store
from data_tools.freesound.transport import BrokenError, Response, UnfitError
from data_tools.freesound.windows import Window

LIMIT = 100_000
KIND = r"^[A-Za-z]+$"  # what a broken answer is told by: the kind of its error
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
    "endless body": (endless, UnfitError, "the answer has more than 100000 bytes"),
    "endless chunks": (endless_chunks, UnfitError, "the answer has more than 100000 bytes"),
    "announced too long": (
        once(head("Content-Length: 4800000000")),
        UnfitError,
        "4800000000 bytes; at most 100000 are",
    ),
    "packed zeros": (
        once(head("Content-Encoding: gzip", f"Content-Length: {len(ZEROS)}") + ZEROS),
        UnfitError,
        "the answer has more than 100000 bytes",
    ),
    "a byte now and then": (dripping, BrokenError, "Timeout"),
    "a head that never ends": (dripping_head, BrokenError, KIND),
    "less than announced": (once(head("Content-Length: 1000") + b"x"), BrokenError, "ClientPayloadError"),
    "broken packing": (once(head("Content-Encoding: gzip", "Content-Length: 4") + b"xxxx"), BrokenError, KIND),
    "no HTTP": (once(b"\xff\x00 hello\r\n\r\n"), BrokenError, KIND),
    "nothing": (once(b""), BrokenError, "ServerDisconnectedError"),
    "a long head": (once(head("X: " + "y" * 200_000, "Content-Length: 0")), BrokenError, KIND),
    "many heads": (once(head(*(f"X{n}: y" for n in range(100_000)), "Content-Length: 0")), BrokenError, KIND),
    "a length that is none": (once(head("Content-Length: -5") + b"x"), BrokenError, KIND),
    "a chunk of no size": (once(head("Transfer-Encoding: chunked") + b"zz\r\nx\r\n0\r\n\r\n"), BrokenError, KIND),
}


@asynccontextmanager
async def behaving(behave: Behave) -> AsyncIterator[str]:
    """A server on this machine that takes a request and then behaves so; its address."""

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
        async with behaving(behave) as site, Http(site, 0.3) as transport:
            return await transport.get(f"{site}/x", {}, into, limit)

    return asyncio.run(asyncio.wait_for(work(), 30))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test reaches: a search of 100,000 bytes, and 1.5 s for an answer."""
    monkeypatch.setattr(http, "SEARCH_BYTES", LIMIT)
    monkeypatch.setattr(http, "TOTAL", 5)
    monkeypatch.setattr(http, "SLOWEST", 1e9)


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "search"])
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_every_answer_ends(tmp_path: Path, name: str, is_file: bool) -> None:
    behave, error, words = BEHAVIOURS[name]
    into = tmp_path / "part" if is_file else None
    with pytest.raises(error, match=words):
        got(behave, into)
    assert not is_file or not into.exists() or into.stat().st_size <= LIMIT  # type: ignore[union-attr]


def test_what_is_within_its_bounds_comes(tmp_path: Path) -> None:
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


def test_a_file_has_time_for_its_size(tmp_path: Path) -> None:
    assert Http._time(_Timed(60), 10**9, tmp_path).total == 5 * 60 + 1  # type: ignore[arg-type]
    assert Http._time(_Timed(60), 10**9, None).total == 5 * 60  # type: ignore[arg-type]


def test_no_stated_size_lifts_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SLOWEST", 50_000)
    for most, timeout in ((2**53, 60), (10**9, 86_400)):
        assert Http._time(_Timed(timeout), most, tmp_path).total == 86_400  # type: ignore[arg-type]
    monkeypatch.setattr(http, "FILE_BYTES", LIMIT)
    for limit in (2**53, None):
        with pytest.raises(UnfitError, match="the answer has more than 100000 bytes"):
            got(endless, tmp_path / "part", limit)


class _Timed:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("localhost", "^the name localhost leads to an address that is not public$"),
        ("0x7f000001", "^the name 0x7f000001 leads to an address that is not public$"),
        ("a" * 64 + ".freesound.org", "is not a valid address$"),
        ("a:99999", "^'http://a:99999:9/x' is not a valid address$"),
        ("a..b", "is not a valid address$"),
        ("2130706433", "is not a valid address$"),
        *(
            (host, "^[0-9a-f.:]+ is not a public address$")
            for host in (
                *("0.0.0.0", "127.0.0.1", "10.0.0.1", "169.254.169.254", "224.0.0.1", "１２７.0.0.1", "[::]", "[::1]"),
                *("[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::1]", "[2002:7f00:1::]", "[ff0e::1]"),
            )
        ),
    ],
)
def test_a_host_that_leads_to_this_machine_or_is_not_valid_is_refused(tmp_path: Path, host: str, words: str) -> None:
    async def work() -> Response:
        async with Http("https://freesound.org", 1) as transport:
            return await transport.get(f"http://{host}:9/x", {}, tmp_path / "part")

    with pytest.raises(UnfitError, match=words):
        asyncio.run(work())


@pytest.mark.parametrize(
    ("address", "fine"),
    [("127.0.0.1", False), ("10.0.0.1", False), ("169.254.169.254", False), ("192.168.0.9", False),
     ("100.64.0.1", False), ("::1", False), ("fe80::1%eth0", False), ("8.8.8.8", True), ("2606:4700::1111", True),
     ("224.0.0.1", False), ("255.255.255.255", False), ("240.0.0.1", False), ("ff0e::1", False),
     ("64:ff9b::7f00:1", False), ("64:ff9b::808:808", True), ("64:ff9b:1::808:808", False),
     ("::ffff:10.0.0.1", False), ("::ffff:8.8.8.8", True), ("::127.0.0.1", False), ("::", False),
     ("2002:a00:1::", False), ("2002:808:808::", True)],
)  # fmt: skip
def test_only_the_site_may_have_a_private_address(monkeypatch: pytest.MonkeyPatch, address: str, fine: bool) -> None:
    async def found(*_: Any) -> list[dict[str, Any]]:
        return [{"host": "8.8.4.4"}, {"host": address}]

    monkeypatch.setattr(http.aiohttp.ThreadedResolver, "resolve", found)

    async def resolve(host: str) -> Any:
        return await PublicResolver("mirror.intern").resolve(host, 443, socket.AF_INET)

    assert asyncio.run(resolve("mirror.intern"))
    if fine:
        assert asyncio.run(resolve("cdn.freesound.org"))
    else:
        with pytest.raises(UnfitError, match=r"cdn.freesound.org leads to an address that is not public"):
            asyncio.run(resolve("cdn.freesound.org"))


def test_one_sound_is_lost_and_a_search_ends_in_a_sentence(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        async with behaving(endless) as site, Http(site, 0.3) as transport:
            clock = LoopClock()
            client = Client(
                site, Secret("k"), Quota(store.database, 60, 2000, clock), transport, clock, Token(Secret("t"))
            )
            with pytest.raises(LostError, match="the answer has more than 500 bytes"):
                await client.preview("/x.mp3", tmp_path / "part", 500)
            with pytest.raises(LostError, match="the answer has more than 700 bytes"):
                await client.original(7, tmp_path / "part", 700)
            with pytest.raises(DataError, match=f"the answer has more than {LIMIT} bytes; check the address"):
                await client.search(Window(0, 1))

    with closing(Store(tmp_path / "store", create=True)) as store:
        asyncio.run(asyncio.wait_for(work(store), 30))
