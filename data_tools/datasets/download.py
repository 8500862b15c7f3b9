"""Published files over HTTP: resumed where they were broken off, and verified before they are used."""

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.cli import progress
from data_tools.documents.json_text import sha256_of
from data_tools.errors import DataError
from data_tools.files import sync
from data_tools.locks import lock_of

if TYPE_CHECKING:
    from aiohttp import ClientResponse

IDLE = 60  # seconds without a byte after which a connection is given up
MAX_BYTES = 20 << 30  # the largest published file, word2vec's, has 3.6 GB
BLOCK = 1 << 20

log = logging.getLogger(__name__)


def download(address: str, path: Path, sha256: str = "") -> bool:
    """Have the file that is published at an address; whether it had to be fetched.

    sha256: the first digits of the file's checksum, as many as are known. With them, what an earlier, broken-off call
    left (`<path>.part`) is gone on with where the server can; without, only the announced size is compared, and a file
    begins anew, since the published one may have changed.
    Raises DataError for an address that cannot be reached, an answer that is no such file, one of more than MAX_BYTES,
    and another checksum; the file that was there before stays as it is.
    """
    if path.exists():
        _require_checksum(path, sha256, address)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with lock_of(path):
        if not sha256:
            part.unlink(missing_ok=True)
        asyncio.run(_fetch(address, path, part))
        try:
            _require_checksum(part, sha256, address)
        except DataError:
            part.unlink()
            raise
        sync(part)
        part.replace(path)
    return True


def _require_checksum(path: Path, sha256: str, address: str) -> None:
    if sha256 and not (found := sha256_of(path)).startswith(sha256):
        raise DataError(
            f"{path}: its sha256 begins with {found[: len(sha256)]}, that of the file published at {address} with "
            f"{sha256}; delete it and download it again"
        )


async def _fetch(address: str, path: Path, part: Path) -> None:
    import aiohttp

    elsewhere = f"download {address} on another machine, and put it at {path}"
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=IDLE, sock_read=IDLE)
    try:
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
            have = part.stat().st_size if part.exists() else 0
            headers = {"Range": f"bytes={have}-"} if have else {}
            async with session.get(address, headers=headers) as answer:
                if have and answer.status in (200, 416):  # the server sends no parts, or the file is another one now
                    have = 0
                    part.unlink()
                if answer.status == 416:
                    return await _fetch(address, path, part)
                if answer.status not in (200, 206):
                    raise DataError(f"{address}: the server answered {answer.status} {answer.reason}; {elsewhere}")
                await _write(answer, part, have, address)
    except (aiohttp.ClientError, TimeoutError) as error:
        kept = f" after {part.stat().st_size:,} bytes, which are kept" if part.exists() else ""
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        raise DataError(f"{address} cannot be fetched{kept} ({reason}); try again later, or {elsewhere}") from None


async def _write(answer: "ClientResponse", part: Path, have: int, address: str) -> None:
    """Append the answer's bytes, with progress. DataError for more or fewer than announced."""
    announced = answer.content_length
    size = None if announced is None else have + announced
    if size is not None and size > MAX_BYTES:
        raise DataError(f"{address}: {size:,} bytes are more than {MAX_BYTES:,}; this is no file of the kit's")
    with (
        part.open("ab") as file,
        progress(part.stem, size, "byte", have, keep=False) as bar,
    ):
        async for block in answer.content.iter_chunked(BLOCK):
            file.write(block)
            bar.advance(len(block))
            if file.tell() > (size or MAX_BYTES):
                raise DataError(f"{address}: the server sends more than the {size or MAX_BYTES:,} bytes it may")
