"""Read and write text files.

Reads strict UTF-8 text. Writes files completely or not at all, by temporary names, renaming and syncing.
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from data_tools.errors import IS_FILE, IS_FOLDER, DataError, located

ENDS_BYTES = 2**16  # at each end of a file
BLOCKS, BLOCK_BYTES = 64, 1024  # between the ends
VARIED_BYTES = 64  # different values among 4,096 bytes, which sound and compressed sound always have
MAX_NAME = 255  # bytes of a file's name, on all common file systems
log = logging.getLogger(__name__)
_in_use: set[Path] = set()  # temporary files and folders of this process


def require_file(path: Path, hint: str = "correct the path") -> None:
    """Raise DataError for a folder and for a missing file. hint: The cure for a missing file."""
    if path.is_dir():
        raise DataError(f"{path}: {IS_FOLDER}")
    if not path.exists():
        raise DataError(f"{path}: no such file; {hint}")


def require_folder(path: Path, hint: str = "correct the path") -> None:
    """Raise DataError for a file and for a missing folder. hint: The cure for a missing folder."""
    if path.is_file():
        raise DataError(f"{path}: {IS_FILE}")
    if not path.exists():
        raise DataError(f"{path}: no such folder; {hint}")


def nearest_existing(folder: Path) -> Path:
    """Return the given folder, or, if it is missing, the nearest existing folder above it."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk of a folder, which may not exist yet."""
    return shutil.disk_usage(nearest_existing(folder)).free


