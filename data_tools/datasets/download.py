"""Download published files, resumed and verified."""

import asyncio
import codecs
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.cli import progress
from data_tools.errors import DataError, KitError, located
from data_tools.files import checksum, lock_of, sync, write_text

if TYPE_CHECKING:
    from aiohttp import ClientSession

IDLE = 60  # seconds without a byte after which a connection is given up
PAUSES = (2, 10, 60)  # seconds before the next attempt
BLOCK = 1 << 20
FETCH_AGAIN = "delete this file, then the same command fetches it again"

log = logging.getLogger(__name__)


def download(
    address: str, path: Path, sha256: str = "", require_usable: Callable[[Path], object] | None = None
) -> bool:
    """Fetch a file unless it is present; return whether it was fetched.

    Until the file is complete and verified it is `<path>.part`. An interrupted download is resumed if the checksum is
    known, or if the server names the version of the file (ETag or Last-Modified).

    Args:
        address: Address of the file, http or https.
        path: Target. A file that is there is never changed.
        sha256: First digits of the file's checksum, or "md5:" and its MD5; "" if unknown.
        require_usable: Opens a file without a known checksum; raises KitError if it is unusable.

    Raises:
        DataError: The address cannot be reached, or the file is not the published one.
    """
    if path.exists():
        _require_published(path, sha256, require_usable, f"{path}: {{}}; {FETCH_AGAIN}")
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    version = part.with_name(f"{part.name}.version")  # the server's name of the version that `part` belongs to
    advice = f"open {address} in a browser, and put the file at {path}"
    with lock_of(path):
        if not sha256 and not version.exists():
            part.unlink(missing_ok=True)
        asyncio.run(_fetch(address, part, version, advice))
        try:
            _require_published(part, sha256, require_usable, f"{address}: {{}}; {advice}")
        except KitError:
            part.unlink()
            version.unlink(missing_ok=True)
            raise
        sync(part)
        part.replace(path)
        version.unlink(missing_ok=True)
    return True


def _require_published(path: Path, sha256: str, require_usable: Callable[[Path], object] | None, message: str) -> None:
    """Raise DataError if a file is not the published one. message: With {} for the fault."""
    kind, digits = ("md5", sha256[4:]) if sha256.startswith("md5:") else ("sha256", sha256)
    if digits and not (actual := checksum(path, kind)).startswith(digits):
        raise DataError(message.format(f"its {kind} is {actual[: len(digits)]}, but {digits} is published"))
    if problem := content_problem(path):
        raise DataError(message.format(problem))
    if require_usable and not sha256:
        try:
            require_usable(path)
        except KitError as error:
            raise DataError(message.format(f"cannot be used ({error})")) from None


def content_problem(path: Path) -> str | None:
    """Return why a file cannot be the published one: empty, a web page, an error message in JSON; else None."""
    with path.open("rb") as file:
        begin = file.read(1024)
    text = begin.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    if not text:
        return "is empty"
    if re.match(rb"<!doctype html|<html|<head|<\?xml[^>]*>\s*<(?:!doctype html|html|error)", text):
        return "is a web page instead of the published file"
    if re.match(rb'{\s*"(?:error|message|detail)"', text):
        return "is an error message in JSON instead of the published file"
    return None


async def _fetch(address: str, part: Path, version: Path, advice: str) -> None:
    """Download a file, or the rest of it; after an outage try again, from where it stopped."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=IDLE, sock_read=IDLE)
    for pause in (*PAUSES, None):
        try:
            async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False, trust_env=True) as session:
                await _request_rest(session, address, part, version, advice)
            return
        except (aiohttp.ClientError, TimeoutError, UnicodeError) as error:  # the last: an impossible name of a host
            kept = f", {part.stat().st_size:,} bytes are kept" if part.exists() else ""
            reason = str(error) or "no answer in time"
            if pause is None:
                raise DataError(
                    f"{address}: cannot be fetched ({reason}){kept}; try again later, or {advice}"
                ) from None
            log.warning("%s: %s; trying again in %d s", address, reason, pause)
            await asyncio.sleep(pause)
        except OSError as error:  # a full disk
            raise located(error, error.filename or part) from error


async def _request_rest(session: "ClientSession", address: str, part: Path, version: Path, advice: str) -> None:
    """Append the rest of a file to `part`, or write it anew if the server has another version."""
    received = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    known = version.read_text(encoding="utf-8") if version.exists() else ""
    if received:
        headers |= {"Range": f"bytes={received}-"} | ({"If-Range": known} if known else {})
    async with session.get(address, headers=headers) as answer:
        if answer.status == 429 or answer.status >= 500:
            answer.raise_for_status()  # tried again
        tag = answer.headers.get("ETag", "").strip()
        sent_version = tag if tag.startswith('"') else answer.headers.get("Last-Modified", "")
        sent = answer.headers.get("Content-Range", "")
        if received and answer.status == 416 and sent == f"bytes */{received}":
            return  # there is no rest
        is_rest = answer.status == 206 and bool(received) and (not sent or sent.startswith(f"bytes {received}-"))
        is_rest = is_rest and sent_version in ("", known or sent_version)
        if received and not is_rest and answer.status in (206, 416):  # another version, or another part
            part.unlink()
            await _request_rest(session, address, part, version, advice)
            return
        if not (is_rest or answer.status == 200) or answer.headers.get("Content-Encoding", "identity") != "identity":
            raise DataError(f"{address}: the server answered {answer.status} {answer.reason}; {advice}")
        if not is_rest:
            received = 0
            part.unlink(missing_ok=True)
            version.unlink(missing_ok=True)
            if sent_version:
                write_text(version, sent_version)
        size = None if answer.content_length is None else received + answer.content_length
        with part.open("ab") as file, progress(part.stem, size, "byte", received, keep=False) as bar:
            async for block in answer.content.iter_chunked(BLOCK):
                file.write(block)
                bar.advance(len(block))


def cure_of(path: Path, if_missing: str) -> str:
    """Return advice on a file: `if_missing` for a missing file, fault and cure for a damaged one, otherwise ""."""
    if not path.is_file():
        return if_missing
    problem = content_problem(path)
    return f"{problem}; {FETCH_AGAIN}" if problem else ""
