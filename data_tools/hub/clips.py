"""Read clips of data sets."""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import NamedTuple

from pydantic import ValidationError

from data_tools.audio.excerpts import sound_of
from data_tools.audio.frames import read_frames
from data_tools.audio.members import CONTAINERS, Member, member_of, on_disk
from data_tools.audio.parts import AudioError
from data_tools.audio.read import AUDIO_SUFFIXES, FRAME_SUFFIXES, holds_frames
from data_tools.cli import progress
from data_tools.documents.strict import faults_of
from data_tools.errors import DataError
from data_tools.hub.presets import CAPTION_COLUMNS, ID_COLUMNS, Columns
from data_tools.hub.retrieval import relevant_texts
from data_tools.hub.samples import Sample, samples_of, texts_in
from data_tools.manifest import Clip, Split, audio_clip, check_caption
from data_tools.names import first_names, is_audio_name, tree_files
from data_tools.tables import joined_names

# Words in names of files and folders, as the library `datasets` reads them; `development` is Clotho's training split.
SPLIT_OF_NAME: dict[str, Split] = {
    "train": "train", "training": "train", "development": "development", "dev": "validation", "valid": "validation",
    "validation": "validation", "val": "val", "test": "test", "testing": "test", "eval": "evaluation",
    "evaluation": "evaluation",
}  # fmt: skip
MAGICS = {
    b"RIFF": ".wav", b"RF64": ".wav", b"riff": ".w64", b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3",
    b"FORM": ".aiff", b"caff": ".caf", b".snd": ".au", b"\x1aE\xdf\xa3": ".webm", b"0&\xb2u": ".wma",
    b"\xff\xf1": ".aac", b"\xff\xf9": ".aac",
}  # fmt: skip
log = logging.getLogger(__name__)

UNREAD = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar", ".7z.001")
TOGETHER = 256  # clips whose audio is opened before the next ones are read
# The name of a shard, perhaps with a checksum at its end: train-00000-of-00003-9c0e7c7d1f2a4ab1.parquet
_SHARD = re.compile(r"(?P<stem>.*?)(?P<number>\d{3,9})(?:-of-(?P<count>\d{3,9}))?(?:-[0-9a-f]{16})?(?P<rest>\D*)")


class MissingColumnError(DataError):
    """A sample without a column that the user chose, or without any column of captions."""


class Found(NamedTuple):
    """Clips of a data set. errors: A message for each sample that was left out. shards: Files that were read."""

    clips: list[Clip]
    errors: list[str]
    shards: list[Path]


