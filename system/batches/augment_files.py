"""Files that training data are changed by: tables of text, by clip and by word. Without torch."""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError
from data_tools.files import read_text, require_file
from data_tools.manifest import Clip, check_caption
from data_tools.tables import read_table
from data_tools.words import words_of

_INDEX = re.compile("[0-9]{1,9}")  # of a caption


def read_alternatives(path: Path, clips: Sequence[Clip]) -> tuple[dict[tuple[str, int], list[str]], str]:
    """By clip id and index of a caption, its alternatives in the file's order; and in words how many lines fit no clip.

    Columns clip (id, or file name), caption (index from 0), alternative; others are not looked at.
    DataError for a missing or damaged file, an index that the clip has no caption of, a name of several clips, and
    where no line fits.
    """
    by_name = _Clips(clips)
    found: dict[tuple[str, int], list[str]] = {}
    lines = fitting = 0
    for where, (name, index, alternative) in _rows(path, ["clip", "caption", "alternative"]):
        lines += 1
        if not _INDEX.fullmatch(index):
            raise DataError(f"{where}: {index[:40]!r} is no index of a caption; count a clip's captions from 0")
        check_caption(alternative, where)
        if (clip := by_name.find(name, where)) is None:
            continue
        if int(index) >= len(clip.captions):
            last = f"its captions are 0 to {len(clip.captions) - 1}" if clip.captions else "it has none"
            raise DataError(f"{where}: {name!r} has no caption {int(index)}, {last}; count from 0")
        found.setdefault((clip.id, int(index)), []).append(alternative)
        fitting += 1
    hint = "clips go by id or file name, as their manifest has them"
    return found, _fit(path, lines, fitting, "training clip", hint)


def read_synonyms(path: Path, words: Container[str]) -> tuple[dict[str, list[str]], str]:
    """By lower-case word, its synonyms in the file's order, in lower-case words without punctuation; and in words how
    many lines are of no word of the training captions.

    Columns word, synonym (one word or several); others are not looked at. words: of the training captions.
    DataError for a missing or damaged file, and where no line is of a word of these.
    """
    found: dict[str, list[str]] = {}
    lines = fitting = 0
    for where, (word, synonym) in _rows(path, ["word", "synonym"]):
        lines += 1
        if len(words_of(word)) != 1:
            raise DataError(f"{where}: {word[:40]!r} is not one word; give the synonyms of single words")
        if not words_of(synonym):
            raise DataError(f"{where}: the synonym {synonym[:40]!r} has no word; fill it in or remove the line")
        if words_of(word)[0] in words:
            found.setdefault(words_of(word)[0], []).append(" ".join(words_of(synonym)))
            fitting += 1
    return found, _fit(path, lines, fitting, "word of a training caption", "give synonyms of words that captions have")


def read_merged(path: Path, clips: Sequence[Clip]) -> tuple[dict[str, list[tuple[Clip, str]]], str]:
    """By clip id, the clips that it may be mixed with and the captions of both, a line of the file each and either way
    round; and in words how many lines are not of two training clips.

    Columns clip, other (ids, or file names), caption; others are not looked at.
    DataError for a missing or damaged file, a name of several clips, a clip with itself, and where no line fits.
    """
    by_name = _Clips(clip for clip in clips if clip.captions)
    found: dict[str, list[tuple[Clip, str]]] = {}
    lines = fitting = 0
    for where, (name, other_name, caption) in _rows(path, ["clip", "other", "caption"]):
        lines += 1
        check_caption(caption, where)
        one, other = by_name.find(name, where), by_name.find(other_name, where)
        if one is None or other is None:
            continue
        if one.id == other.id:
            raise DataError(f"{where}: {name!r} is mixed with itself; name two clips, or remove the line")
        found.setdefault(one.id, []).append((other, caption))
        found.setdefault(other.id, []).append((one, caption))
        fitting += 1
    hint = "clips go by id or file name, as their manifest has them"
    return found, _fit(path, lines, fitting, "pair of training clips", hint)


class _Clips:
    """Clips by id, else by file name."""

    def __init__(self, clips: Iterable[Clip]) -> None:
        self._by_id = {clip.id: clip for clip in clips}
        self._by_name: dict[str, list[Clip]] = {}
        for clip in self._by_id.values():
            self._by_name.setdefault(clip.file_name, []).append(clip)

    def find(self, name: str, where: str) -> Clip | None:
        """None where there is none. DataError for the file name of several."""
        if name in self._by_id:
            return self._by_id[name]
        named = self._by_name.get(name, [])
        if len(named) > 1:
            raise DataError(f"{where}: {name!r} is the file name of {named[0].id} and {named[1].id}; give the id")
        return named[0] if named else None


def _fit(path: Path, lines: int, fitting: int, what: str, hint: str) -> str:
    """How many lines fit what training has, in words. DataError for none. hint: what to do about that."""
    if not fitting:
        raise DataError(f"{path}: none of its {lines:,} lines fits a {what}; {hint}")
    others = lines - fitting
    said = f"; {others:,} fit{'s' if others == 1 else ''} no {what}" if others else ""
    return f"{path}: {lines:,} line{'' if lines == 1 else 's'}{said}"


def _rows(path: Path, columns: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Of every line of a table or of JSON lines, where it is, and these columns as text."""
    require_file(path, "correct the path, or take what names it out of the stage's augment")
    if path.suffix == ".csv":
        for line, row in read_table(path, columns):
            yield f"{path}, line {line}", [row[name] for name in columns]
    elif path.suffix == ".jsonl":
        for number, text in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
            where = f"{path}, line {number}"
            value = parse_json(text, where)
            values = [value.get(name) if isinstance(value, dict) else None for name in columns]
            for name, one in zip(columns, values, strict=True):
                if not isinstance(one, str) and type(one) is not int:
                    raise DataError(
                        f"{where}: expects an object with {', '.join(columns)}; {name} is missing, or no text"
                    )
            yield where, [str(one) for one in values]
    else:
        raise DataError(f"{path}: is read from .csv or .jsonl; give it that name")
