"""Text and tables in, whole files out: strict UTF-8 and CSV, a temporary name and renaming, locks."""

import csv
import hashlib
import io
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from data_tools.errors import IS_FILE, IS_FOLDER, DataError

MAX_DIGITS = 9  # of the number of a column
MAX_SHOWN = 300  # characters of a list of names
MAX_NAME = 255  # bytes of a file's name, on all common file systems
MAX_ROWS = 10  # faulty rows that a message names
Quoting = Literal["csv", "none"]
_QUOTINGS: dict[Quoting, Any] = {"csv": csv.QUOTE_MINIMAL, "none": csv.QUOTE_NONE}
_EMPTY_OR_DOTS = re.compile(r"/\.{0,2}(?:/|$)")  # a part of a path that has no name
_in_use: set[Path] = set()  # temporary files and folders of this process
log = logging.getLogger(__name__)


def require_file(path: Path, hint: str = "correct the path") -> None:
    """Raises DataError for a folder, and where there is nothing. hint: what to do about the latter."""
    if path.is_dir():
        raise DataError(f"{path}: {IS_FOLDER}")
    if not path.exists():
        raise DataError(f"{path}: no such file; {hint}")


def require_folder(path: Path, hint: str = "correct the path") -> None:
    """Raises DataError for a file, and where there is nothing. hint: what to do about the latter."""
    if path.is_file():
        raise DataError(f"{path}: {IS_FILE}")
    if not path.exists():
        raise DataError(f"{path}: no such folder; {hint}")


def absolute(path: str | os.PathLike[str]) -> str:
    """The path from the root on, without "..", which leads where the system goes: behind a link, to above its target.

    >>> absolute("/data/./clotho/a.wav"), absolute("/no_link/../data/a.wav")
    ('/data/clotho/a.wav', '/data/a.wav')
    """
    text = os.fspath(path)
    if text.startswith("/") and not _EMPTY_OR_DOTS.search(text):
        return text  # as most are, a million of them in a manifest
    whole = Path(path).absolute()
    if os.pardir in whole.parts and "\0" not in str(whole):  # which leads nowhere
        last = "" if whole.name == os.pardir else whole.name
        whole = Path(os.path.realpath(whole.parent if last else whole), last)
    return str(whole)


def require_other(out: Path, read: Iterable[Path | None]) -> None:
    """Raises DataError where what is to be written is one of the files that are read."""
    for path in read:
        if path and path.exists() and out.exists() and out.samefile(path):
            raise DataError(f"{out} would be written over {path}, which is read here; give another name")


def read_text(path: Path, fallback_encoding: str | None = None) -> str:
    """The file's text, line ends as they are; a UTF-8 byte order mark is not part of it.

    fallback_encoding: tried when the bytes are not UTF-8 (Clotho's metadata is published in ISO-8859-1).
    Raises DataError for a missing or empty file, a folder, NUL, and other encodings.
    """
    require_file(path)
    data = path.read_bytes()
    if not data.strip():
        raise DataError(f"{path}: the file is empty")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise DataError(f"{path}, line {line}: not UTF-8, but with NUL characters, as UTF-16 has; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if fallback_encoding:
            return data.decode(fallback_encoding)
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8") from None


def read_table(
    path: Path,
    columns: Iterable[str],
    fallback_encoding: str | None = None,
    delimiter: str = ",",
    quoting: Quoting = "csv",
    hint: str = "",
) -> list[tuple[int, dict[str, str]]]:
    """Rows of a table with a header: (number of the row's first line, values by column), text verbatim.

    Args:
        columns: the required ones; others are read too.
        quoting: "csv" is RFC 4180. "none" takes a quote as text.
        hint: ends the message about broken quotes.

    Lines that a quote at the start of a cell swallowed are rows again, their quotes text. A warning names them.
    Raises DataError for missing or doubled columns, no rows, broken quotes, blank lines and rows of another length.
    The message names the first MAX_ROWS blank lines and rows of another length, and counts all.
    """
    records = _records(path, read_text(path, fallback_encoding), delimiter, quoting, hint)
    _, header, lines = next(records)
    if len(lines) > 1:
        problem = f"a quote opens a column's name and closes on line {len(lines)}"
        raise DataError(f"{path}, line 1: {problem}; write the names on one line")
    _check_header(path, header, columns)
    rows: list[tuple[int, list[str]]] = []
    swallowing = []
    for line, values, lines in records:
        if not holds_rows(lines, values, delimiter, len(header)):
            rows.append((line, values))
        elif swallowed := swallowed_rows(lines, delimiter, len(header)):
            swallowing.append(line)
            rows += enumerate(swallowed, line)
        else:
            problem = f"a quoted cell goes on to line {line + len(lines) - 1}, over lines that begin or end as rows do"
            raise DataError(f"{path}, line {line}: {problem}; {_quoting_cure(hint)}, or write the cell on one line")
    _require_width(path, header, rows, delimiter)
    if not rows:
        raise DataError(f"{path}: a header and no rows")
    if swallowing:
        message = "%s, line %s: a quote opens a cell and closes some rows later; read as text, each line as a row (%d)"
        log.warning(message, path, shortened(map(str, swallowing)), len(swallowing))
    return [(line, dict(zip(header, values, strict=True))) for line, values in rows]


def _records(
    path: Path, text: str, delimiter: str, quoting: Quoting, hint: str
) -> Iterator[tuple[int, list[str], list[str]]]:
    """(first line, values, text of the lines) of every record of a table, its header first."""
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=_QUOTINGS[quoting])
    while (start := reader.line_num) < len(lines):
        try:
            values = next(reader)
        except csv.Error as error:
            problem = f"not a CSV table ({error}); {_quoting_cure(hint)}"
            raise DataError(f"{path}, line {start + 1}: {problem}") from None
        yield start + 1, values, lines[start : reader.line_num]


