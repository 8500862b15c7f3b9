"""Problems of a file, by line, with the same words for every problem of a kind."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

SHOWN_CHARACTERS = 70  # of a text in a message

Fault = tuple[str, str]  # sentence and kind of a problem
Part = TypeVar("Part")


class Problem(NamedTuple):
    """Something wrong with a file.

    line: its number, from 1; None if it concerns no single line. sentence: the fault here. kind: the same words for
    every problem of its kind.
    """

    line: int | None
    sentence: str
    kind: str

    def __str__(self) -> str:
        return f"{'whole file' if self.line is None else f'line {self.line}'}: {self.sentence}"


class Problems(list[Problem]):
    """Problems of a file, in the order of their discovery."""

    def add(self, line: int, faults: Iterable[Fault]) -> None:
        self += [Problem(line, *fault) for fault in faults]

    def except_for(self, parsed: Iterable[Part | Problem]) -> Iterator[Part]:
        """Yield the readable parts of a file; the problems among them are added."""
        for part in parsed:
            if isinstance(part, Problem):
                self.append(part)
            else:
                yield part


def shown(text: str) -> str:
    """Text in quotes on one line, its blanks visible, cut when long."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")
