"""Download published files, resumed and verified."""

import codecs
import errno
import logging
import os
import re
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from data_tools.cli import progress
from data_tools.errors import KitError, first_line, located
from data_tools.files import checksum, lock_of

IDLE = 60  # seconds without a byte after which a connection is given up
PAUSES = (2, 10, 60)  # seconds before the next attempt
BLOCK = 1 << 20
FETCH_AGAIN = "delete this file, then the same command fetches it again"
_MESSAGE = re.compile(
    rb"<!doctype html|<html|<head|<\?xml[^>]*>\s*<(?:!doctype html|html|error)" rb'|{\s*"(?:error|message|detail)"'
)

log = logging.getLogger(__name__)


def download(
    address: str, path: Path, sha256: str = "", require_usable: Callable[[Path], object] | None = None
) -> bool:
    """Fetch a file unless it is present; return whether it was fetched.

    Until the file is complete and verified it is `<path>.part`. An interrupted download is resumed if the checksum is
    known: the server may have another version by now.

    Args:
        address: Address of the file, http or https.
        path: Target. A file that is there is never changed.
        sha256: First digits of the file's checksum, or "md5:" and its MD5; "" if unknown.
        require_usable: Opens a file without a known checksum; raises KitError if it is unusable.

    Raises:
        KitError: The address cannot be reached, or the file is not the published one.
    """
    if path.exists():
        if problem := _problem(path, sha256, require_usable):
            raise KitError(f"{path}: {problem}; {FETCH_AGAIN}")
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with lock_of(path):
        try:
            transfer(address, part, resume=bool(sha256))
            if problem := _problem(part, sha256, require_usable):
                part.unlink()
                raise KitError(f"{address}: {problem}")
        except KitError as error:
            advice = f"try again later, or open {address} in a browser, and put the file at {path}"
            raise KitError(f"{error}; {advice}") from None
        part.replace(path)
    return True


def _problem(path: Path, sha256: str, require_usable: Callable[[Path], object] | None) -> str | None:
    """Return why a file is not the published one."""
    kind, digits = ("md5", sha256[4:]) if sha256.startswith("md5:") else ("sha256", sha256)
    if digits and not (actual := checksum(path, kind)).startswith(digits):
        return f"its {kind} is {actual[: len(digits)]}, but {digits} is published"
    if require_usable and not digits:
        try:
            require_usable(path)
        except KitError as error:
            return content_problem(path) or f"cannot be used ({error})"
    return content_problem(path)


def content_problem(path: Path) -> str | None:
    """Return why a file cannot be the published one: empty, a web page, an error message in JSON; else None."""
    with path.open("rb") as file:
        begin = file.read(1024)
    text = begin.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    if not text:
        return "is empty"
    return "is a web page or an error message instead of the published file" if _MESSAGE.match(text) else None


def transfer(address: str, part: Path, resume: bool = False) -> None:
    """Download a file; after an outage try again.

    Args:
        address: Address of the file, http or https.
        part: Target, which is incomplete after an error.
        resume: Go on from where an earlier download stopped.

    Raises:
        KitError: The server refuses the file, or does not answer.
    """
    for pause in (*PAUSES, None):
        if not resume:
            part.unlink(missing_ok=True)
        try:
            _request_rest(address, part)
            return
        except (HTTPException, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS):
                raise located(error, part) from error
            fault = f"{address}: cannot be fetched ({first_line(error)})"
            is_refused = isinstance(error, HTTPError) and error.code < 500 and error.code != 429
            if is_refused or isinstance(error, ValueError):
                raise KitError(fault) from None
            if pause is None:
                kept = f"; {part.stat().st_size:,} bytes are kept" if resume and part.exists() else ""
                raise KitError(f"{fault}{kept}") from None
            log.warning("%s; trying again in %d s", fault, pause)
            time.sleep(pause)


def _request_rest(address: str, part: Path) -> None:
    """Append the rest of a file to `part`, or write it anew if the server sends the whole."""
    received = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={received}-"} if received else {}
    try:
        answer = urlopen(Request(address, headers=headers), timeout=IDLE)
    except HTTPError as error:
        if received and error.code == 416:
            return  # there is no rest
        raise
    with answer:
        received = received if answer.status == 206 else 0
        length = answer.headers["Content-Length"]
        size = received + int(length) if length else None
        with part.open("ab" if received else "wb") as file, progress(part.stem, size, "byte", received, False) as bar:
            while block := answer.read(BLOCK):
                file.write(block)
                bar.update(len(block))
            file.flush()
            os.fsync(file.fileno())
    if size is not None and part.stat().st_size < size:
        raise OSError(f"only {part.stat().st_size:,} of {size:,} bytes arrived")


def cure_of(path: Path, if_missing: str) -> str:
    """Return advice on a file: `if_missing` for a missing file, fault and cure for a damaged one, otherwise ""."""
    if not path.is_file():
        return if_missing
    problem = content_problem(path)
    return f"{problem}; {FETCH_AGAIN}" if problem else ""