def _quoting_cure(hint: str) -> str:
    return f'write a quote that is text twice, in a quoted cell ("""Stop"" he says"){hint}'


def swallowed_rows(lines: Sequence[str], delimiter: str, width: int) -> list[list[str]]:
    """Rows that a quote at the start of a cell swallowed: the lines of one record, if each has the table's form.

    Args:
        lines: of one record. width: number of the table's columns.
    Returns: values of each line, quotes as text. [] for a record of one line and for lines of another form. Also []
    if a doubled quote shows that a program quoted the cell.

    >>> swallowed_rows(['a.wav,"Stop\\n', 'b.wav,A dog\\n', 'c.wav,go"\\n'], ",", 2)
    [['a.wav', '"Stop'], ['b.wav', 'A dog'], ['c.wav', 'go"']]
    """
    if len(lines) < 2 or width < 2 or any('""' in line for line in lines):
        return []
    rows = [_plain_values(line, delimiter) for line in lines]
    return rows if all(_is_row(row, width) for row in rows) else []


def holds_rows(lines: Sequence[str], values: Sequence[str], delimiter: str, width: int) -> bool:
    r"""Whether a line inside a quoted cell begins or ends with a name, as the record itself does.

    Args:
        lines, values: of one record. width: number of the table's columns.

    A name is a file with the same suffix. A number or one word counts only if the line fits all columns.

    In a table of one column every line could be a row.

    >>> holds_rows(['x.wav,"Stop, he says\n', 'y.wav,A dog, a cat\n', 'w.wav,go"\n'], ["x.wav", "..."], ",", 2)
    True
    >>> holds_rows(['x.wav,"A big crowd.\n', 'About 1,000 people"\n'], ["x.wav", "..."], ",", 2)
    False
    """
    if len(lines) < 2 or width < 2:
        return len(lines) > 1
    column, others = (0, lines[1:]) if _form(values[0]) else (-1, lines[:-1])
    form = _form(values[column])
    for line in others:
        cells = _plain_values(line, delimiter)
        is_long_enough = _is_row(cells, width) or (form[:1] == "." and len(cells) >= width)
        if form and _form(cells[column]) == form and is_long_enough:
            return True
    return False


def _form(cell: str) -> str:
    r"""Return the suffix of a file's name, or "number", or "word". Prose gives "".

    >>> [_form(cell) for cell in ("Dog barking.WAV", "12", "a_b-c", "A dog.", "Two\nlines.wav")]
    ['.wav', 'number', 'word', '', '']
    """
    if match := re.fullmatch(r"[^\n]*\S(\.[A-Za-z][A-Za-z0-9]{1,4})", cell):
        return match[1].lower()
    return "number" if cell.isdecimal() else "word" if re.fullmatch(r"[\w-]+", cell) else ""


def _plain_values(line: str, delimiter: str) -> list[str]:
    return line.rstrip("\r\n").split(delimiter)


def _is_row(values: Sequence[str], width: int) -> bool:
    """Whether values fit the table's columns, and are not prose: a comma of prose has a blank after it."""
    return len(values) == width and not any(value[:1].isspace() for value in values[1:])


def _check_header(path: Path, header: list[str], columns: Iterable[str]) -> None:
    if not header:
        raise DataError(f"{path}, line 1: the line is blank; remove it")
    if missing := [name for name in columns if name not in header]:
        raise DataError(f"{path}: no column {', '.join(missing)}; the first line has {', '.join(header)}")
    if len(set(header)) < len(header):
        raise DataError(f"{path}, line 1: a column is named twice; the first line has {', '.join(header)}")