def shards_in(paths: Sequence[Path], partial: bool) -> dict[Path, Path]:
    """Find all parquet, tar and zip files in `paths`; return a dict from each file to the folder that was searched.

    If `paths` contains a folder, all files in this folder and its subfolders get this folder. If `paths` contains a
    file, this file gets the folder that it is in. Raises DataError for a folder without such files and, unless
    `partial`, if the numbers in the files' names show that a file is missing.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [path / name for name in tree_files(path)] if path.is_dir() else [path]
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; correct the path")
        shards = [one for one in inside if one.suffix.lower() in CONTAINERS]
        if unread := [one for one in inside if one.name.lower().endswith(UNREAD)]:
            raise DataError(f"{unread[0]}: cannot be read in place; unpack it, or pack it as tar or zip")
        if loose := [one.name for one in inside if is_audio_name(one.name)]:
            log.warning("%s: skipped audio files outside of archives (%d): %s", path, len(loose), first_names(loose))
        if not shards:
            expected = " or ".join(CONTAINERS)
            raise DataError(f"{path}: no file that ends in {expected}; give a folder or file downloaded from the hub")
        found |= dict.fromkeys(shards, path if path.is_dir() else path.parent)
    if not partial:
        _require_all_shards(found)
    return found


def _require_all_shards(shards: Iterable[Path]) -> None:
    """Raise DataError if a number is missing in the names of shards, such as train-00001-of-00003.parquet."""
    series: dict[tuple[str, str, str], dict[int, Path]] = {}
    for path in shards:
        if found := _SHARD.fullmatch(path.name):
            key = (f"{path.parent}/{found['stem']}", found["count"] or "", found["rest"])
            series.setdefault(key, {})[int(found["number"])] = path
    for (_, count, _), numbered in series.items():
        begin = int(0 not in numbered and int(count) in numbered) if count else min(numbered)  # some count from 1
        wanted = range(begin, begin + int(count)) if count else range(begin, max(numbered) + 1)
        missing = [number for number in wanted if number not in numbered]
        if missing and (count or len(missing) < len(numbered)):  # without a count, numbers may be years
            example, names = next(iter(numbered.values())), joined_names(map(str, missing))
            raise DataError(
                f"{example}: shards of this name are missing, with the numbers {names}; fetch them, or use --partial"
            )


def read_hub(
    paths: Sequence[Path],
    columns: Columns,
    source: str,
    split: Split | None,
    partial: bool,
    given: Sequence[str] = (),
) -> Found:
    """Read the clips of parquet, tar and zip files. partial: Accept missing shards (numbered files of a data set).

    The audio is not unpacked: a clip's path states the file that contains its audio, and the position in this file.

    Args:
        paths: Files, or folders that contain them.
        columns: Names of the columns with audio, captions and names; empty fields are found by usual names.
        source: Source of the clips, for their ids.
        split: Split of all clips; None: by the names of files and folders, or else "train".
        given: Names of those options of the user that are not allowed for files written by `export`. If there are any,
            a file written by `export` raises DataError.
    From files that `export` wrote, the exported clips are read; columns, source and split are then ignored.
    Raises DataError for a missing shard, a missing column of a parquet file, and two different audio files of one name;
    AudioError for a damaged file.
    """
    shards = shards_in(paths, partial)
    texts = relevant_texts(list(shards))
    drafts: dict[str, Clip] = {}
    errors: list[str] = []
    order: dict[str, int] = {}
    for shard in texts.corpus if texts else shards:
        shard_split = split or split_of(shard, shards[shard])
        for sample in samples_of(shard, columns.audio):
            if texts:
                sample.fields["captions"] = texts.of(sample)
            if given and is_exported(sample):
                raise DataError(
                    f"--{given[0]}: {shard}, which `export` wrote, states this already; leave the option out"
                )
            try:
                clip = exported_clip(sample) if is_exported(sample) else clip_of(sample, columns, source, shard_split)
            except MissingColumnError as error:
                if shard.suffix.lower() == ".parquet":  # all of its rows have the same columns
                    raise
                errors.append(str(error))
            except DataError as error:
                errors.append(str(error))
            else:
                _add_clip(drafts, clip, sample)
                if is_exported(sample):
                    order[clip.id] = sample.fields["row"]
    clips = sorted(drafts.values(), key=lambda clip: order.get(clip.id, len(order))) if order else list(drafts.values())
    return Found(list(_with_lengths(clips, errors)), errors, list(shards))


def split_of(path: Path, folder: Path) -> Split:
    """Return the split in a file's name, or else in the name of a folder above it; "train" if no name has a split.

    folder: Folder that the user gave. Folders above it are ignored. Its own name is used only if the whole name is that
    of a split.

    >>> [split_of(Path(f"a/{name}"), Path("a")) for name in ("test-00000-of-00010.parquet", "valid_set/0.tar", "0.tar")]
    ['test', 'validation', 'train']
    """
    parts = path.relative_to(folder).parts if path.is_relative_to(folder) else (path.name,)
    words = [word for part in reversed(parts) for word in re.split(r"[^a-z]+", part.lower())]
    return next((SPLIT_OF_NAME[word] for word in [*words, folder.name.lower()] if word in SPLIT_OF_NAME), "train")


def clip_of(sample: Sample, columns: Columns, source: str, split: Split) -> Clip:
    """Make the clip of a sample: either of one row of a parquet file, or of all files of one name in an archive.

    Raises MissingColumnError for a missing column; DataError for a sample without audio and for a bad caption.
    """
    audio = _require_audio(sample)
    name = _clip_name(sample, audio, columns.id)
    suffix = _audio_suffix(sample, audio)
    file_name = name if name.lower().endswith(suffix) else f"{name}{suffix}"
    path = audio._replace(name=re.sub(r"[/\0]", "_", file_name)).path
    captions = list(dict.fromkeys(_captions_of(sample, columns)))
    for number, caption in enumerate(captions, 1):
        check_caption(caption, f"{sample.where}, caption {number}")
    return audio_clip(Path(), file_name, source, split, captions, None, path=path)


def _require_audio(sample: Sample) -> Member:
    """Return the audio of a sample. Raises DataError for a sample without audio."""
    if sample.audio is None:
        raise DataError(f"{sample.where}: has no audio; add it, or leave the sample out")
    return sample.audio


def _captions_of(sample: Sample, columns: Columns) -> list[str]:
    """Return the captions of a sample. Raises MissingColumnError for a sample without a column of captions."""
    numbered = [name for name in sample.fields if re.fullmatch(r"caption_\d+", name)]
    usual = [name for name in CAPTION_COLUMNS if name in sample.fields][:1]
    names = columns.captions or usual or sorted(numbered, key=lambda name: int(name.removeprefix("caption_")))
    shown = joined_names(name for name in sample.fields if not name.startswith("__"))
    if not shown:
        raise MissingColumnError(f"{sample.where}: has no captions, only audio; add captions, or leave the sample out")
    if not names:
        raise MissingColumnError(f"{sample.where}: no column of captions; choose some of {shown} by --caption")
    if absent := [name for name in names if name not in sample.fields]:
        raise MissingColumnError(f"{sample.where}: no column {', '.join(absent)}; choose among {shown} by --caption")
    texts = [text for name in names for text in texts_in(sample.fields[name])]
    if columns.separator is None:
        return [text.strip() for text in texts]
    return [part.strip() for text in texts for part in text.split(columns.separator) if part.strip()]


def _clip_name(sample: Sample, audio: Member, columns: Sequence[str]) -> str:
    """Return the name of a sample's clip: from its columns, or else its audio file's name, or else its row number."""
    if absent := [name for name in columns if name not in sample.fields]:
        raise MissingColumnError(
            f"{sample.where}: no column {', '.join(absent)}; choose among {joined_names(sample.fields)} by --id"
        )
    if not columns and audio.name:
        return audio.name
    usual = [name for name in ("__key__", *ID_COLUMNS) if sample.fields.get(name) is not None]
    names = columns or usual[:1]
    if not names:
        return f"{sample.fields['__shard__']}_{sample.fields['__row__']}"
    value = "_".join(text for name in names for text in texts_in(sample.fields[name])).strip()
    if not value:
        raise DataError(
            f"{sample.where}: the clip's name, from {', '.join(names)}, is empty; choose another column by --id"
        )
    return value


def _audio_suffix(sample: Sample, audio: Member) -> str:
    """Return the suffix of a sample's audio, from its file name, or else from its first bytes."""
    for name in (audio.name, str(sample.fields.get("__key__", ""))):
        suffix = PurePath(name).suffix.lower()
        if suffix in (*AUDIO_SUFFIXES, *FRAME_SUFFIXES):
            return suffix
    head = audio.read()[:8]
    usual = ".m4a" if head[4:] == b"ftyp" else ".mp3"
    return next((suffix for magic, suffix in MAGICS.items() if head.startswith(magic)), usual)


