"""Problems of a file, by line, with the same words for every problem of a kind."""

from typing import NamedTuple

SHOWN_CHARACTERS = 70  # of a text in a message


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


def shown(text: str) -> str:
    """Text in quotes on one line, its blanks visible, cut when long."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")