def _require_width(path: Path, header: list[str], rows: Iterable[tuple[int, list[str]]], delimiter: str) -> None:
    """Raise DataError for blank lines and rows that do not fit the header: a line each, MAX_ROWS of them."""
    name = "a comma" if delimiter == "," else f"the delimiter {delimiter!r}"
    faults = []
    for line, values in rows:
        if len(values) == len(header):
            continue
        cure = f"quote values that hold {name}" if len(values) > len(header) else "complete the row"
        problem = (
            f"{len(values)} values for {len(header)} columns; {cure}" if values else "the line is blank; remove it"
        )
        faults.append(f"{path}, line {line}: {problem}")
    if faults:
        rest = [f"{path}: {len(faults)} such lines in all"] if len(faults) > MAX_ROWS else []
        raise DataError("\n".join(faults[:MAX_ROWS] + rest))


def shortened(names: Iterable[str]) -> str:
    """Names in one line, of at most MAX_SHOWN characters.

    >>> shortened(["a", "b"])
    'a, b'
    """
    text = ", ".join(names)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} .."


def caption_columns(path: Path, row: Mapping[str, str]) -> list[str]:
    """The names caption_1 .. caption_n of a row, in order. Raises DataError for none of them, a number left out, and
    one of more than MAX_DIGITS digits."""
    names = [name for name in row if re.fullmatch("caption_[1-9][0-9]*", name)]
    if long := [name for name in names if len(name) > len("caption_") + MAX_DIGITS]:
        problem = f"the column {long[0][:40]}.. has a number of more than {MAX_DIGITS} digits"
        raise DataError(f"{path}: {problem}; correct it")
    ordered = [f"caption_{number}" for number in range(1, len(names) + 1)]
    if not names or set(names) != set(ordered):
        raise DataError(f"{path}: expects columns caption_1, caption_2 .. without a gap; found {shortened(row)}")
    return ordered


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name in path's folder (made when missing) that becomes path when the block ends without an error.

    After the block the file stays there through a power cut. A kill leaves the temporary file: see remove_parts.
    An OSError of writing it names path: the temporary name would mean nothing to the reader.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
        _in_use.discard(temporary)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside path, which is absent or empty, that becomes path when the block ends without an error.

    What killed processes left of the same folder is removed first. An OSError names path, or the file in it.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    for other in path.parent.iterdir():
        if other.name.startswith(f".{short_name(path.name)}."):
            _remove_left(other)
    temporary = _temporary(path)
    try:
        temporary.mkdir()
        yield temporary
        for written in (*temporary.rglob("*"), temporary):
            sync(written)
        if path.exists():
            path.rmdir()
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        name = str(error.filename or path).replace(str(temporary), str(path))
        raise OSError(error.errno, error.strerror, name) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _in_use.discard(temporary)


def _temporary(path: Path) -> Path:
    """Name `.NAME.PID.part` next to path, and note it as in use."""
    temporary = path.absolute().with_name(f".{short_name(path.name)}.{os.getpid()}.part")
    _in_use.add(temporary)
    return temporary


def short_name(name: str, longest: int = MAX_NAME - len(".") - len(".1234567.part")) -> str:
    """Shorten a file's name to `longest` bytes, for the names of files next to it; the end is a hash of all of it.

    >>> short_name("clips.csv"), short_name("a" * 50, 20)
    ('clips.csv', 'aaaa160b4e433e384e05')
    """
    encoded = os.fsencode(name)
    if len(encoded) <= longest:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return encoded[: longest - len(digest)].decode(errors="ignore") + digest


def sync(path: Path) -> None:
    """Have the disk hold what was written to a file, or a folder's list of names, before anything else is done."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders, and needs no such call for them
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove_parts(folder: Path, below: bool = True) -> None:
    """Remove the temporary files and folders that killed processes left in a folder and (unless not) below it.

    Only `.NAME.PID.part` of a process that this machine does not have any more; whoever calls holds the folder's lock,
    for a process of another machine that shares the folder cannot be seen.
    """
    for path in list(folder.rglob(".*.part") if below else folder.glob(".*.part")):
        _remove_left(path)


def _remove_left(path: Path) -> None:
    """Remove the temporary file or folder of a process that is gone; leave any other one."""
    named = re.fullmatch(r"\..+\.([1-9][0-9]{0,6})\.part", path.name, re.DOTALL)
    if not named or path.absolute() in _in_use or _runs(int(named[1])):
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    """Whether another process of this number runs on this machine."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV table as Clotho's are: comma, LF, quoted where needed."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())
