"""Writing a file so that nobody ever sees half of it, and never over one that is read."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from data_tools.files import sync
from submission.errors import SubmissionError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; it takes the name `path` when the block ends without an error.

    On any error the temporary file is removed and what stood at `path` before still stands.
    Raises OSError that names `path`, never the temporary file.
    """
    temporary = path.parent / f".{os.getpid()}{path.suffix}.part"
    try:
        with open(temporary, "wb") as file:
            yield file
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        # The temporary file's name would mean nothing to the reader.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def require_other(out: Path, read: Iterable[Path | None]) -> None:
    """Raises SubmissionError where what is to be written is one of the files that are read."""
    for path in read:
        if path and path.exists() and out.exists() and out.samefile(path):
            raise SubmissionError(f"{out} would be written over {path}, which is read here; give another name")
