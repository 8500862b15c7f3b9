"""Problems of a file by line.

Collects the problems of a file with their line numbers. All problems of a kind share a common text.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

SHOWN_CHARACTERS = 70  # of a text in a message

Fault = tuple[str, str]  # message and kind of a problem
Part = TypeVar("Part")


class Problem(NamedTuple):
    """A fault of a file.

    Attributes:
        line: Line number, from 1; None for a fault of the whole file.
        sentence: Message about the fault.
        kind: Text that all problems of the same kind share.
    """

    line: int | None
    sentence: str
    kind: str

    def __str__(self) -> str:
        """Return the problem as text, such as `line 3: the line is blank`."""
        return f"{'whole file' if self.line is None else f'line {self.line}'}: {self.sentence}"


class Problems(list[Problem]):
    """Problems of a file, in order of discovery."""

    def add(self, line: int, faults: Iterable[Fault]) -> None:
        """Add the faults of one line of the file to this list of problems."""
        self += [Problem(line, *fault) for fault in faults]

    def except_for(self, parsed: Iterable[Part | Problem]) -> Iterator[Part]:
        """Yield the items of `parsed` that are not Problems, and add those that are Problems to this list."""
        for part in parsed:
            if isinstance(part, Problem):
                self.append(part)
            else:
                yield part


def shown(text: str) -> str:
    """Return a text in quotes for a message, with its line ends as escapes, cut if it is long."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")