def format_size(count: float) -> str:
    """Format a number of bytes in MB or GB.

    >>> format_size(1_260_000), format_size(2.5e9)
    ('1.3 MB', '2.5 GB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def require_other(out: Path, read: Iterable[Path | None]) -> None:
    """Raise DataError if the output file `out` is one of the input files `read`."""
    for path in read:
        if path and path.exists() and out.exists() and out.samefile(path):
            raise DataError(f"{out} would overwrite the input file {path}; choose another name")


def read_text(path: Path, fallback_encoding: str | None = None) -> str:
    """Return the file's text with its original line ends, without a UTF-8 byte order mark.

    fallback_encoding: Tried if the bytes are not UTF-8 (Clotho's metadata is published in ISO-8859-1).
    Raises DataError for a missing or empty file, a folder, NUL, and other encodings.
    """
    require_file(path)
    data = path.read_bytes()
    if not data.strip():
        raise DataError(f"{path}: the file is empty; give another file")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 but probably UTF-16 (has NUL characters); save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if fallback_encoding:
            return data.decode(fallback_encoding)
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file name in the folder of `path`; rename that file to `path` if the block succeeds.

    A missing folder is created. After the block the file survives a power cut. A killed process leaves its temporary
    file, which remove_parts deletes. An OSError from writing it names path, because the temporary name would mean
    nothing to the reader.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise
        raise located(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)
        _in_use.discard(temporary)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`; rename it to `path` if the block succeeds.

    path must be missing or empty. Leftovers of killed processes for the same folder are removed first. An OSError names
    path, or the file in it.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    for other in path.parent.iterdir():
        if other.name.startswith(f".{short_name(path.name)}."):
            _remove_leftover(other)
    temporary = _temporary_path(path)
    try:
        temporary.mkdir()
        yield temporary
        for written in (*temporary.rglob("*"), temporary):
            sync(written)
        if path.exists():
            path.rmdir()
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        name = str(error.filename or path).replace(str(temporary), str(path))
        raise located(error, name) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _in_use.discard(temporary)


def _temporary_path(path: Path) -> Path:
    """Return the path of a temporary file next to `path`, `.NAME.PID.part`, and record that it is in use."""
    temporary = path.absolute().with_name(f".{short_name(path.name)}.{os.getpid()}.part")
    _in_use.add(temporary)
    return temporary


def short_name(name: str, longest: int = MAX_NAME - len(".") - len(".1234567.part")) -> str:
    """Shorten a file's name to `longest` bytes if it is longer; it then ends in a hash of the whole name.

    Names of files next to it, such as temporary ones, are made from the result.

    >>> short_name("clips.csv"), short_name("a" * 50, 20)
    ('clips.csv', 'aaaa160b4e433e384e05')
    """
    encoded = os.fsencode(name)
    if len(encoded) <= longest:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return encoded[: longest - len(digest)].decode(errors="ignore") + digest


def sync(path: Path) -> None:
    """Force the content of a file, or a folder's list of names, to the disk before the program continues."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove_parts(folder: Path, below: bool = True) -> None:
    """Remove the temporary files and folders that killed processes left in a folder and, if `below`, its subfolders.

    Only files and folders called .NAME.PID.part are removed, if no process PID runs on this machine any more. The
    caller must hold the folder's lock: processes of another machine that shares the folder are not visible.
    """
    for path in list(folder.rglob(".*.part") if below else folder.glob(".*.part")):
        _remove_leftover(path)


def _remove_leftover(path: Path) -> None:
    """Remove the temporary file or folder of a process that has ended; keep any other."""
    match = re.fullmatch(r"\..+\.([1-9][0-9]{0,6})\.part", path.name, re.DOTALL)
    if not match or path.absolute() in _in_use or _is_running(int(match[1])):
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Return whether another process with the number `process` runs on this machine."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing bytes; it replaces `path` after the block, if the block raises no error.

    The folder of `path` must exist.
    Raises OSError that names `path`, never the temporary file.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield file


def parse_json(text: str | bytes, where: object) -> Any:
    """Return the value in a JSON text. Raises DataError, with `where` and the line, for other text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise DataError(f"{where}{line}: not JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise DataError(f"{where}: not UTF-8; save it as UTF-8") from None


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises DataError for a missing file, and for other text."""
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
    """Return the sha256 of a file's size, its first and last 64 KiB, and 64 short blocks between them.

    If both ends are nearly constant, as in digital silence, it is the sha256 of all bytes: different files of equal
    length often have such ends in common.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        first = file.read(ENDS_BYTES)
        file.seek(max(0, size - ENDS_BYTES))
        last = file.read(ENDS_BYTES)
        inner = (
            b"".join(_block(file, size * number // BLOCKS) for number in range(BLOCKS)) if size > ENDS_BYTES else b""
        )
    if all(len(set(part[::16])) < VARIED_BYTES for part in (first, last)):
        return checksum(path)
    return hashlib.sha256(f"{size}\n".encode() + first + last + inner).hexdigest()


def _block(file: BinaryIO, start: int) -> bytes:
    file.seek(start)
    return file.read(BLOCK_BYTES)


def require_unharmed(path: Path, sha256: str | None, hint: str) -> None:
    """Raise DataError for a missing file, and for another checksum than `sha256`, if given. hint: Cure."""
    if not path.is_file():
        raise DataError(f"{path} is missing; {hint}")
    if sha256 is not None and checksum(path) != sha256:
        raise DataError(f"{path} is damaged: its checksum differs from the one noted when it was written; {hint}")


@contextmanager
def lock(file: Path, busy_message: str, wait: bool = False) -> Iterator[None]:
    """Lock a lock file for a `with` block; if another process has the lock, raise `busy_message` or, with `wait`, wait.

    A process that ends, even by a kill, releases its locks; the file remains.

    Args:
        busy_message: Message if another process has the lock; "", together with `wait`: wait without a message.
        wait: Whether to log the message and wait, instead of raising it as DataError.
    """
    release = take_lock(file)
    if release is None and not wait:
        raise DataError(busy_message)
    if release is None and busy_message:
        log.info(busy_message)
    release = release or take_lock(file, timeout=-1)
    try:
        yield
    finally:
        if release:
            release()


def take_lock(file: Path, timeout: float = 0) -> Callable[[], None] | None:
    """Lock a lock file; return a function that releases the lock, or None if it is not free within `timeout` seconds.

    timeout: Seconds to wait for the lock; negative: without limit.
    """
    from filelock import FileLock, Timeout

    file.parent.mkdir(parents=True, exist_ok=True)
    file_lock = FileLock(file, thread_local=False)  # a generator that holds it may be closed by another thread
    try:
        file_lock.acquire(timeout=timeout)
    except Timeout:
        return None
    return file_lock.release


@contextmanager
def lock_of(path: Path) -> Iterator[None]:
    """Lock the file `<path>.lock` for a `with` block. Raises DataError if another process writes to `path`."""
    file = path.with_name(short_name(path.name, MAX_NAME - len(".lock")) + ".lock")
    with lock(file, f"{path}: another process is writing to it; wait for its end or stop it"):
        yield


def is_locked(file: Path) -> bool:
    """Return whether a process has locked the lock file now."""
    if not file.exists():
        return False
    release = take_lock(file)
    if release:
        release()
    return release is None
