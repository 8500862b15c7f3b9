"""Address, key and token.

Reads address, key and token of the API from options, the environment or private files. Never prints key or token.
"""

import argparse
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pydantic import SecretStr

from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError
from data_tools.files import replacing, require_file

SITE = "https://freesound.org"
ADDRESS, CONTACT = "FREESOUND_API", "FREESOUND_CONTACT"
KEY, TOKEN = "FREESOUND_API_KEY", "FREESOUND_ACCESS_TOKEN"
KEY_ADDRESS = "freesound.org/apiv2/apply"
PER_MINUTE, PER_DAY = 60, 2000  # limits of a standard key
LIMITS = {"per_minute": (1, 1_000_000), "per_day": (1, 1_000_000), "speed": (0.01, 10_000_000)}  # ranges of the options
TOKEN_NAMES = ("access_token", "refresh_token", "client_id")  # keys in a token file


@dataclass
class Token:
    """An OAuth2 access token, valid for 24 hours.

    Attributes:
        access: The token.
        file: JSON file with the keys access_token, refresh_token and client_id, which are needed to request a new
            token; None: the token cannot be renewed.
        refresh: The value of refresh_token.
        client: The value of client_id.
        is_renewed: Whether this process has renewed the token.
    """

    access: SecretStr
    file: Path | None = None
    refresh: str = field(default="", repr=False)
    client: str = ""
    is_renewed: bool = False

    def renew(self, answer: Mapping[str, object]) -> None:
        """Store the new tokens in a server's answer to `grant_type=refresh_token`, and write them to the file.

        The old refresh token is invalid from then on. Raises DataError for an answer without tokens.
        """
        access, refresh = answer.get("access_token"), answer.get("refresh_token")
        if not isinstance(access, str) or not isinstance(refresh, str):
            raise DataError(
                f"{self.file}: Freesound's answer contains no new tokens; request a new token as "
                "data_tools/FREESOUND.md describes"
            )
        self.access, self.refresh, self.is_renewed = SecretStr(access), refresh, True
        assert self.file is not None
        content = parse_json(_read_private_text(self.file), str(self.file))
        content |= {"access_token": access, "refresh_token": refresh}
        with replacing(self.file) as temporary:
            temporary.touch(0o600)
            temporary.write_text(json.dumps(content))


