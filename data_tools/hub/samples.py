"""Read samples of data sets.

A sample is an audio file with its captions and other fields: a row of a parquet file, or the files of one name in an
archive.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from data_tools.audio.members import Member
from data_tools.audio.parts import AudioError
from data_tools.audio.read import AUDIO_SUFFIXES
from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError, KitError
from data_tools.files import absolute
from data_tools.hub.archives import members
from data_tools.hub.pages import members_of_column
from data_tools.tables import joined_names

if TYPE_CHECKING:
    import pyarrow.parquet

SOUND_SUFFIXES = (*AUDIO_SUFFIXES, ".caf", ".au", ".w64", ".wave", ".oga")
AUDIO_COLUMNS = ("audio", "wav", "flac", "mp3", "sound")  # names that public data sets give to the audio
log = logging.getLogger(__name__)
ROWS = 1000  # of a parquet file, read together
MAX_TEXT = 1 << 20  # bytes of a text next to an audio file


class Sample(NamedTuple):
    """An audio file with its captions and other fields.

    Attributes:
        where: File and row, for messages.
        audio: The audio file, as a member of the parquet, tar or zip file; None without audio.
        fields: Dict from the name of a column, or from the suffix of a file in an archive, to its value.
    """

    where: str
    audio: Member | None
    fields: dict[str, Any]


def samples_of(path: Path, audio: str | None) -> Iterator[Sample]:
    """Yield the samples of a parquet, tar or zip file. audio: Column or suffix of the audio; None: the usual ones.

    The usual ones are the columns in AUDIO_COLUMNS, and the suffixes of audio formats. Raises DataError for a file
    without such a column, and AudioError for a damaged file.
    """
    path = Path(absolute(path))
    return parquet_samples(path, audio) if path.suffix.lower() == ".parquet" else archived_samples(path, audio)


def archived_samples(path: Path, audio: str | None) -> Iterator[Sample]:
    """Yield an archive's samples: files of the same name up to the first dot (WebDataset). audio: Suffix of the audio.

    Each key of a .json file becomes a field; any other text file becomes a single field, named by its suffix.
    Source: github.com/webdataset/webdataset, README.
    """
    groups: dict[str, dict[str, Member]] = {}
    for member in members(path):
        folder, _, name = member.name.rpartition("/")
        if not name.startswith("."):
            stem, _, suffix = name.partition(".")
            group = groups.setdefault(f"{folder}/{stem}", {})
            if suffix.lower() in group:
                raise DataError(
                    f"{path}: the name {member.name} occurs twice (letter case does not count); rename one of the files"
                )
            group[suffix.lower()] = member
    suffixes = SOUND_SUFFIXES if audio is None else (f".{audio.lower().removeprefix('.')}",)
    for key, files in groups.items():
        where = f"{path}, {key.removeprefix('/')}"
        sounds = [suffix for suffix in files if f".{suffix}".endswith(suffixes)]
        if not sounds and "json" not in files:
            log.info("%s: skipped, because no file of this name is audio", where)
            continue
        if len(sounds) > 1:
            raise DataError(
                f"{where}: several audio files have the same name before the first dot ({', '.join(sounds)}); choose a "
                "suffix by --audio, or rename the files"
            )
        fields: dict[str, Any] = {"__key__": key.removeprefix("/"), "__shard__": path.stem}
        for suffix, member in files.items():
            if suffix not in sounds and member.size <= MAX_TEXT:
                fields |= _text_fields(suffix, member, where)
        if not sounds and "row" in fields:  # exported: published frames, or audio with an unusual suffix
            sounds = [suffix for suffix in files if suffix != "json"]
        yield Sample(where, files[sounds[0]] if sounds else None, fields)


def _text_fields(suffix: str, member: Member, where: str) -> dict[str, Any]:
    """Return fields from a file next to an audio file: {suffix: text}, or a .json file's dict; {} if it is not text."""
    try:
        text = member.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        return {}
    if suffix != "json":
        return {suffix: text}
    content = parse_json(text, f"{where}.json")
    return content if isinstance(content, dict) else {"json": content}


