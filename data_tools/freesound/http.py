"""HTTP by aiohttp; whatever goes wrong on the way is one exception."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from data_tools.freesound.transport import Answer, BrokenError, is_local

_CHUNK = 1 << 16
_MOVED = (301, 302, 303, 307, 308)


class Http:
    """Transport over the network. timeout: seconds without a byte before a request is given up."""

    def __init__(self, timeout: float) -> None:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
        agent = {"User-Agent": "lbar-kit"}
        # Not trust_env: ~/.netrc must not put another secret in the key's place.
        self._session = aiohttp.ClientSession(timeout=limits, headers=agent)

    async def __aenter__(self) -> "Http":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, url: str, headers: Mapping[str, str], into: Path | None = None) -> Answer:
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False, proxy=_proxy(url)) as response:
                if into is None or response.status != 200:
                    body = await response.read()
                    moved = response.headers.get("Location") if response.status in _MOVED else None
                    return Answer(response.status, body, len(body), moved)
                length = 0
                with open(into, "wb") as file:
                    async for chunk in response.content.iter_chunked(_CHUNK):
                        file.write(chunk)
                        length += len(chunk)
                return Answer(response.status, b"", length)
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError, ConnectionError) as error:
            raise BrokenError(type(error).__name__) from None  # its own text may hold the request's headers
        except OSError as error:  # of writing the file
            raise OSError(error.errno, error.strerror, str(into)) from None


def _proxy(url: str) -> str | None:
    """The proxy that the environment names (http_proxy, https_proxy, no_proxy); none for addresses of this machine."""
    address = urlsplit(url)
    proxy = getproxies().get(address.scheme)
    if not proxy or is_local(url) or proxy_bypass(address.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