class Access(NamedTuple):
    """Settings of the connection to the Freesound API.

    Attributes:
        site: Address of the API, without a trailing slash.
        token: OAuth2 token for uploaders' original files.
        contact: Text for the User-Agent header.
    """

    site: str
    key: SecretStr
    token: Token | None
    contact: str


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the connection to the Freesound API: address, key, limits, and time-out."""
    add = parser.add_argument_group("connection").add_argument
    add("--site", help=f"address of the API (default: the environment variable {ADDRESS}, or {SITE})")
    add(
        "--key-file",
        type=Path,
        help=f"file of mode 600 with the API key (default: the key is in {KEY}, an environment variable)",
    )
    add("--per-minute", type=int, default=PER_MINUTE, help="maximum requests per minute (default: %(default)s)")
    add("--per-day", type=int, default=PER_DAY, help="maximum requests in 24 hours (default: %(default)s)")
    add("--workers", type=int, default=4, help="maximum requests at the same time (default: %(default)s)")
    add(
        "--timeout",
        type=float,
        default=60.0,
        help="seconds to wait for more bytes of an answer (default: %(default)s)",
    )
    contact = f"your e-mail or web address, sent with every request (default: the environment variable {CONTACT})"
    add("--contact", metavar="ADDRESS", help=contact)
    speed = "divide all waiting times by this factor (only for a sandbox on this machine)"
    add("--speed", type=float, default=1.0, help=speed)


def read_access(arguments: argparse.Namespace) -> Access:
    """Read the connection settings from the options of add_connection_options.

    Raises DataError for options out of range, a missing key, and a key or token that others may read.
    """
    site = (arguments.site or os.environ.get(ADDRESS) or SITE).rstrip("/")
    _check_site(site)
    check_bounds(arguments, **LIMITS, workers=(1, 64), timeout=(0.1, 86_400))
    if arguments.speed != 1 and not is_local(site):
        raise DataError("--speed only works with a sandbox on this machine; leave it out for any other address")
    contact = arguments.contact or os.environ.get(CONTACT) or ""
    if not re.fullmatch(r"[ -'*-~]{0,200}", contact):
        raise DataError(f"the contact {contact[:60]!a} is invalid; use at most 200 ASCII characters, no parentheses")
    return Access(site, read_key(arguments.key_file), read_token(getattr(arguments, "token_file", None)), contact)


def check_bounds(arguments: argparse.Namespace, **bounds: tuple[float, float]) -> None:
    """Raise DataError for an option outside its bounds (lowest and highest value, both included)."""
    for name, (smallest, largest) in bounds.items():
        value = getattr(arguments, name)
        if not smallest <= value <= largest:
            raise DataError(f"--{name.replace('_', '-')} {value}: use {smallest} to {largest}")


def _check_site(site: str) -> None:
    """Raise DataError for an address that is invalid, not encrypted, or more than a host and a path."""
    shown = re.sub(r"(//|^)[^/?#]*@", r"\1***@", site)  # names, passwords, queries and fragments may be secrets
    shown = re.sub(r"([?#]).*", r"\1***", shown, flags=re.DOTALL)
    try:
        address = urlsplit(site)
        whole = address.hostname and address.port != 0 and site.isprintable() and " " not in site
    except ValueError:  # from a port that is not a number, or unclosed brackets
        whole = False
    if not whole:
        raise DataError(f"{shown!a} is not a valid address; it should look like {SITE}")
    if address.scheme != "https" and not (address.scheme == "http" and is_local(site)):
        raise DataError(f"the address {shown} must begin with https://, so that the key is sent encrypted")
    if address.query or address.fragment or "@" in address.netloc:
        raise DataError(f"the address {shown} must have only a host and a path; set the key by {KEY}")


def is_local(url: str) -> bool:
    """Return whether an address points to this machine, as a sandbox does."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def read_key(file: Path | None) -> SecretStr:
    """Return the API key from a private file or, without one, from the environment.

    Raises DataError if neither is given, if others may read the file, and for text that cannot be an HTTP header.
    """
    key = _read_secret(KEY, file)
    if key is None:
        raise DataError(
            f"no API key: set the variable {KEY}, or give a file of mode 600 by --key-file (get a key at {KEY_ADDRESS})"
        )
    return key


def read_token(file: Path | None) -> Token | None:
    """Return the access token from a private file or, without one, from the environment; None if neither is given.

    The file has only the token's text, or JSON with access_token, refresh_token and client_id. Raises DataError if
    others may read the file, for text that cannot be an HTTP header, and for JSON without these three keys.
    """
    if file is None or not _read_private_text(file).lstrip().startswith("{"):
        word = _read_secret(TOKEN, file)
        return Token(word) if word else None
    content = parse_json(_read_private_text(file), str(file))
    for name in TOKEN_NAMES:
        if not isinstance(content.get(name), str) or not re.fullmatch(r"[!-~]+", content[name]):
            raise DataError(
                f"{file}: has no valid {name}; write JSON with {', '.join(TOKEN_NAMES)}, or only the access token"
            )
    access, refresh, client = (content[name] for name in TOKEN_NAMES)
    return Token(SecretStr(access), file, refresh, client)


def _read_secret(variable: str, file: Path | None) -> SecretStr | None:
    """Read a key or token from a private file or from the environment `variable`; None if neither is given."""
    if file is None and variable not in os.environ:
        return None
    value = (_read_private_text(file) if file else os.environ[variable]).strip()
    if not re.fullmatch(r"[!-~]+", value):
        origin = file or f"the environment variable {variable}"
        raise DataError(f"{origin}: is not a key or token; it must be one word of letters, digits and punctuation")
    return SecretStr(value)


def _read_private_text(file: Path) -> str:
    """Return the text of a private file. Raises DataError for a file that is missing, or that others may read."""
    require_file(file, f"write the key or token into this file, and run `chmod 600 {file}`")
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise DataError(f"{file}: other users may read this secret file; run `chmod 600 {file}`")
    return file.read_bytes().decode("utf-8", "replace")