def parquet_samples(path: Path, audio: str | None) -> Iterator[Sample]:
    """Yield the rows of a parquet file with embedded audio. audio: Name of its column; None: one of AUDIO_COLUMNS.

    The audio is in a column of bytes, or of {bytes, path}, the format of the library `datasets`.
    Raises DataError without the package pyarrow, and for a file without such a column; AudioError for a damaged file.
    """
    with opened_parquet(path) as file, parquet_errors(path):
        yield from _parquet_rows(path, file, audio)


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Context manager that raises AudioError for damaged bytes, in place of the various errors of the parsers."""
    try:
        yield
    except KitError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise AudioError(f"{path}: damaged ({reason}); copy or download it again") from None


def _parquet_rows(path: Path, file: "pyarrow.parquet.ParquetFile", audio: str | None) -> Iterator[Sample]:
    """Yield the rows of an open parquet file as samples."""
    name = _audio_column(path, file, audio)
    columns = [file.schema.column(index).path for index in range(len(file.schema))]
    content = columns.index(f"{name}.bytes" if f"{name}.bytes" in columns else name)
    others = [one.name for one in file.schema_arrow if one.name != name and not _is_large(one.type)]
    others += [f"{name}.path"] if f"{name}.path" in columns else []
    batches = file.iter_batches(ROWS, columns=others)
    rows = (row for batch in batches for row in batch.to_pylist()) if others else iter(_empty_rows(file))
    sounds = members_of_column(path, file, content)
    for number, (fields, member) in enumerate(zip(rows, sounds, strict=True), 1):
        named = fields.pop(name, None)
        fields |= {"__shard__": path.stem, "__row__": number}
        if isinstance(named, dict) and named.get("path"):
            fields["__key__"] = PurePath(str(named["path"])).name
        yield Sample(f"{path}, row {number}", member, fields)


def _empty_rows(file: "pyarrow.parquet.ParquetFile") -> Iterable[dict[str, Any]]:
    """Return one empty dict per row of a parquet file; for files whose only column is the audio."""
    return ({} for _ in range(file.metadata.num_rows))


def opened_parquet(path: Path) -> "pyarrow.parquet.ParquetFile":
    """Open a parquet file. Raises DataError without pyarrow, and for a file that is damaged, cut or not parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise DataError(f"{path}: parquet files need pyarrow; install it: pip install pyarrow") from None
    try:
        return pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = str(error).splitlines()[0][:200]
        raise DataError(f"{path}: not a parquet file, damaged or cut ({reason}); download it again") from None


def _audio_column(path: Path, file: "pyarrow.parquet.ParquetFile", audio: str | None) -> str:
    """Return the name of a parquet file's audio column. audio: The user's choice. Raises DataError if it is missing."""
    columns = list(file.schema_arrow)
    if audio is not None and audio not in file.schema_arrow.names:
        raise DataError(f"{path}: no column {audio}; choose one of {joined_names(file.schema_arrow.names)} by --audio")
    known = [field for field in columns if field.name == audio or (audio is None and field.name in AUDIO_COLUMNS)]
    for field in known:
        if _holds_bytes(field.type):
            return str(field.name)
    names = [field.name for field in known or columns]
    if known:
        raise DataError(
            f"{path}: the column {names[0]} has no embedded audio (binary, or binary with a path), only "
            f"{known[0].type}; choose another column by --audio, or use the audio files that this column names"
        )
    raise DataError(f"{path}: no column of audio; choose one of {joined_names(names)} by --audio")


def _holds_bytes(kind: Any) -> bool:
    """Return whether a type of pyarrow is bytes, or a structure with a field `bytes` of bytes."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and _holds_bytes(kind.field(index).type)
    return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))


def _is_large(kind: Any) -> bool:
    """Return whether a type of pyarrow is bytes, or a list of numbers, which a manifest does not need."""
    import pyarrow

    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    numbers = is_list and (pyarrow.types.is_floating(kind.value_type) or pyarrow.types.is_list(kind.value_type))
    return _holds_bytes(kind) or bool(numbers)


def texts_in(value: object) -> list[str]:
    """Return the texts in a field: a single text, all texts of a list, or a number as text.

    Returns [] for None, NaN, bytes and dicts.

    >>> texts_in("a dog"), texts_in(["a", "b"]), texts_in(None), texts_in(3)
    (['a dog'], ['a', 'b'], [], ['3'])
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, Sequence):
        return [text for one in value for text in texts_in(one)]
    is_absent = value is None or value != value  # NaN differs from itself
    return [] if is_absent or isinstance(value, dict | bytes) else [json.dumps(value, default=str).strip('"')]
