"""HTTP transport.

The API's HTTP transport (aiohttp), with limits on bytes and time, and the client that a verb's options describe.
"""

import argparse
import io
import re
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from data_tools.cli import version
from data_tools.errors import located
from data_tools.freesound.access import is_local, read_access
from data_tools.freesound.client import AgainError, Client, LostError, Response
from data_tools.freesound.quota import Clock, Quota
from data_tools.freesound.store import Store

SEARCH_BYTES = 32 << 20  # maximum of a body in memory; a page of 150 sounds has 3 MB at most
FILE_BYTES = 4 << 30  # maximum of a file, whatever size is stated
TOTAL = 10  # an answer may last so many times the wait for its next bytes,
SLOWEST = 50_000  # plus, for a file, the time that its size limit takes at so many bytes per second
MAX_SECONDS = 86_400  # maximum of any answer
_BROKEN = (aiohttp.ClientError, TimeoutError, ssl.SSLError, ConnectionError)


@asynccontextmanager
async def connect(arguments: argparse.Namespace, store: Store) -> AsyncIterator[Client]:
    """Open a client of the API for a block, by the options in `arguments`; write its request limits to `store`.

    Raises DataError as read_access does.
    """
    site, key, token, contact = read_access(arguments)
    clock = Clock(arguments.speed)
    quota = Quota(store.database, arguments.per_minute, arguments.per_day, clock)
    store.set_facts(per_minute=quota.per_minute, per_day=quota.per_day)  # limits of this key, shown by `status`
    async with Http(arguments.timeout, contact) as transport:
        yield Client(site, key, quota, transport, clock, token)


class Http(AbstractAsyncContextManager["Http"]):
    """Transport over the network; follows no redirect.

    timeout: Seconds without a byte before a request is given up. contact: The user's address, for Freesound's
    administrators.
    """

    def __init__(self, timeout: float, contact: str = "") -> None:
        """Open an HTTP session. timeout: In seconds. contact: Address that each request states, or ""."""
        self._timeout = timeout
        agent = f"lbar-kit/{version()}" + (f" ({contact})" if contact else "")
        # No trust_env: ~/.netrc must not replace the key by another secret.
        self._session = aiohttp.ClientSession(headers={"User-Agent": agent})

    async def __aexit__(self, *_: object) -> None:
        """Close the HTTP session."""
        await self._session.close()

    async def get(
        self, url: str, headers: Mapping[str, str], into: Path | None = None, limit: int | None = None
    ) -> Response:
        """Make one GET request and return the server's answer; its body goes to the file `into`, if given.

        The file is written only if the status is 200. limit: Maximum number of its bytes, unpacked.
        Raises AgainError if no complete answer arrives; LostError for a longer body and for an invalid address.
        """
        file_bytes = FILE_BYTES if limit is None else min(limit, FILE_BYTES)
        return await self._request("GET", url, into, file_bytes if into else 0, headers=headers)

    async def post(self, url: str, form: Mapping[str, str]) -> Response:
        """Send a form by one POST request, and return the server's answer. Raises AgainError."""
        return await self._request("POST", url, None, 0, data=form)

    async def _request(self, method: str, url: str, into: Path | None, file_bytes: int, **sent: Any) -> Response:
        """Make one request; return the answer. A body of status 200, at most `file_bytes`, goes to `into` if given."""
        timeout = time_limits(self._timeout, file_bytes)
        try:
            async with self._session.request(
                method, url, allow_redirects=False, proxy=_proxy_for(url), timeout=timeout, **sent
            ) as answer:
                body, length = io.BytesIO(), 0
                is_file = into and answer.status == 200
                with into.open("wb") if into and is_file else body as file:
                    async for chunk in _chunks(answer, file_bytes if is_file else SEARCH_BYTES):
                        length += file.write(chunk)
                    moved = answer.headers.get("Location") if answer.status // 100 == 3 else None
                    pause = retry_after(answer.headers.get("Retry-After", ""))
                    return Response(answer.status, body.getvalue(), length, moved, pause)
        except (aiohttp.InvalidURL, UnicodeError):
            raise LostError(f"the server returned the address {url[:200]!a}, which is not valid") from None
        except _BROKEN as error:  # its text may contain the request's headers
            raise AgainError(f"the connection failed or broke: {type(error).__name__}") from None
        except OSError as error:  # from writing the file
            raise located(error, into) from None


def time_limits(timeout: float, file_bytes: int) -> aiohttp.ClientTimeout:
    """Return the time limits of a request: TOTAL * timeout seconds in all, plus the time for file_bytes at SLOWEST."""
    total = min(TOTAL * timeout + file_bytes / SLOWEST, MAX_SECONDS)
    return aiohttp.ClientTimeout(total=total, sock_connect=timeout, sock_read=timeout)


def retry_after(header: str) -> float:
    """Return the seconds to wait by a Retry-After header: at most MAX_SECONDS; 0 for an empty or invalid header.

    The header states a number of seconds or a date (RFC 9110, 10.2.3).
    """
    if re.fullmatch(r"[0-9]{1,9}", header.strip()):
        return min(float(header), MAX_SECONDS)
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    return min(max(0.0, at.timestamp() - time.time()), MAX_SECONDS)


async def _chunks(answer: aiohttp.ClientResponse, limit: int) -> AsyncIterator[bytes]:
    """Yield an answer's unpacked body in pieces. Raises LostError if it has, or announces, more than `limit` bytes."""
    announced, length = answer.content_length or 0, 0
    if announced > limit:
        raise LostError(f"the server's answer has {announced} bytes, more than the maximum of {limit}")
    async for chunk in answer.content.iter_chunked(1 << 16):
        length += len(chunk)
        if length > limit:
            raise LostError(f"the server's answer has more than the maximum of {limit} bytes")
        yield chunk


def _proxy_for(url: str) -> str | None:
    """Return the address of the proxy for a URL, from the environment; None without a proxy or for this machine.

    The environment variables are http_proxy, https_proxy and no_proxy.
    """
    address = urlsplit(url)
    proxy = getproxies().get(address.scheme)
    if not proxy or is_local(url) or proxy_bypass(address.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
