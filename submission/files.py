"""Writing a file so that nobody ever sees half of it, and never over one that is read."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from data_tools.files import replacing
from submission.errors import SubmissionError


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` in a folder that is there; see data_tools.files.replacing.

    Raises OSError that names `path`, never the temporary file.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield file


def require_other(out: Path, read: Iterable[Path | None]) -> None:
    """Raises SubmissionError where what is to be written is one of the files that are read."""
    for path in read:
        if path and path.exists() and out.exists() and out.samefile(path):
            raise SubmissionError(f"{out} would be written over {path}, which is read here; give another name")
