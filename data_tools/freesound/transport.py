"""The way to the API, as the client sees it: one GET, its answer in memory or in a file."""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit


class Response(NamedTuple):
    """An answer over HTTP.

    body: b"" if it went into a file. length: of the received body, in bytes.

    location: of a redirect. retry_after: seconds to wait before the next request; 0 if the server names no time.
    """

    status: int
    body: bytes
    length: int
    location: str | None = None
    retry_after: float = 0.0


class BrokenError(OSError):
    """No whole answer: no connection, a reset, a timeout, fewer bytes than promised."""


class UnfitError(Exception):
    """An answer or an address that is refused, and would be no better next time: the text says why."""


class Transport(Protocol):
    """The way to the API; tests put another in its place."""

    async def get(
        self, url: str, headers: Mapping[str, str], into: Path | None = None, limit: int | None = None
    ) -> Response:
        """One request; no redirect is followed. into: the file that takes the body when the status is 200. limit: bytes
        of that file, unpacked.

        Raises BrokenError; UnfitError for a longer body, and for an address that is not valid.
        """
        ...

    async def post(self, url: str, form: Mapping[str, str]) -> Response:
        """Send a form. Raises BrokenError."""
        ...


_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address in its last 32 bits
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")  # RFC 8215: within one network
_COMPATIBLE = IPv6Network("::/96")  # RFC 4291, deprecated: as NAT64


def is_public(number: str) -> bool:
    """Whether a numeric address is one machine of the whole internet: of no private network, no group of machines
    (multicast), and no IPv4 address of these kinds written as IPv6. Raises ValueError for what is no number."""
    address: IPv4Address | IPv6Address = ip_address(number.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address in _NAT64_LOCAL:
            return False
        within = address.ipv4_mapped or address.sixtofour
        if address in _NAT64 or address in _COMPATIBLE:
            within = IPv4Address(int(address) % 2**32)
        address = within or address
    return address.is_global and not address.is_multicast


def is_local(site: str) -> bool:
    """Whether an address is this machine: a sandbox."""
    return urlsplit(site).hostname in ("127.0.0.1", "localhost", "::1")
