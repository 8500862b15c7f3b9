"""Rows and problems of a plan.

Text lines of a plan: its rows, grouped in sections, and its problems, each with a cure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MISSING = "MISSING"  # inputs that `run` does not make
MISTAKE = "MISTAKE"  # existing data that do not fit the recipe
WARNING = "WARNING"  # a computation will probably fail or be slow


class Row(NamedTuple):
    """A row of a plan's section."""

    section: str
    name: str
    fact: str


class Problem(NamedTuple):
    """A problem of a recipe on this machine. kind: MISSING, MISTAKE or WARNING. message: The fault and its cure.

    Problems of the same kind with the same message are printed as one.
    """

    kind: str
    where: str
    message: str


@dataclass(frozen=True)
class Plan:
    """The plan of a recipe: rows by section, then all problems."""

    title: str
    rows: list[Row]
    problems: list[Problem]


def section_lines(rows: list[Row]) -> Iterator[str]:
    """Yield the text lines of every section of a plan: its title, and its rows in aligned columns."""
    for section in dict.fromkeys(row.section for row in rows):
        here = [row for row in rows if row.section == section]
        width = max(len(row.name) for row in here)
        yield section
        yield from (f"  {row.name:{width}}  {row.fact}" for row in here)


def problem_lines(problems: list[Problem]) -> list[tuple[str, str]]:
    """Return a pair for each problem: its kind, and its message on one line. Pairs are ordered by kind.

    Problems of the same kind with the same message become one pair.
    """
    where_by_message: dict[tuple[str, str], list[str]] = {}
    for kind, where, message in problems:
        where_by_message.setdefault((kind, message), []).append(where)
    lines = [
        (kind, f"{', '.join(dict.fromkeys(names))}: {message}") for (kind, message), names in where_by_message.items()
    ]
    return sorted(lines, key=lambda line: (MISSING, MISTAKE, WARNING).index(line[0]))


def problem_summary(problems: list[Problem]) -> Iterator[str]:
    """Yield the last lines of a plan: all problems, and the number of problems of each kind."""
    lines = problem_lines(problems)
    if lines:
        yield "to fix"
        yield from (f"  {kind}  {line}" for kind, line in lines)
    kinds = [kind for kind, _ in lines]
    if kinds:
        yield ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    if not {MISSING, MISTAKE}.intersection(kinds):
        yield "nothing is missing"
