"""Read files, and write them whole or not at all.

Text is strict UTF-8. A file is written under a temporary name, synced and renamed.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any, BinaryIO

from data_tools.errors import KitError, located

ENDS_BYTES = 2**16  # at each end of a file
BLOCKS, BLOCK_BYTES = 64, 1024  # between the ends
log = logging.getLogger(__name__)


def require_file(path: Path, hint: str = "correct the path") -> None:
    """Raise KitError for a folder and for a missing file. hint: The cure for a missing file."""
    if not path.is_file():
        fault = "is a folder; name a file" if path.is_dir() else f"no such file; {hint}"
        raise KitError(f"{path}: {fault}")


def require_folder(path: Path, hint: str = "correct the path") -> None:
    """Raise KitError for a file and for a missing folder. hint: The cure for a missing folder."""
    if not path.is_dir():
        fault = "is a file; name a folder" if path.is_file() else f"no such folder; {hint}"
        raise KitError(f"{path}: {fault}")


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk of a folder, which may not exist yet."""
    return shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free


def format_size(count: float) -> str:
    """Format a number of bytes in MB or GB.

    >>> format_size(1_260_000), format_size(2.5e9)
    ('1.3 MB', '2.5 GB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def require_other(out: Path, read: Iterable[Path | None]) -> None:
    """Raise KitError if the output file `out` is one of the input files `read`."""
    for path in read:
        if path and path.exists() and out.exists() and out.samefile(path):
            raise KitError(f"{out} would overwrite the input file {path}; choose another name")


def read_text(path: Path, fallback_encoding: str | None = None) -> str:
    """Return the file's text with its original line ends, without a UTF-8 byte order mark.

    fallback_encoding: Tried if the bytes are not UTF-8 (Clotho's metadata is published in ISO-8859-1).
    Raises KitError for a missing or empty file, a folder, and other encodings.
    """
    require_file(path)
    data = path.read_bytes()
    if not data.strip():
        raise KitError(f"{path}: the file is empty; give another file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if fallback_encoding:
            return data.decode(fallback_encoding)
        line = data.count(b"\n", 0, error.start) + 1
        raise KitError(f"{path}, line {line}: not UTF-8; save it as UTF-8") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file name in the folder of `path`; rename that file to `path` if the block succeeds.

    A missing folder is created. A killed process leaves its temporary file, which remove_parts deletes. An OSError from
    writing it names path, because the temporary name would mean nothing to the reader.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise located(error, path) if error.filename in (None, str(temporary)) else error from None
    finally:
        with suppress(OSError):  # a read-only disk refuses to remove even a missing file
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`; rename it to `path`, missing or empty, if the block succeeds."""
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    try:
        temporary.mkdir()
        yield temporary
        if path.exists():
            path.rmdir()
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_path(path: Path) -> Path:
    return path.absolute().with_name(f".{_short(path)}.{get_ident()}.{os.getpid()}.part")


def _short(path: Path) -> str:
    """Return a short name for files that belong to a file whose name may have the greatest length."""
    return path.name if len(path.name) < 50 else hashlib.sha256(os.fsencode(path.name)).hexdigest()


def remove_parts(folder: Path) -> None:
    """Remove the temporary files and folders, .NAME.THREAD.PID.part, of ended processes of this machine.

    The caller must hold the folder's lock: processes of another machine that shares the folder are not visible.
    """
    for path in list(folder.rglob(".*.part")):
        process = path.suffixes[-2:-1]
        if not process or not process[0][1:].isdecimal() or _is_running(int(process[0][1:])):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing bytes; it replaces `path` after the block, if the block raises no error.

    Raises KitError if the folder of `path` is missing.
    """
    require_folder(path.parent, "make it, or correct the path")
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield file


def parse_json(text: str | bytes, where: object) -> Any:
    """Return the value in a JSON text. Raises KitError, with `where` and the line, for other text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise KitError(f"{where}{line}: not JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise KitError(f"{where}: not UTF-8; save it as UTF-8") from None


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises KitError for a missing file, and for other text."""
    return parse_json(read_text(path), path)


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, completely or not at all."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def checksum(path: Path, kind: str = "sha256") -> str:
    """Return the checksum of a file. kind: Name in hashlib. Raises OSError, with the file, if the disk fails."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, kind).hexdigest()
    except OSError as error:
        raise located(error, path) from error


def quick_checksum(path: Path) -> str:
    """Return the sha256 of a file's size, its first and last 64 KiB, and short blocks between them.

    There are about 64 blocks, or more, so that at most 64 KiB lie between two.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        parts = [(0, ENDS_BYTES), (max(0, size - ENDS_BYTES), ENDS_BYTES)]
        if size > ENDS_BYTES:
            parts += [(start, BLOCK_BYTES) for start in range(0, size, min(size // BLOCKS, ENDS_BYTES))]
        digest = hashlib.sha256(f"{size}\n".encode())
        for start, count in parts:
            file.seek(start)
            digest.update(file.read(count))
    return digest.hexdigest()


@contextmanager
def lock(file: Path, busy_message: str, wait: bool = False) -> Iterator[None]:
    """Lock a lock file for a `with` block. A process that ends, even by a kill, releases its locks; the file remains.

    Args:
        file: The lock file.
        busy_message: Message if another process has the lock.
        wait: Whether to log the message and wait, instead of raising it as KitError.
    """
    from filelock import FileLock, Timeout

    file.parent.mkdir(parents=True, exist_ok=True)
    found = FileLock(file, thread_local=False)  # a generator that holds it may be closed by another thread
    try:
        held = found.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise KitError(busy_message) from None
        log.info(busy_message)
        held = found.acquire()
    with held:
        yield


@contextmanager
def lock_of(path: Path) -> Iterator[None]:
    """Lock the file `<path>.lock` for a `with` block. Raises KitError if another process writes to `path`."""
    busy = f"{path}: another process is writing to it; wait for its end or stop it"
    whole = path.absolute()  # "." has no name
    with lock(whole.with_name(f"{_short(whole)}.lock"), busy):
        yield


def is_locked(file: Path) -> bool:
    """Return whether a process has locked the lock file now."""
    import fcntl  # of Unix

    if not file.exists():
        return False
    with file.open("rb") as opened:  # a file of another user, or on a read-only disk, can be read alone
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)  # filelock's own kind of lock
        except BlockingIOError:
            return True
    return False