def _add_clip(clips: dict[str, Clip], clip: Clip, sample: Sample) -> None:
    """Add a clip to `clips`, or its captions to the clip of the same id. Raises DataError if their audio differs."""
    known = clips.get(clip.id)
    if known is None:
        clips[clip.id] = clip
        return
    before, now = member_of(known.path), member_of(clip.path)
    if before and now and (before.size != now.size or before.read() != now.read()):
        raise DataError(
            f"{sample.where}: another audio file has the same name {clip.file_name}; name the clips by other "
            "columns, such as --id __shard__ __key__, or --id __shard__ __row__ in parquet"
        )
    new = [caption for caption in clip.captions if caption not in known.captions]
    clips[clip.id] = known.model_copy(update={"captions": [*known.captions, *new]})


def is_exported(sample: Sample) -> bool:
    """Return whether a sample was written by `export`: it has all fields of a clip, and the clip's row number."""
    return {"row", *Clip.model_fields} - {"path"} <= sample.fields.keys()


def exported_clip(sample: Sample) -> Clip:
    """Return the clip of a sample that `export` wrote. Raises DataError for invalid fields."""
    fields = {name: sample.fields[name] for name in Clip.model_fields if name != "path"}
    path = _require_audio(sample)._replace(name=PurePath(str(fields["file_name"])).name).path
    try:
        return Clip.model_validate({**fields, "path": path})
    except ValidationError as error:
        raise DataError(f"{sample.where}: {faults_of(error)[0]}; export the data set again") from None


def _with_lengths(clips: Sequence[Clip], errors: list[str]) -> Iterator[Clip]:
    """Yield the clips whose audio can be opened, with their lengths; add a message to `errors` for each other clip."""
    with ThreadPoolExecutor() as pool, progress("audio", len(clips), "clip") as bar:
        for start in range(0, len(clips), TOGETHER):
            some = clips[start : start + TOGETHER]
            for clip, found in zip(some, pool.map(_length_or_error, some), strict=True):
                bar.advance()
                if isinstance(found, AudioError):
                    errors.append(str(found))
                else:
                    yield clip if clip.seconds is not None else clip.model_copy(update={"seconds": found})


def _length_or_error(clip: Clip) -> float | AudioError | None:
    """Return the length of a clip, None for published frames, or the error for audio that cannot be opened."""
    try:
        if holds_frames(clip.path):
            read_frames(clip.path)
            return None
        with on_disk(clip.path) as file:
            sound = sound_of(file)
        return sound.samples / sound.rate
    except AudioError as error:
        return error
