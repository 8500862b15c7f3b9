"""Download and verify published files.

Downloads published files over HTTP, resumes after interruptions, and verifies each file before it is used.
"""

import asyncio
import codecs
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import is_zipfile

from data_tools.cli import progress
from data_tools.documents.json_text import checksum_of, sha256_of
from data_tools.errors import DataError, KitError, located
from data_tools.files import short_name, sync, write_text
from data_tools.locks import lock_of

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

IDLE = 60  # seconds without a byte after which a connection is given up
MAX_BYTES = 64 << 30  # the largest published file of a known size, the frames of Clotho-Moment, has 20.8 GB
BLOCK = 1 << 20
FETCH_AGAIN = "delete this file, then lbar download RECIPE fetches it again"

log = logging.getLogger(__name__)


def download(
    address: str, path: Path, sha256: str = "", require_usable: Callable[[Path], object] | None = None
) -> bool:
    """Fetch a file unless it is present; return whether it was fetched.

    Args:
        address: Address of the file, http or https.
        path: Target path. Without a known checksum, `<path>.sha256` stores the checksum of the fetched file, in the
            form of sha256sum.
        sha256: The known first digits of the file's checksum, or "md5:" and its MD5. With them, an interrupted download
            is resumed (`<path>.part`) if the server supports it. Without them, it is resumed only if the server also
            names the version of the file (ETag or Last-Modified), because the published file may have changed.
        require_usable: Function that opens a file without a known checksum; raises KitError if it is unusable.
    Raises DataError for an address that cannot be reached, another checksum, and a file that does not open. Also for an
        answer that is empty, a web page, a part, compressed, or of more than MAX_BYTES.

    An earlier file at the path is not changed, even if it is damaged: it may be the user's own work. Only an empty file
    or a web page is replaced.
    """
    if path.exists() and not content_problem(path):
        hint = "delete this file, and the same command fetches it again"
        _require_published(path, path, hint, address, sha256, require_usable)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{short_name(path.name)}.part")
    with lock_of(path):
        version = None if sha256 else part.with_name(f"{part.name}.version")
        if version and not version.exists():
            part.unlink(missing_ok=True)
        asyncio.run(_fetch(address, path, part, version))
        try:
            hint = f"open the address in a browser, and put the file at {path}"
            _require_published(part, address, hint, address, sha256, require_usable)
        except KitError:
            _delete_part(part, version)
            raise
        sync(part)
        _checksum_path(path).unlink(missing_ok=True)
        part.replace(path)
        if version:
            write_text(_checksum_path(path), f"{sha256_of(path)}  {path.name}\n")
            version.unlink(missing_ok=True)
    return True


def _delete_part(part: Path, version: Path | None) -> None:
    """Delete an unfinished download, and the small file that stores its version (None: no such file)."""
    part.unlink(missing_ok=True)
    if version:
        version.unlink(missing_ok=True)


def _checksum_path(path: Path) -> Path:
    """Return the path of the .sha256 file that stores the checksum of the downloaded file `path`."""
    return path.with_name(f"{short_name(path.name)}.sha256")


def _require_published(
    path: Path, file_name: object, hint: str, address: str, sha256: str, require_usable: Callable[[Path], object] | None
) -> None:
    """Raise DataError for a damaged file, a wrong checksum or a wrong kind. file_name, hint: For the message."""
    kind, digits = ("md5", sha256[4:]) if sha256.startswith("md5:") else ("sha256", sha256)
    if digits and not (actual := checksum_of(path, kind)).startswith(digits):
        raise DataError(
            f"{path}: the {kind} of this file begins with {actual[: len(digits)]}, but the {kind} of the file at "
            f"{address} begins with {digits}; delete this file and download it again"
        )
    if problem := content_problem(path) or file_problem(path):
        raise DataError(f"{file_name} {problem}; {hint}")
    if require_usable is None or sha256:
        return
    try:
        require_usable(path)
    except KitError:
        raise DataError(f"{file_name} is damaged or not a checkpoint of tensors; {hint}") from None


def content_problem(path: Path) -> str | None:
    """Describe why a download cannot be the published file, such as "is a web page"; None for any other file.

    Detected are empty files, web pages, and error messages in JSON.
    """
    with path.open("rb") as file:
        begin = file.read(1024)
    if not begin:
        return "is empty (0 bytes)"
    text = begin.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    marks = (b"<!doctype html", b"<html", b"<head")
    if text.startswith(marks) or (text.startswith(b"<") and any(mark in text for mark in marks)):
        return "is a web page instead of the published file"
    return (
        "is an error message in JSON instead of the published file"
        if re.match(rb'{\s*"(?:error|message|detail)"', text)
        else None
    )


