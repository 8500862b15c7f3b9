"""JSON lines of items with ids.

Files of JSON lines, one item per line, each with an id: clips, queries, moments.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from data_tools.documents.json_text import parse_json
from data_tools.documents.strict import Strict, faults_of
from data_tools.errors import DataError
from data_tools.files import read_text, write_text

Text = Annotated[str, Field(min_length=1)]


class Line(Strict):
    """An item on a line. id: Unique in its file."""

    id: Text


Item = TypeVar("Item", bound=Line)


def read_lines(path: Path, kind: type[Item], wrong_kind_message: str) -> Iterator[tuple[int, Item]]:
    """Yield (line number, item of class `kind`) for every line of a file of JSON lines; ids may repeat.

    wrong_kind_message: Message for a file without any JSON, with the way to make a correct one.
    Raises DataError with file and line for any line that is not an item of this class.
    """
    # Only "\n" ends a line: str.splitlines would also cut at rarer line ends, which JSON text may contain.
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        raise DataError(f"{path}: {wrong_kind_message}")
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        yield number, item_of(line, kind, f"{path}, line {number}")


def item_of(line: str, kind: type[Item], where: str) -> Item:
    """Parse one line as an item of class `kind`. where: File and line for the DataError about an invalid line."""
    if not line.strip():
        raise DataError(f"{where}: the line is blank; remove it")
    try:
        return kind.model_validate(parse_json(line, where))
    except ValidationError as error:
        raise DataError(f"{where}: not a {kind.__name__.lower()} ({'; '.join(faults_of(error))})") from None


def unique_items(lines: Iterable[tuple[int, Item]], path: Path | str) -> list[Item]:
    """Return the items of (line number, item) pairs as a list. Raises DataError for a repeated id."""
    line_of: dict[str, int] = {}
    items = []
    for number, item in lines:
        if item.id in line_of:
            raise DataError(
                f"{path}, line {number}: the id {item.id!r} is already on line {line_of[item.id]}; keep one of them"
            )
        line_of[item.id] = number
        items.append(item)
    return items


def write_lines(path: Path, items: Iterable[Item], stored: Callable[[Item], Item] = lambda item: item) -> None:
    """Write items as JSON, one per line. stored: Function that converts an item before it is written.

    Raises DataError for no items and for a repeated id.
    """
    checked = unique_items(enumerate(items, 1), path)
    if not checked:
        raise DataError(f"{path}: not written, because nothing is left to write; check the input and the filters")
    write_text(path, "".join(stored(item).model_dump_json() + "\n" for item in checked))
