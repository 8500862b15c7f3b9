"""Writing a file so that nobody ever sees half of it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from data_tools.files import replacing


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` in a folder that is there; see data_tools.files.replacing.

    Raises OSError that names `path`, never the temporary file.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield file