def file_problem(path: Path) -> str | None:
    """Describe the damage of a downloaded file, such as "is cut short", if simple checks find any.

    Returns None for a file without such damage.
    """
    with path.open("rb") as file:
        begin = file.read(4)
    if begin.startswith(b"\x1f\x8b") and not path.name.removesuffix(".part").endswith((".gz", ".tgz")):
        return "is compressed by gzip, although its name does not end in .gz"
    if begin == b"PK\x03\x04" and not is_zipfile(path):
        return "is cut short: the end of the zip archive is missing"
    checksum_file = _checksum_path(path)
    if checksum_file.is_file() and not checksum_file.read_text(encoding="utf-8", errors="replace").startswith(
        sha256_of(path)
    ):
        return f"is not the downloaded file (its checksum differs from the one in {checksum_file.name})"
    return None


async def _fetch(address: str, path: Path, part: Path, version: Path | None) -> None:
    """Download a file, or the rest of a file that was received in part. part: The part received so far.

    version: Path of a small file that stores the server's identifier of the version of `part`, such as an ETag. None if
    the checksum of the whole file is known, since the identifier is then not needed.
    """
    import aiohttp

    advice = f"download {address} on another machine, and put it at {path}"
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=IDLE, sock_read=IDLE)
    try:
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
            received = part.stat().st_size if part.exists() else 0
            if received and not await _request_rest(session, address, part, received, version, advice):
                _delete_part(part, version)  # the published file has changed
                received = 0
            if not received:
                await _request_rest(session, address, part, 0, version, advice)
    except (aiohttp.ClientError, TimeoutError, UnicodeError) as error:  # the last: a name of a host that cannot be
        fault = f"{address} cannot be fetched"
        if part.exists():
            fault = f"the download of {address} stopped after {part.stat().st_size:,} bytes, which are kept"
        reason = "the server did not answer in time" if isinstance(error, TimeoutError) else str(error)
        raise DataError(f"{fault} ({reason}); try again later, or {advice}") from None
    except OSError as error:  # a full disk
        raise located(error, error.filename or path) from error


async def _request_rest(
    session: "ClientSession", address: str, part: Path, received: int, version: Path | None, advice: str
) -> bool:
    """Download the rest of a file; return False if the `received` bytes are of another version than the server's file.

    Raises DataError for an error status, a compressed answer, and a part of the file that was not requested.
    """
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={received}-"} if received else {})
    known = version.read_text(encoding="utf-8") if received and version else ""
    if known:  # the server then sends all bytes of another version
        headers["If-Range"] = known
    async with session.get(address, headers=headers) as answer:
        sent_version = _version_of(answer)
        if known and answer.status in (206, 416) and sent_version not in ("", known):
            return False  # the server ignores If-Range
        if received and answer.status == 416:
            return answer.headers.get("Content-Range") == f"bytes */{received}"  # there is no rest
        if received and answer.status == 200:  # the server does not support resuming
            part.unlink()
            received = 0
        elif answer.status != (206 if received else 200):
            unasked = ", which is a part of the file that was not requested" if answer.status == 206 else ""
            raise DataError(f"{address}: the server answered {answer.status} {answer.reason}{unasked}; {advice}")
        if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
            raise DataError(f"{address}: the server sends the file in an unexpected encoding ({encoding}); {advice}")
        sent = answer.headers.get("Content-Range", "")
        if received and sent and not sent.startswith(f"bytes {received}-"):
            raise DataError(f"{address}: the server sent the wrong part of the file ({sent}); {advice}")
        if version and not received:
            version.unlink(missing_ok=True)
            if sent_version:
                write_text(version, sent_version)
        await _append_answer(answer, part, received, address)
        return True


def _version_of(answer: "ClientResponse") -> str:
    """Return the server's identifier of a file's version: its strong ETag, else its Last-Modified header; or ""."""
    tag = answer.headers.get("ETag", "").strip()
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified", "")


async def _append_answer(answer: "ClientResponse", part: Path, received: int, address: str) -> None:
    """Append a server's answer to a file, and show progress. Raises DataError for more bytes than are allowed."""
    announced = answer.content_length
    size = None if announced is None else received + announced
    if size is not None and size > MAX_BYTES:
        raise DataError(
            f"{address}: the file has {size:,} bytes, more than the maximum of {MAX_BYTES:,}, so it is not the "
            "published one; try again later"
        )
    with (
        part.open("ab") as file,
        progress(part.stem, size, "byte", received, keep=False) as bar,
    ):
        async for block in answer.content.iter_chunked(BLOCK):
            file.write(block)
            bar.advance(len(block))
            if file.tell() > (size or MAX_BYTES):
                limit = f"the announced {size:,} bytes" if size else f"the maximum of {MAX_BYTES:,} bytes"
                raise DataError(
                    f"{address}: the server sends more than {limit}, not the published file; try again later"
                )


def cure_of(path: Path, if_missing: str) -> str:
    """Return advice on a file: `if_missing` for a missing file, fault and cure for a damaged one, otherwise ""."""
    if not path.is_file():
        return if_missing
    problem = content_problem(path) or file_problem(path)
    return f"{problem}; {FETCH_AGAIN}" if problem else ""
