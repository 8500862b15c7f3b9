"""What crawl and fetch share: the options of a connection to the API, and the open client."""

import argparse
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from data_tools.errors import DataError
from data_tools.freesound.client import SITE, Client
from data_tools.freesound.credentials import Secret, Token, read_key, read_token
from data_tools.freesound.quota import Clock, Quota
from data_tools.freesound.store import Store
from data_tools.freesound.transport import is_local

ADDRESS, CONTACT = "FREESOUND_API", "FREESOUND_CONTACT"
PER_MINUTE, PER_DAY = 60, 2000  # of a standard key
LIMITS = {"per_minute": (1, 1_000_000), "per_day": (1, 1_000_000), "speed": (0.01, 10_000_000)}  # of the options


def add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection")
    group.add_argument("--site", help=f"address of the API (default: {ADDRESS} of the environment, or {SITE})")
    group.add_argument("--key-file", type=Path, help="file of mode 600 with the API key (default: FREESOUND_API_KEY)")
    group.add_argument("--per-minute", type=int, default=PER_MINUTE, help="requests a minute (default: %(default)s)")
    group.add_argument("--per-day", type=int, default=PER_DAY, help="requests in 24 hours (default: %(default)s)")
    group.add_argument("--workers", type=int, default=4, help="requests at the same time (default: %(default)s)")
    group.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for an answer's next bytes (default: %(default)s)"
    )
    contact = (
        f"your e-mail or web address, sent to Freesound with every request (default: {CONTACT} of the environment)"
    )
    group.add_argument("--contact", metavar="ADDRESS", help=contact)
    speed = "let waits pass so many times as fast (only for a sandbox on this machine)"
    group.add_argument("--speed", type=float, default=1.0, help=speed)


def read_settings(arguments: argparse.Namespace) -> tuple[str, Secret, Token | None]:
    """(the API's address, key, token of OAuth2 for originals).

    Raises DataError for options out of range and for a missing or open key.
    """
    site = (arguments.site or os.environ.get(ADDRESS) or SITE).rstrip("/")
    _check(arguments, site)
    _contact(arguments)
    return site, read_key(arguments.key_file), read_token(getattr(arguments, "token_file", None))


@asynccontextmanager
async def connect(arguments: argparse.Namespace, store: Store) -> AsyncIterator[Client]:
    """The client of these options. Raises DataError as read_settings does."""
    from data_tools.freesound.http import Http

    site, key, token = read_settings(arguments)
    clock = Clock(arguments.speed)
    quota = Quota(store.database, arguments.per_minute, arguments.per_day, clock)
    for name in ("per_minute", "per_day"):
        store.set_fact(name, str(getattr(arguments, name)))  # of this key, for `status`
    async with Http(site, arguments.timeout, _contact(arguments)) as transport:
        yield Client(site, key, quota, transport, clock, token)


def _contact(arguments: argparse.Namespace) -> str:
    """Return the contact for the User-Agent. Raises DataError for a text that a header cannot hold."""
    contact: str = arguments.contact or os.environ.get(CONTACT) or ""
    if not re.fullmatch(r"[ -'*-~]{0,200}", contact):
        raise DataError(f"the contact {contact[:60]!a} may have 200 letters, digits and signs without parentheses")
    return contact


def check_bounds(arguments: argparse.Namespace, **bounds: tuple[float, float]) -> None:
    """Raises DataError for an option that is not from the first number of its bounds to the second."""
    for name, (smallest, largest) in bounds.items():
        value = getattr(arguments, name)
        if not smallest <= value <= largest:
            raise DataError(f"--{name.replace('_', '-')} {value}: use {smallest} to {largest}")


def _check(arguments: argparse.Namespace, site: str) -> None:
    try:
        address, local = urlsplit(site), is_local(site)
        whole = address.hostname and address.port != 0 and site.isprintable() and " " not in site
    except ValueError:  # of a port that is no number, of brackets that are not closed
        whole = False
    shown = _without_secrets(site)
    if not whole:
        raise DataError(f"{shown!a} is not a valid address; it should look like {SITE}")
    if address.scheme != "https" and not (local and address.scheme == "http"):
        raise DataError(f"the address {shown} must begin with https://: the key would be sent in the open")
    if address.query or address.username is not None or address.password is not None or address.fragment:
        raise DataError(f"the address {shown} may only have a host and a path; the key goes into FREESOUND_API_KEY")
    check_bounds(arguments, **LIMITS, workers=(1, 64), timeout=(0.1, 86_400))
    if arguments.speed != 1 and not local:
        raise DataError("--speed is for a sandbox on this machine; the real API counts real minutes")


def _without_secrets(site: str) -> str:
    """Hide what an address may carry of a key: a name or password before the host, a query, a fragment."""
    shown = re.sub(r"(//|^)[^/?#]*@", r"\1***@", site)
    return re.sub(r"([?#]).*", r"\1***", shown, flags=re.DOTALL)
