"""Writing a file so that nobody ever sees half of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
        os.replace(temporary, path)
    except OSError as error:
        # The temporary file's name would mean nothing to the reader.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
