"""HTTP by aiohttp; whatever goes wrong on the way is one exception."""

import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import ResolveResult
from yarl import URL

from data_tools.cli import version
from data_tools.freesound.transport import BrokenError, Response, UnfitError, is_local, is_public

SEARCH_BYTES = 32 << 20  # of a body that is kept in memory; a page of 150 sounds has 3 MB at most
FILE_BYTES = 4 << 30  # of a file, whatever size is stated
TOTAL = 10  # an answer may last so many times the time that is waited for its next bytes,
SLOWEST = 50_000  # and a file as long as its limit takes at so many bytes a second beside
MAX_SECONDS = 86_400  # of any answer
_CHUNK = 1 << 16
_MOVED = (301, 302, 303, 307, 308)


class Http(AbstractAsyncContextManager["Http"]):
    """Transport over the network. site: of the API, the one host that may have a private address. timeout: seconds
    without a byte before a request is given up; no answer may last ten times as long, but a file has time for its
    size, and nothing more than a day. contact: of the user, an address for Freesound's administrators."""

    def __init__(self, site: str, timeout: float, contact: str = "") -> None:
        self._timeout = timeout
        self._host = urlsplit(site).hostname or ""
        agent = {"User-Agent": f"lbar-kit/{version()}" + (f" ({contact})" if contact else "")}
        connector = aiohttp.TCPConnector(resolver=PublicResolver(self._host))
        # Not trust_env: ~/.netrc must not put another secret in the key's place.
        self._session = aiohttp.ClientSession(connector=connector, headers=agent)

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(
        self, url: str, headers: Mapping[str, str], into: Path | None = None, limit: int | None = None
    ) -> Response:
        max_bytes = SEARCH_BYTES if into is None else FILE_BYTES if limit is None else min(limit, FILE_BYTES)
        self._refuse_private_number(url)
        try:
            async with self._session.get(
                url, headers=headers, allow_redirects=False, proxy=_proxy(url), timeout=self._time(max_bytes, into)
            ) as response:
                if into is None or response.status != 200:
                    body = b"".join([chunk async for chunk in _chunks(response, SEARCH_BYTES)])
                    moved = response.headers.get("Location") if response.status in _MOVED else None
                    pause = retry_after(response.headers.get("Retry-After", ""))
                    return Response(response.status, body, len(body), moved, pause)
                length = 0
                with into.open("wb") as file:
                    async for chunk in _chunks(response, max_bytes):
                        file.write(chunk)
                        length += len(chunk)
                return Response(response.status, b"", length)
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise _invalid(url) from error
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError, ConnectionError) as error:
            raise BrokenError(type(error).__name__) from None  # its own text may hold the request's headers
        except OSError as error:  # of writing the file
            raise OSError(error.errno, error.strerror, str(into)) from None

    async def post(self, url: str, form: Mapping[str, str]) -> Response:
        try:
            async with self._session.post(
                url, data=form, allow_redirects=False, proxy=_proxy(url), timeout=self._time(SEARCH_BYTES, None)
            ) as response:
                body = b"".join([chunk async for chunk in _chunks(response, SEARCH_BYTES)])
                return Response(response.status, body, len(body))
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError, ConnectionError) as error:
            raise BrokenError(type(error).__name__) from None  # its own text may hold the form

    def _refuse_private_number(self, url: str) -> None:
        """Raises UnfitError for the number of a private address: aiohttp asks no resolver for numbers."""
        try:
            host = URL(url).raw_host or ""
        except ValueError as error:
            raise _invalid(url) from error
        with suppress(ValueError):  # a name
            if host != self._host and not is_public(host):
                raise UnfitError(f"{host} is not a public address")

    def _time(self, max_bytes: int, into: Path | None) -> aiohttp.ClientTimeout:
        total = TOTAL * self._timeout + (max_bytes / SLOWEST if into else 0)
        return aiohttp.ClientTimeout(total=min(total, MAX_SECONDS), sock_connect=self._timeout, sock_read=self._timeout)


def retry_after(header: str) -> float:
    """Seconds from now that a Retry-After header names as a number or a date (RFC 9110, 10.2.3), at most MAX_SECONDS;
    0 for any other text."""
    if re.fullmatch(r"[0-9]{1,9}", header.strip()):
        return min(float(header), MAX_SECONDS)
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    return min(max(0.0, at.timestamp() - time.time()), MAX_SECONDS)


def _invalid(url: str) -> UnfitError:
    return UnfitError(f"{url[:200]!a} is not a valid address")


async def _chunks(response: aiohttp.ClientResponse, max_bytes: int) -> AsyncIterator[bytes]:
    """The body, unpacked, a piece at a time. Raises UnfitError once it is announced or found to be longer than
    `max_bytes` bytes."""
    announced = response.content_length or 0
    if announced > max_bytes:
        raise UnfitError(f"the answer has {announced} bytes; at most {max_bytes} are accepted")
    length = 0
    async for chunk in response.content.iter_chunked(_CHUNK):
        length += len(chunk)
        if length > max_bytes:
            raise UnfitError(f"the answer has more than {max_bytes} bytes")
        yield chunk


class PublicResolver(aiohttp.ThreadedResolver):
    """Names to addresses; those of this machine and of private networks only for `site`, so that no name that an answer
    brings along leads there."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self._site = site

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        if host != self._site and not all(is_public(address["host"]) for address in found):
            raise UnfitError(f"the name {host} leads to an address that is not public")
        return found


def _proxy(url: str) -> str | None:
    """The proxy that the environment names (http_proxy, https_proxy, no_proxy); none for addresses of this machine."""
    address = urlsplit(url)
    proxy = getproxies().get(address.scheme)
    if not proxy or is_local(url) or proxy_bypass(address.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
