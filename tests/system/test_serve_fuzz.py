"""Ten thousand invalid requests: the server refuses them with error messages and keeps running."""

import random
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from served import ask, serving

pytestmark = pytest.mark.slow

REQUESTS = 10_000
CLIENTS = 32
SILENCE = 2  # seconds
PATHS = ["/", "/api/search?query=tone", "/api/about", "/audio/0", "/audio/23", "/audio/999", "/nothing"]
HEADERS = b"Host: localhost\r\nConnection: close\r\n"


def noise(rng: random.Random, most: int) -> bytes:
    return rng.randbytes(rng.randint(1, most))


def line_noise(rng: random.Random, most: int) -> bytes:
    """Bytes that end no line."""
    return noise(rng, most).translate(bytes.maketrans(b"\r\n", b"__"))


def broken_line(rng: random.Random) -> bytes:
    line = rng.choice(
        [
            b"GET",
            b"GET /",
            b"GET / HTTP/9.9",
            b"GET / HTTP/1.1 extra",
            b" GET / HTTP/1.1",
            b"GET  /  HTTP/1.1",
            b"get / http/1.1",
            b"GET / HTTQ/1.1",
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"PRI * HTTP/2.0",
            b"GET * HTTP/1.1",
            b"GET \\..\\ HTTP/1.1",
            b"GET http://[::1 HTTP/1.1",
            b"GET http://other.example:99999/ HTTP/1.1",
            b"CONNECT localhost:80 HTTP/1.1",
            b"OPTIONS * HTTP/1.1",
            line_noise(rng, 80),
            b"GET /" + line_noise(rng, 40) + b" HTTP/1.1",
            line_noise(rng, 12) + b" / HTTP/1.1",
        ]
    )
    return line + rng.choice([b"\r\n", b"\n", b"\r"]) + HEADERS + b"\r\n"


def bad_header(rng: random.Random) -> bytes:
    header = rng.choice(
        [
            b"X: " + b"x" * rng.randint(8_000, 60_000),
            b"".join(b"X-%d: y\r\n" % n for n in range(rng.randint(100, 1_000)))[:-2],
            b"no colon",
            b": no name",
            b" folded",
            b"X\x00: y",
            b"X : y",
            b"Content-Length: -1",
            b"Content-Length: x",
            b"Content-Length: 5\r\nContent-Length: 6",
            b"Content-Length: " + b"9" * rng.randint(1, 50),
            b"Transfer-Encoding: chunked, nonsense",
            b"Transfer-Encoding: chunked\r\nContent-Length: 3",
            b"Expect: 200-maybe",
            b"Expect: 100-continue\r\nContent-Length: 9",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x",
            b"Upgrade: h2c\r\nConnection: Upgrade",
            b"Host: " + line_noise(rng, 30),
            b"Host: localhost, localhost",
            b"Cookie: " + line_noise(rng, 200),
            b"Accept-Encoding: gzip;q=" + line_noise(rng, 10),
            line_noise(rng, 100),
        ]
    )
    return f"GET {rng.choice(PATHS)} HTTP/1.1\r\n".encode() + header + b"\r\n" + HEADERS + b"\r\n" + noise(rng, 20)


def bad_target(rng: random.Random) -> bytes:
    escapes = [
        "%",
        "%zz",
        "%0",
        "%ff%fe",
        "%c0%af",
        "%ed%a0%80",
        "%00",
        "%0d%0aX:y",
        "%u0041",
        "\\x",
        "%2e%2e%2f",
        "..;/",
    ]
    inside = "".join(
        rng.choice([*escapes, "a", "/", "&", "=", "?", "#", ";", "[", "]"]) for _ in range(rng.randint(1, 30))
    )
    start = rng.choice(
        ["/", "/audio/", "/api/search?query=", "/api/search?query=a&count=", "/api/search?", "//", "/audio/../"]
    )
    raw = rng.choice(
        [b"", b"\xff", b"\xc3", b"\xed\xa0\x80", "ä低".encode(), "ä".encode("latin-1"), line_noise(rng, 6)]
    )
    return b"GET " + start.encode() + inside.encode() + raw + b" HTTP/1.1\r\n" + HEADERS + b"\r\n"


def too_much(rng: random.Random) -> bytes:
    size = rng.randint(501, 20_000)
    query = rng.choice(["a" * size, "%20a" * size, "a" * size + "%ff", "🐕" * 600])
    return (
        f"GET /api/search?query={query}&count={rng.choice(['5', '9' * 400, '-0', '1e1', ''])} HTTP/1.1\r\n".encode()
        + (HEADERS + b"\r\n")
    )


