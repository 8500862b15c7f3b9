"""Errors of the kit.

Each text is one or more lines for the user: the fault, its place, the cure.

    KitError
    ├── AudioError       audio that cannot be read
    └── SaidElsewhere    another process has printed the error
"""

import errno
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class KitError(ValueError):
    """An error of the kit: its text names the fault, its place and the cure."""


class AudioError(KitError):
    """Audio that cannot be read."""


class SaidElsewhere(KitError):
    """Another process of the same work has printed the error; this one ends without a message."""


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
        return [f"the package {error.name} is not installed; set up the environment as README.md describes"]
    if isinstance(error, MemoryError):
        return ["this machine's memory is full; end other programs, or process less data at once"]
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        cure = "; free disk space, then run the command again" if error.errno == errno.ENOSPC else ""
        return [f"{place}{error.strerror}{cure}"]
    return [line for line in f"{type(error).__name__}: {error}".splitlines() if line]


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
            raise KitError("\n".join(sentences(error))) from error

    return wrapped
