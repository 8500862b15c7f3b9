"""Fetch a published data set.

Fetch a published data set's files, verify and unpack them, and write its manifest.
"""

import argparse
import asyncio
import errno
import os
import shlex
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from data_tools.cli import counted, ending_in, printable
from data_tools.datasets.download import download
from data_tools.datasets.published import SETS, PublishedSet
from data_tools.errors import DataError
from data_tools.files import format_size, free_bytes, write_text
from data_tools.locks import lock_of

SEVEN_ZIP = ("7z", "7zz", "7za")  # names of the same program
TAR_GZ = ".tar.gz"  # unpacked without that program
ASKED_SECONDS = 20  # for the sizes of all files


def get(published: PublishedSet, folder: Path, mirror: str | None = None) -> None:
    """Fetch all files of a data set into a folder, verify and unpack them. mirror: Address of copies of the files.

    Finished files and archives are skipped. A mirror is a folder that has all files; it is used in place of the
    published addresses. Raises DataError for a file that cannot be fetched or does not have its published checksum, and
    for an archive that cannot be unpacked.
    """
    archives = {file.archive: None for file in published.files if file.archive}
    packed = [archive for archive in archives if not is_unpacked(folder, archive)]
    if any(not archive.endswith(TAR_GZ) for archive in packed):
        seven_zip()  # before an hour of downloads
    if not hasattr(tarfile, "data_filter") and any(archive.endswith(TAR_GZ) for archive in packed):
        raise DataError(f"{packed[0]} needs Python 3.11.4 or newer to be unpacked safely; use a newer Python")
    for file in published.files:
        if file.archive and is_unpacked(folder, file.archive):
            print(
                f"{folder / file.name}: is unpacked already; delete {folder / file.archive}.unpacked to unpack it again"
            )
            continue
        fetched = download(file.address_at(mirror), folder / file.name, f"md5:{file.md5}" if file.md5 else "")
        print(f"{folder / file.name}: {'fetched' if fetched else 'is already present'}")
    for archive in archives:
        with lock_of(folder / archive):
            if not is_unpacked(folder, archive):
                unpack(folder, archive)


def seven_zip() -> str:
    """Return the path of the program 7z, which unpacks 7z and zip archives. Raises DataError if it is missing."""
    found = next((path for name in SEVEN_ZIP if (path := shutil.which(name))), None)
    if found is None:
        raise DataError("archives need the program 7z, which is not installed; install 7-Zip (apt install 7zip)")
    return found


def is_unpacked(folder: Path, archive: str) -> bool:
    """Return whether an archive was unpacked into `folder`, and all of its top-level files and folders are present."""
    done = folder / f"{archive}.unpacked"
    return done.is_file() and all((folder / name).exists() for name in done.read_text(encoding="utf-8").splitlines())


def unpack(folder: Path, name: str) -> None:
    """Unpack an archive into the data set's folder, without changing existing files.

    The caller must hold the lock of the archive (lock_of). Files are first unpacked into a hidden folder. Then
    `<archive>.moving` is written, and the files are moved. When all are in place, `<archive>.unpacked` is written; it
    lists the top level of the archive. If a call is killed while it moves files, the next call moves the rest.
    Raises DataError for a damaged archive, and if the data set's folder has a file of the same name that this function
    did not unpack.
    """
    archive, done, moving = (folder / f"{name}{suffix}" for suffix in ("", ".unpacked", ".moving"))
    temporary = folder / f".{name}.part"
    known = set(done.read_text(encoding="utf-8").splitlines()) if done.is_file() else set()
    if not moving.exists():
        _extract(archive, temporary)
        names = sorted(path.name for path in temporary.iterdir())
        foreign = [entry for entry in names if (folder / entry).exists() and entry not in known]
        if foreign:
            shutil.rmtree(temporary)
            raise DataError(
                f"{folder / foreign[0]} exists, but was not unpacked by this command; move it away; or, if all of "
                f"{', '.join(names)} are complete, write these names, one per line, into {done}"
            )
        write_text(moving, "".join(f"{entry}\n" for entry in names))
    for entry in temporary.iterdir() if temporary.exists() else ():
        if not (folder / entry.name).exists():
            entry.replace(folder / entry.name)
    shutil.rmtree(temporary, ignore_errors=True)
    moving.replace(done)
    print(f"{archive}: unpacked")


def _extract(archive: Path, temporary: Path) -> None:
    """Unpack an archive into a new folder. Raises DataError for a damaged or empty archive, and for a full disk."""
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    fault = _untar(archive, temporary) if archive.name.endswith(TAR_GZ) else _un7zip(archive, temporary)
    if fault or not any(temporary.iterdir()):
        shutil.rmtree(temporary)
        files = f"all files {archive.with_suffix('')}.*" if archive.suffix == ".001" else "it"
        cure = "free disk space, then run the command again"
        if os.strerror(errno.ENOSPC) not in fault:
            cure = f"delete {files}, and the same command fetches {'them' if files != 'it' else 'it'} again"
        raise DataError(f"{archive} cannot be unpacked ({printable(fault) or 'it is empty'}); {cure}")


