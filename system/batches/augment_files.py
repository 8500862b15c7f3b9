"""Read files of caption alternatives and synonyms.

Read the files for changing training data: tables of texts, by clip or by word. Never imports torch.
"""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

from data_tools.errors import DataError
from data_tools.files import parse_json, read_text, require_file
from data_tools.manifest import Clip, check_caption
from data_tools.tables import read_table
from data_tools.words import words_of

_INDEX = re.compile("[0-9]{1,9}")  # of a caption


def read_alternatives(path: Path, clips: Sequence[Clip]) -> tuple[dict[tuple[str, int], list[str]], str]:
    """Read a file of alternative captions; return them by (clip id, caption index), and a text on how many lines fit.

    The file's columns are clip (id, or file name), caption (index from 0) and alternative.
    Returns: A dict, with a caption's alternatives in the order of the file, and a text. The text states how many lines
        the file has, and how many of them name no training clip.
    Raises: DataError for a missing or damaged file, for an index without a caption, for a file name that several clips
        have, and if no line names a training clip.
    """
    by_name = _Clips(clips)
    alternatives: dict[tuple[str, int], list[str]] = {}
    lines = fitting = 0
    for where, (name, index, alternative) in _read_rows(path, ["clip", "caption", "alternative"]):
        lines += 1
        if not _INDEX.fullmatch(index):
            raise DataError(
                f"{where}: caption index {index[:40]!r} is not a whole number; a clip's captions are numbered from 0"
            )
        check_caption(alternative, where)
        if (clip := by_name.find(name, where)) is None:
            continue
        if int(index) >= len(clip.captions):
            known = (
                f"its captions are numbered from 0 to {len(clip.captions) - 1}"
                if clip.captions
                else "it has no caption"
            )
            raise DataError(f"{where}: clip {name!r} has no caption with index {int(index)}; {known}")
        alternatives.setdefault((clip.id, int(index)), []).append(alternative)
        fitting += 1
    hint = "name each clip by its id or file name in the manifest"
    return alternatives, _describe_fitting_lines(path, lines, fitting, "training clip", hint)


def read_synonyms(path: Path, words: Container[str]) -> tuple[dict[str, list[str]], str]:
    """Read a file of synonyms; return a dict from word to synonyms, and a text with the number of lines.

    The file's columns are word and synonym (one word or several). words: The words of the training captions.
    Returns: A dict from lower-case word to synonyms, and a text. The text states how many lines the file has, and how
        many of them have a word that is missing in the training captions. Synonyms are in the file's order, in lower
        case without punctuation.
    Raises: DataError for a missing or damaged file, and if no line has a word of the training captions.
    """
    synonyms: dict[str, list[str]] = {}
    lines = fitting = 0
    for where, (word, synonym) in _read_rows(path, ["word", "synonym"]):
        lines += 1
        if len(words_of(word)) != 1:
            raise DataError(f"{where}: {word[:40]!r} is not a single word; list synonyms of single words only")
        if not words_of(synonym):
            raise DataError(f"{where}: the synonym {synonym[:40]!r} contains no word; fill it in or remove the line")
        if words_of(word)[0] in words:
            synonyms.setdefault(words_of(word)[0], []).append(" ".join(words_of(synonym)))
            fitting += 1
    return synonyms, _describe_fitting_lines(
        path, lines, fitting, "word of a training caption", "use words that occur in captions"
    )


def read_merged(path: Path, clips: Sequence[Clip]) -> tuple[dict[str, list[tuple[Clip, str]]], str]:
    """Read captions that each describe two clips; return {clip id: [(other clip, caption)]}, and a text on the lines.

    The file's columns are clip and other (ids, or file names of the two clips), and caption.
    Returns: A dict and a text. Every line is in the dict's lists of both of its clips. The text states how many lines
        the file has, and how many of them do not name two training clips.
    Raises: DataError for a missing or damaged file, for a file name that several clips have, for a line that names one
        clip twice, and if no line names two training clips.
    """
    by_name = _Clips(clip for clip in clips if clip.captions)
    merged: dict[str, list[tuple[Clip, str]]] = {}
    lines = fitting = 0
    for where, (name, other_name, caption) in _read_rows(path, ["clip", "other", "caption"]):
        lines += 1
        check_caption(caption, where)
        one, other = by_name.find(name, where), by_name.find(other_name, where)
        if one is None or other is None:
            continue
        if one.id == other.id:
            raise DataError(
                f"{where}: clip {name!r} is mixed with itself; name two different clips, or remove the line"
            )
        merged.setdefault(one.id, []).append((other, caption))
        merged.setdefault(other.id, []).append((one, caption))
        fitting += 1
    hint = "name each clip by its id or file name in the manifest"
    return merged, _describe_fitting_lines(path, lines, fitting, "pair of training clips", hint)


class _Clips:
    """Look-up of clips by id, else by file name."""

    def __init__(self, clips: Iterable[Clip]) -> None:
        """Store clips by id and by file name."""
        self._by_id = {clip.id: clip for clip in clips}
        self._by_name: dict[str, list[Clip]] = {}
        for clip in self._by_id.values():
            self._by_name.setdefault(clip.file_name, []).append(clip)

    def find(self, name: str, where: str) -> Clip | None:
        """Return the clip whose id or file name is `name`; None if no clip has it. where: File and line, for messages.

        Raises DataError if several clips have the file name.
        """
        if name in self._by_id:
            return self._by_id[name]
        named = self._by_name.get(name, [])
        if len(named) > 1:
            raise DataError(
                f"{where}: several clips have the file name {name!r} ({named[0].id}, {named[1].id}); "
                "give the clip's id instead"
            )
        return named[0] if named else None


def _describe_fitting_lines(path: Path, lines: int, fitting: int, training_item: str, cure: str) -> str:
    """Return a text with the number of a file's lines, and how many of them do not fit the training data.

    lines: Number of all lines. fitting: Number of lines that name an item of the training data. training_item: The
    thing that a line must name, such as "training clip".
    Raises: DataError if `fitting` is 0, with the advice `cure` at the end of its message.
    """
    if not fitting:
        raise DataError(f"{path}: none of its {lines:,} lines names a {training_item}; {cure}")
    others = lines - fitting
    if not others:
        return f"{path}: {lines:,} line{'' if lines == 1 else 's'}"
    return f"{path}: {lines:,} lines; {others:,} of these lines name{'s' if others == 1 else ''} no {training_item}"


def _read_rows(path: Path, columns: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the position (for messages) and the texts of the columns for each line of a .csv or .jsonl file."""
    require_file(path, "correct the path, or remove its key from the stage's augment")
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
                        f"{where}: the line must be a JSON object with {', '.join(columns)}, but {name} is missing or "
                        "not a text; correct the line"
                    )
            yield where, [str(one) for one in values]
    else:
        raise DataError(f"{path} is not a .csv or .jsonl file; rename or convert it")
