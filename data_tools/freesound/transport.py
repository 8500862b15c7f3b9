"""The way to the API, as the client sees it: one GET, its answer in memory or in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """body: b"" where it went into a file. length: of the body as received, in bytes. location: of a redirect."""

    status: int
    body: bytes
    length: int
    location: str | None = None


class BrokenError(OSError):
    """No whole answer: no connection, a reset, a timeout, fewer bytes than promised."""


class UnfitError(Exception):
    """An answer or an address that is refused, and would be no better next time: the text says why."""


class Transport(Protocol):
    """The way to the API; tests put another in its place."""

    async def get(
        self, url: str, headers: Mapping[str, str], into: Path | None = None, limit: int | None = None
    ) -> Answer:
        """One request; no redirect is followed. into: the file that takes the body when the status is 200. limit: bytes
        of that file, unpacked.

        Raises BrokenError; UnfitError for a longer body, and for an address that is none.
        """
        ...


def is_local(site: str) -> bool:
    """Whether an address is this machine: a sandbox."""
    return urlsplit(site).hostname in ("127.0.0.1", "localhost", "::1")