def _untar(archive: Path, folder: Path) -> str:
    """Unpack a .tar.gz file into a folder; return an error message, or "" after success."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        return str(error) or type(error).__name__
    return ""


def _un7zip(archive: Path, folder: Path) -> str:
    """Unpack a 7z or zip file into a folder; return the first error message of the program 7z, or "" after success."""
    command = [seven_zip(), "x", "-y", "-bd", f"-o{folder}", str(archive)]
    finished = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if not finished.returncode:
        return ""
    lines = (finished.stderr + finished.stdout).splitlines()
    if full := [line for line in lines if os.strerror(errno.ENOSPC) in line]:
        return full[0].strip()
    errors = [line.strip() for line in lines if "ERROR" in line.upper()]
    return errors[0] if errors else f"exit status {finished.returncode}"


async def _file_sizes(addresses: Sequence[str]) -> list[int | None]:
    """Ask servers for the sizes of the files at `addresses`, in bytes; None for a server that does not answer."""
    import aiohttp

    async def size(session: aiohttp.ClientSession, address: str) -> int | None:
        """Return the size in bytes of the file at an address; None without an answer."""
        try:
            async with session.head(address, allow_redirects=True) as answer:
                return answer.content_length if answer.ok else None
        except (aiohttp.ClientError, TimeoutError, ValueError):  # the last: an impossible address
            return None

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASKED_SECONDS)) as session:
        return list(await asyncio.gather(*(size(session, address) for address in addresses)))


def _print_plan(name: str, published: PublishedSet, folder: Path, mirror: str | None) -> None:
    """Print the licence, the files to fetch with sizes, and the disk space. Raises DataError for a too small disk."""
    print(f"{name}: {published.licence}")
    print(f"  size as published: {published.size}")
    addresses = [file.address_at(mirror) for file in published.files]
    sizes = asyncio.run(_file_sizes(addresses)) if addresses else []
    for file, address, size in zip(published.files, addresses, sizes, strict=True):
        size_text = "size unknown" if size is None else format_size(size)
        print(f"  {address}  {size_text}, {f'md5 {file.md5}' if file.md5 else 'no published checksum'}")
    needed, free = _bytes_needed(published, sizes, folder), free_bytes(folder)
    if addresses:
        unknown = ", and more for the files of unknown size" if None in sizes else ""
        print(f"  disk space for {folder}/: {format_size(needed)} needed{unknown}; {format_size(free)} free")
    if needed > free:
        raise DataError(
            f"the disk of {folder}/ has {format_size(free)} free, and about {format_size(needed)} are needed; "
            "free disk space, or name another --folder"
        )


def _bytes_needed(published: PublishedSet, sizes: Sequence[int | None], folder: Path) -> float:
    """Return an estimate of the bytes still to be written for a data set: downloads, and the content of archives.

    sizes: Bytes of each file; None if unknown, which counts as 0.
    """
    needed = 0.0
    for file, size in zip(published.files, sizes, strict=True):
        archive = file.archive
        if archive and (is_unpacked(folder, archive) or (folder / f"{archive}.moving").exists()):
            continue
        present = _bytes_in(folder / file.name) + _bytes_in(folder / f"{file.name}.part")
        needed += max(0, (size or 0) - present) + (published.content * (size or 0) if archive else 0)
        needed -= _bytes_in(folder / f".{file.name}.part")  # a half unpacked archive, which is deleted first
    return max(0.0, needed)


def _bytes_in(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if it is missing."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `get` to its parser."""
    add = parser.add_argument
    add("name", choices=list(SETS), help="the data set")
    add("--folder", type=Path, help="folder for the files of the data set (default: data/NAME)")
    add("--out", type=ending_in(".jsonl"), help="the manifest to write (default: data/NAME.jsonl)")
    add("--mirror", metavar="URL", help="address of a folder with the same files (default: the published addresses)")
    add("--dry-run", action="store_true", help="only print the licence, the files to fetch, and the steps after that")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `get`: fetch a published data set, and make its manifest; return the exit status."""
    published = SETS[arguments.name]
    folder = arguments.folder or Path("data") / arguments.name
    manifest = arguments.out or Path("data") / f"{arguments.name}.jsonl"
    _print_plan(arguments.name, published, folder, arguments.mirror)
    paths = {"folder": folder, "manifest": manifest, "stem": manifest.with_suffix("")}
    names = {name: shlex.quote(str(path)) for name, path in paths.items()}
    makes = [command.format(**names) for command in published.make]
    steps = [step.format(**names) for step in published.steps]
    if arguments.dry_run:
        steps = [f"lbar data {command}" for command in makes] + steps
    else:
        manifest.parent.mkdir(parents=True, exist_ok=True)  # before an hour of downloads
        get(published, folder, arguments.mirror)
        for command in makes:
            if status := _make_manifest(command):
                return status
    if steps:
        print("then:" if arguments.dry_run else f"{counted(len(steps), 'step')} to do by hand:")
        print(*(f"  {number}. {step}" for number, step in enumerate(steps, 1)), sep="\n")
    return 0


def _make_manifest(command: str) -> int:
    """Run a command of data_tools that makes a manifest; return its exit status."""
    from data_tools.__main__ import main

    return main(shlex.split(command), inside=True)
