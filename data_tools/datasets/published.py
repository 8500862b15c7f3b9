"""Published data sets, as published.yaml has them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from data_tools.settings import parse_yaml

_PART = re.compile(r"(.+\.7z)\.\d{3}")


class PublishedFile(NamedTuple):
    """A published file.

    Attributes:
        address: Address of the file.
        md5: MD5 of the file; "" if it is not known.
        folder: Folder for the file in the data set's folder. An archive is always unpacked into the latter.
        file_name: Name of the file; "": the last part of the address.
    """

    address: str
    md5: str = ""
    folder: str = ""
    file_name: str = ""

    @property
    def name(self) -> str:
        """Path of the file in the data set's folder."""
        name = self.file_name or self.address.rpartition("/")[2]
        return f"{self.folder}/{name}" if self.folder else name

    @property
    def archive(self) -> str:
        """Name of the archive that the file is or belongs to, such as x.7z.001; "" for other files."""
        if part := _PART.fullmatch(self.name):
            return f"{part[1]}.001"
        return self.name if self.name.endswith((".7z", ".zip", ".tar.gz")) else ""


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
    name: PublishedSet(**facts | {"files": [PublishedFile(**file) for file in facts.get("files", ())]})
    for name, facts in parse_yaml(Path(__file__).with_suffix(".yaml").read_bytes()).items()
}