def wrong_method(rng: random.Random) -> bytes:
    method = rng.choice(["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "BREW", "M-SEARCH", "LINK"])
    body = noise(rng, rng.choice([10, 30_000]))
    if rng.random() < 0.3:
        return f"{method} {rng.choice(PATHS)} HTTP/1.1\r\n".encode() + HEADERS + b"\r\n"
    length = rng.choice([b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked", b"Content-Encoding: gzip"])
    return f"{method} {rng.choice(PATHS)} HTTP/1.1\r\n".encode() + HEADERS + length + b"\r\n\r\n" + body


def bad_range(rng: random.Random) -> bytes:
    numbers = [str(rng.randint(0, 40_000)), "9" * rng.randint(1, 6_000), "-1", "", "x", "٣", "0x1", " "]
    unit = rng.choice(["bytes", "Bytes", "lines", "bytes ", ""])
    asked = ",".join(f"{rng.choice(numbers)}-{rng.choice(numbers)}" for _ in range(rng.choice([1, 1, 2, 500])))
    others = [
        "",
        "If-Range: nonsense\r\n",
        "If-Range: Sat, 99 Foo 99999 99:99:99 GMT\r\n",
        "If-Modified-Since: Thu, 01 Jan 0000 00:00:00 GMT\r\n",
        "If-Unmodified-Since: Fri, 31 Dec 9999 23:59:59 GMT\r\n",
        'If-None-Match: W/"\r\n',
        "If-Match: *, *\r\n",
    ]
    method = rng.choice(["GET", "HEAD"])
    return (
        f"{method} /audio/{rng.randint(0, 23)} HTTP/1.1\r\n{rng.choice(others)}Range: {unit}={asked}\r\n".encode()
        + (HEADERS + b"\r\n")
    )


def wrong_host(rng: random.Random) -> bytes:
    host = rng.choice(
        [b"rebound.example", b"127.0.0.1.example:80", b"[::1", b"localhost:99999x", line_noise(rng, 60), b""]
    )
    line = f"GET {rng.choice(PATHS)} HTTP/1.{rng.choice('01')}\r\n".encode()
    return line + rng.choice([b"Host: " + host + b"\r\n", b""]) + b"Connection: close\r\n\r\n"


def cut_short(rng: random.Random) -> bytes:
    whole = rng.choice([bad_header, bad_target, wrong_method, bad_range])(rng)
    return whole[: rng.randint(1, len(whole))]


KINDS = [broken_line, bad_header, bad_target, too_much, wrong_method, bad_range, wrong_host, cut_short]


def pipelined(rng: random.Random) -> bytes:
    """Many requests at once, good ones among them."""
    good = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    parts = [
        rng.choice([lambda: good % rng.choice(PATHS).encode(), lambda: rng.choice(KINDS)(rng)])() for _ in range(8)
    ]
    return b"".join(parts)


def statuses(port: int, request: bytes) -> list[int]:
    """Return the statuses of all answers until the connection ends or is silent: half a request gets no answer."""
    received = b""
    # A closed connection is a valid answer to a request that is not HTTP.
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
        suppress(ConnectionResetError, BrokenPipeError),
    ):
        connection.sendall(request)
        connection.settimeout(SILENCE)
        with suppress(TimeoutError):
            while part := connection.recv(65_536):
                received += part
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)]


def test_random_requests_never_break_the_server(unbroken: Path, root: Path) -> None:
    requests = [rng.choice([*KINDS, pipelined])(rng) for rng in (random.Random(seed) for seed in range(REQUESTS))]
    with serving(root, unbroken) as (process, port):
        with ThreadPoolExecutor(CLIENTS) as clients:
            found = list(clients.map(lambda request: statuses(port, request), requests))
        failed = [request for request, codes in zip(requests, found, strict=True) if any(code >= 500 for code in codes)]
        assert not failed, f"{len(failed)} requests were answered with 5xx, first {failed[0][:300]!r}"
        assert ask(port, "/api/search?query=a+deep+tone").status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    seen = {code for codes in found for code in codes}
    assert {400, 404, 405, 413, 416, 421, 422} <= seen, seen  # the requests reach their targets
    assert process.returncode == 0
    assert "Traceback" not in errors, errors[-3000:]
    assert len(errors.splitlines()) < 50, errors[-3000:]
