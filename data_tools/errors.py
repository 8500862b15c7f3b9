"""Errors of the kit.

Each text is one or more lines for the user: the fault, its place, the cure.

    KitError
    ├── DataError            data, or a file, that cannot be used
    │   └── AudioError       audio that cannot be read
    ├── UnknownSizeError     system.models.costs: a model of unknown size on this machine
    └── SaidElsewhere        another process has printed the error
"""

import errno
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar


class KitError(ValueError):
    """An error of the kit: its text names the fault, its place and the cure."""


class DataError(KitError):
    """Data, or a file, that cannot be used."""


class AudioError(DataError):
    """Audio that cannot be read."""


class SaidElsewhere(KitError):
    """Another process of the same work has printed the error; this one ends without a message."""


P = ParamSpec("P")
R = TypeVar("R")
IS_FOLDER = "is a folder; name a file"
IS_FILE = "is a file; name a folder"
_REFUSED = "reading or writing is not permitted; change the permissions, or use another path"
_MESSAGES = {
    errno.ENOENT: "no such file or folder; correct the path",
    errno.EISDIR: IS_FOLDER,
    errno.ENOTDIR: IS_FILE,
    errno.EEXIST: IS_FILE,
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _REFUSED),
    errno.ENOSPC: f"{os.strerror(errno.ENOSPC)}; free disk space, then run the command again",
}


def located(error: OSError, path: object) -> OSError:
    """Return a copy of an operating system's error that names the file `path`."""
    return OSError(error.errno, error.strerror, str(path))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; for an error without text, the name of its class."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def sentences(error: BaseException) -> list[str]:
    """Format an error, one line per cause; errors that the kit does not expect include their type."""
    if isinstance(error, KitError):
        return str(error).splitlines()
    if isinstance(error, ModuleNotFoundError):
        return [
            f"the package {error.name} is not installed; set up and activate the environment as README.md describes"
        ]
    if isinstance(error, MemoryError):
        return ["this machine's memory is full; end other programs, or process less data at once"]
    if isinstance(error, OSError):
        return [sentence_of(error)]
    return [line for line in f"{type(error).__name__}: {error}".splitlines() if line]


def sentence_of(error: OSError) -> str:
    """Format an operating system's error as a message with the path and a cure."""
    name = error.filename2 or error.filename
    if name and error.errno in (errno.ENOTDIR, errno.EEXIST):  # name the file that is in the place of a folder
        name = next((parent for parent in Path(name).parents if parent.is_file()), name)
    return f"{f'{name}: ' if name else ''}{_MESSAGES.get(error.errno or 0, error.strerror or error)}"


def kit_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of the Python API: errors of the system become KitErrors with the command line's messages.

    These are errors of the operating system, of missing packages and of full memory.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the decorated function; raise its system errors as KitError."""
        try:
            return function(*args, **kwargs)
        except (OSError, ModuleNotFoundError, MemoryError) as error:
            message = "\n".join(sentences(error))
            raise KitError(message) from error

    return wrapped
