"""HTTP by aiohttp; whatever goes wrong on the way is one exception."""

import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import ResolveResult

from data_tools.freesound.transport import Answer, BrokenError, UnfitError, is_local

SEARCH_BYTES = 32 << 20  # of a body that is kept in memory; a page of 150 sounds has 3 MB at most
FILE_BYTES = 4 << 30  # of a file of unknown size
TOTAL = 10  # an answer may last so many times the time that is waited for its next bytes,
SLOWEST = 50_000  # and a file as long as its limit takes at so many bytes a second beside
_CHUNK = 1 << 16
_MOVED = (301, 302, 303, 307, 308)


class Http:
    """Transport over the network. site: of the API, the one host that may have a private address. timeout: seconds
    without a byte before a request is given up; no answer may last ten times as long, but a file has time for its
    size."""

    def __init__(self, site: str, timeout: float) -> None:
        self._timeout = timeout
        agent = {"User-Agent": "lbar-kit"}
        connector = aiohttp.TCPConnector(resolver=PublicResolver(urlsplit(site).hostname or ""))
        # Not trust_env: ~/.netrc must not put another secret in the key's place.
        self._session = aiohttp.ClientSession(connector=connector, headers=agent)

    async def __aenter__(self) -> "Http":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(
        self, url: str, headers: Mapping[str, str], into: Path | None = None, limit: int | None = None
    ) -> Answer:
        most = SEARCH_BYTES if into is None else FILE_BYTES if limit is None else limit
        try:
            async with self._session.get(
                url, headers=headers, allow_redirects=False, proxy=_proxy(url), timeout=self._time(most, into)
            ) as response:
                if into is None or response.status != 200:
                    body = b"".join([chunk async for chunk in _chunks(response, SEARCH_BYTES)])
                    moved = response.headers.get("Location") if response.status in _MOVED else None
                    return Answer(response.status, body, len(body), moved)
                length = 0
                with open(into, "wb") as file:
                    async for chunk in _chunks(response, most):
                        file.write(chunk)
                        length += len(chunk)
                return Answer(response.status, b"", length)
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise UnfitError(f"its address is none: {url[:200]!a}") from error
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError, ConnectionError) as error:
            raise BrokenError(type(error).__name__) from None  # its own text may hold the request's headers
        except OSError as error:  # of writing the file
            raise OSError(error.errno, error.strerror, str(into)) from None

    def _time(self, most: int, into: Path | None) -> aiohttp.ClientTimeout:
        total = TOTAL * self._timeout + (most / SLOWEST if into else 0)
        return aiohttp.ClientTimeout(total=total, sock_connect=self._timeout, sock_read=self._timeout)


async def _chunks(response: aiohttp.ClientResponse, most: int) -> AsyncIterator[bytes]:
    """The body, unpacked, a piece at a time. Raises UnfitError once it is announced or found to be longer than `most`
    bytes."""
    announced = response.content_length or 0
    if announced > most:
        raise UnfitError(f"the answer has {announced} bytes, more than {most}")
    length = 0
    async for chunk in response.content.iter_chunked(_CHUNK):
        length += len(chunk)
        if length > most:
            raise UnfitError(f"the answer has more than {most} bytes")
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
        if host != self._site and not all(ip_address(address["host"].partition("%")[0]).is_global for address in found):
            raise UnfitError(f"the name {host} leads to an address that is not public")
        return found


def _proxy(url: str) -> str | None:
    """The proxy that the environment names (http_proxy, https_proxy, no_proxy); none for addresses of this machine."""
    address = urlsplit(url)
    proxy = getproxies().get(address.scheme)
    if not proxy or is_local(url) or proxy_bypass(address.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
