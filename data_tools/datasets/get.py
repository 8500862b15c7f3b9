"""Download, verify and unpack a published data set."""

import re
import shlex
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from data_tools.cli import ending_in
from data_tools.datasets.download import download
from data_tools.errors import KitError
from data_tools.files import lock_of, read_json, write_text
from data_tools.settings import parse_yaml

RECORDS = "https://zenodo.org/api/records"


class PublishedFile(NamedTuple):
    """A published file.

    Attributes:
        address: Address of the file.
        name: Its path in the data set's folder. An archive is always unpacked into the latter.
        md5: MD5 of the file; "" if it is not known.
    """

    address: str
    name: str
    md5: str = ""

    @property
    def archive(self) -> str:
        """Name of the archive that the file is or belongs to, such as x.7z.001; "" for other files."""
        name = re.sub(r"\.7z\.\d{3}$", ".7z.001", self.name)
        return name if name.endswith((".7z", ".001", ".zip", ".tar.gz")) else ""


def _published_file(address: str, md5: str = "", folder: str = "") -> PublishedFile:
    return PublishedFile(address, f"{folder}{address.rpartition('/')[2]}", md5)


class PublishedSet(NamedTuple):
    """A published data set; published.yaml explains its attributes."""

    licence: str
    size: str
    files: Sequence[PublishedFile] = ()
    make: Sequence[str] = ()
    steps: Sequence[str] = ()
    layout: str = ""
    record: str = ""


SETS = {
    name: PublishedSet(**facts | {"files": [_published_file(**file) for file in facts.get("files", ())]})
    for name, facts in parse_yaml(Path(__file__).with_name("published.yaml").read_bytes()).items()
}


def fetch_set(published: PublishedSet, folder: Path, mirror: str | None = None) -> None:
    """Fetch all files of a data set into a folder, verify and unpack them; finished ones are skipped.

    mirror: Address of a folder that has all files, in place of the published addresses.
    Raises KitError for a file that cannot be fetched or verified, and for an archive that cannot be unpacked.
    """
    files = published.files or record_files(published.record, folder)
    archives = dict.fromkeys(file.archive for file in files if file.archive)
    packed = [archive for archive in archives if not (folder / f"{archive}.unpacked").exists()]
    if any(not archive.endswith(".tar.gz") for archive in packed):
        seven_zip()  # before an hour of downloads
    for file in files:
        if not file.archive or file.archive in packed:
            address = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.address
            fetched = download(address, folder / file.name, f"md5:{file.md5}" if file.md5 else "")
            print(f"{folder / file.name}: {'fetched' if fetched else 'is already present'}")
    for archive in packed:
        with lock_of(folder / archive):
            unpack(folder, archive)


def record_files(record: str, folder: Path) -> list[PublishedFile]:
    """Return the files of a Zenodo record, with their MD5s, as the site's API lists them."""
    path = folder / f"zenodo_{record}.json"
    download(f"{RECORDS}/{record}", path)
    try:
        found = read_json(path)
        print(f"Zenodo record {record}: {found['metadata']['title']}")
        return [
            PublishedFile(file["links"]["self"], file["key"], file["checksum"].removeprefix("md5:"))
            for file in found["files"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise KitError(f"{path}: not the description of a Zenodo record ({error!r}); delete it to ask again") from None


def seven_zip() -> str:
    """Return the path of the program 7z, which unpacks 7z and zip archives. Raises KitError if it is missing."""
    found = next((path for name in ("7z", "7zz", "7za") if (path := shutil.which(name))), None)
    if found is None:
        raise KitError("archives need the program 7z, which is not installed; install 7-Zip (apt install 7zip)")
    return found


def unpack(folder: Path, name: str) -> None:
    """Unpack an archive into the data set's folder; NAME.unpacked then marks that its files are complete.

    Raises KitError for a damaged archive, and a full disk.
    """
    fault, archive = "", folder / name
    if name.endswith(".tar.gz"):
        try:
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
                tar.extractall(folder)
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            fault = str(error) or type(error).__name__
    else:
        command = [seven_zip(), "x", "-y", "-bd", f"-o{folder}", str(archive)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        errors = [line.strip() for line in (done.stderr + done.stdout).splitlines() if "ERROR" in line.upper()]
        fault = "; ".join(errors[:2]) or "7z failed" if done.returncode else ""
    if fault:
        raise KitError(f"{archive}: cannot be unpacked ({fault}); free disk space, or delete it to fetch it again")
    write_text(folder / f"{name}.unpacked", "")
    print(f"{archive}: unpacked")


def get(
    context: typer.Context,
    name: Literal[tuple(SETS)],  # type: ignore[valid-type]
    *,
    folder: Path | None = None,
    out: Annotated[Path | None, typer.Option(callback=ending_in(".jsonl"))] = None,
    mirror: str | None = None,
    dry_run: bool = False,
) -> None:
    """Fetch a published data set, and make its manifest.

    Args:
        name: The data set.
        folder: Folder for its files; default: data/NAME.
        out: The manifest; default: data/NAME.jsonl.
        mirror: Address of a folder with the same files.
        dry_run: Only print licence, files, and later steps.
    """
    published, folder, out = SETS[name], folder or Path("data", name), out or Path("data", f"{name}.jsonl")
    paths = {"folder": folder, "manifest": out, "stem": out.with_suffix("")}
    quoted = {key: shlex.quote(str(path)) for key, path in paths.items()}
    makes = [command.format(**quoted) for command in published.make]
    steps = [step.format(**quoted) for step in published.steps]
    print(f"{name}: {published.licence}\n  size: {published.size}")
    for file in published.files:
        print(f"  {file.address}")
    if published.record:
        print(f"  https://zenodo.org/records/{published.record}")
    if published.layout:
        print(f"  layout: {published.layout.format(**quoted)}")
    if dry_run:
        for step in [*(f"lbar data {command}" for command in makes), *steps]:
            print(f"  then: {step}")
        return
    fetch_set(published, folder, mirror)
    for command in makes:
        if status := context.find_root().command.main(shlex.split(command), standalone_mode=False, obj=True):
            raise typer.Exit(status)  # of Ctrl-C
    for step in steps:
        print(f"to do by hand: {step}")
