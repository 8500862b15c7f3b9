"""Problems of a file by line.

Problems of a file, by line; every problem of a kind has the same wording.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

SHOWN_CHARACTERS = 70  # of a text in a message

Fault = tuple[str, str]  # message and kind of a problem
Part = TypeVar("Part")


class Problem(NamedTuple):
    """A fault of a file.

    line: Its number, from 1; None for a fault of no single line. sentence: The message here. kind: Common text of every
    problem of its kind.
    """

    line: int | None
    sentence: str
    kind: str

    def __str__(self) -> str:
        return f"{'whole file' if self.line is None else f'line {self.line}'}: {self.sentence}"


class Problems(list[Problem]):
    """Problems of a file, in order of discovery."""

    def add(self, line: int, faults: Iterable[Fault]) -> None:
        """Add the faults of one line of the file to this list of problems."""
        self += [Problem(line, *fault) for fault in faults]

    def except_for(self, parsed: Iterable[Part | Problem]) -> Iterator[Part]:
        """Yield the items of `parts` that are not Problems; add those that are Problems to this list of problems."""
        for part in parsed:
            if isinstance(part, Problem):
                self.append(part)
            else:
                yield part


def shown(text: str) -> str:
    """Quote a text on one line, with its blanks visible, cut if it is long."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")
