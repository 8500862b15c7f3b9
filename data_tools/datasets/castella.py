"""Read CASTELLA and blind lists.

Reads CASTELLA as published, and data sets in its format; makes a manifest and a file of moments.

Clotho-Moment and the blind list of 2026 have the same format. A blind list has queries without their windows, which
the organisers of the challenge do not publish.

Munakata et al., "CASTELLA: Long Audio Dataset with Captions and Temporal Boundaries", 2025;
https://github.com/line/CASTELLA. Annotations: CC BY 4.0; the audio is from YouTube, where some videos are deleted.
"""

import argparse
import logging
from collections import Counter
from collections.abc import Iterable, Set
from pathlib import Path
from typing import NamedTuple, cast

from data_tools.audio import readable_seconds
from data_tools.cli import SHOWN, add_manifest, counted, ending_in
from data_tools.documents.annotations import SPLIT_OF_NAME, Annotations, Fault, is_annotation, read_annotations
from data_tools.errors import DataError
from data_tools.files import absolute, require_folder, require_other
from data_tools.manifest import Clip, Split, audio_clip, check_caption, write_manifest
from data_tools.moments import Moment, write_moments
from data_tools.names import audio_names, check_source, tree_files

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".m4a")
FEATURES = (".npz", ".npy")  # frames of a recording; the organisers publish those of MS-CLAP as .npz

log = logging.getLogger(__name__)


class Published(NamedTuple):
    """Content of a folder of published annotations.

    Attributes:
        files: The annotation files that were read.
        faults: Faults that were found in these files, such as a window after the recording's end; each with the path of
            its file.
        counts: For each split, a line of text with the numbers of queries, recordings and windows, for the user.
    """

    files: list[Path]
    clips: list[Clip]
    moments: list[Moment]
    faults: list[tuple[Path, Fault]]
    counts: list[str]


def read_castella(
    root: Path,
    audio: Path | None = None,
    source: str = "castella",
    suffixes: tuple[str, ...] = SUFFIXES,
    keep_missing: bool = False,
    list_split: Split = "blind",
) -> Published:
    """Read the recordings and moments of all published files in a folder.

    Args:
        root: Folder with <name>_{train,val,test}_release.jsonl, or with json/en/{train,val,test}.json, which is used
            for splits without such a file. Files of `scenes --moments`, <split>_release.jsonl, can be read too.
            Queries without windows, in a file whose name contains no split, form the split `list_split`.
        audio: Folder with the audio (default: root), <split>/<vid>.wav or <vid>.wav (or .flac, .mp3, .ogg, .m4a).
        suffixes: Suffixes of the audio files. If they are .npz and .npy (FEATURES), the folder has published features
            in place of audio, one file per recording. The lengths of recordings are then read from the annotations.
        keep_missing: Include recordings without a file, with the published length. Otherwise they and their queries are
            omitted, except those of a blind list, which must all be answered.
        list_split: Split of queries without windows: `blind`, or `train` if a model finds their windows for training.
    Raises DataError for a folder without such files, two files of a split, no recording with a file, and a file that is
        damaged or of another format.
    """
    require_folder(root)
    published, found, by_split = Published([], [], [], [], []), 0, _read_by_split(root, list_split)
    for split, (path, annotations) in by_split.items():
        folders = [(audio or root) / split, audio or root]
        files = [
            (name, path) for folder in reversed(folders) for name, path in _recording_files(folder, suffixes).items()
        ]
        present = {Path(name).stem: (name, path) for name, path in files}
        if suffixes == FEATURES:
            _require_one_feature_file(name for name, _ in files)
        clips = {}
        for vid, seconds in annotations.seconds.items():
            name, file = present.get(vid, (f"{vid}{suffixes[0]}", None))
            captions = [annotations.captions[vid]] if vid in annotations.captions else []
            known = readable_seconds(file) if file and suffixes != FEATURES else None
            if vid in present or keep_missing or split == "blind":
                length = seconds if known is None else known
                clips[vid] = audio_clip(folders[0], name, source, split, captions, length, path=file)
        for query in annotations.queries:
            check_caption(query.text, f"{path}, {query.where}")
            if clip := clips.get(query.vid):
                published.moments.append(Moment(id=query.qid, text=query.text, clip=clip.id, windows=query.windows))
        found += len(present.keys() & annotations.seconds.keys())
        published.files.append(path)
        published.clips.extend(clips.values())
        published.faults.extend((path, fault) for fault in annotations.faults)
        published.counts.append(_format_counts(split, annotations, present.keys(), clips.keys(), suffixes))
    if not found and not keep_missing and by_split.keys() != {"blind"}:
        expected = " or ".join(f"<id>{suffix}" for suffix in (suffixes if suffixes == FEATURES else suffixes[:1]))
        raise DataError(
            f"{audio or root}: no file {expected} of any recording, directly or in <split>/; give the folder by "
            "--audio or --features, or add --keep-missing to include recordings without a file"
        )
    return published


def _require_one_feature_file(names: Iterable[str]) -> None:
    """Raise DataError if a recording has features in two files of one folder."""
    suffix_of: dict[str, str] = {}
    for path in map(Path, names):
        if (other := suffix_of.setdefault(path.stem, path.suffix)) != path.suffix:
            raise DataError(
                f"{path.stem}{other} and {path.name} have features of the same recording; remove one of them"
            )


def _read_by_split(root: Path, list_split: Split) -> dict[Split, tuple[Path, Annotations]]:
    """Return each split's annotation file as (path, annotations); a file without windows has the split `list_split`."""
    files = sorted(root / name for name in tree_files(root))
    lists = [path for path in files if path.suffix == ".json" and SPLIT_OF_NAME.search(path.stem)]
    releases = [path for path in files if path.suffix == ".jsonl" and is_annotation(path)]
    by_split: dict[Split, tuple[Path, Annotations]] = {}
    for path in [*releases, *(path for path in lists if path.parent.name != "ja" and is_annotation(path))]:
        annotations = read_annotations(path)
        name = SPLIT_OF_NAME.search(path.stem)
        if not annotations.is_blind and not name:
            raise DataError(
                f"{path}: the file name states no split; rename it to end in _train, _val or _test, or in "
                "_development, _validation or _evaluation"
            )
        if annotations.is_blind and name:
            raise DataError(
                f"{path}: no query has relevant_windows, which the split {name[1]} in the file name needs; add "
                "them, or rename the file if it is a blind list"
            )
        split = cast(Split, list_split if not name else name[1])
        if split not in by_split:
            by_split[split] = path, annotations
        elif path.suffix == ".json":
            log.info("%s: not used, because %s contains the same split (%s)", path, by_split[split][0], split)
        else:
            raise DataError(
                f"{path} and {by_split[split][0]} both have queries of the split {split}; remove one of them"
            )
    if not by_split:
        raise DataError(
            f"{root}: contains no queries in CASTELLA's format; give the folder with castella_test_release.jsonl "
            "or json/en/test.json"
        )
    return by_split


def _recording_files(folder: Path, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Return the files of audio or features in a folder: dict from name to path."""
    if not folder.exists():
        return {}
    names = audio_names(folder)
    if suffixes == FEATURES:
        names = sorted(path.name for path in folder.iterdir())
    return {name: absolute(folder / name) for name in names if Path(name).suffix.lower() in suffixes}


def _format_counts(
    split: str, annotations: Annotations, with_file: Set[str], in_manifest: Set[str], suffixes: tuple[str, ...]
) -> str:
    """Return the numbers of queries, recordings, windows and files of a split as a line of text.

    with_file: Ids of the recordings that have a file. in_manifest: Ids of the recordings in the manifest.
    """
    recordings, with_queries = len(annotations.seconds), len({query.vid for query in annotations.queries})
    n_present = len(with_file & annotations.seconds.keys())
    windows = sum(len(query.windows or []) for query in annotations.queries)
    line = (
        f"{split}: {counted(len(annotations.queries), 'query')} in {with_queries} of {counted(recordings, 'recording')}"
    )
    line += "" if annotations.is_blind else f", with {counted(windows, 'window')}"
    what = "features" if suffixes == FEATURES else "audio"
    line += f"; {what} found for {n_present} of {recordings}, missing for {recordings - n_present}"
    if len(in_manifest) == recordings:
        return line
    out = sum(query.vid not in in_manifest for query in annotations.queries)
    left_out = f"recordings without a file and their {counted(out, 'query')} are left out"
    return f"{line}; {left_out} (--keep-missing includes them)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `castella` to its parser."""
    add = parser.add_argument
    add("root", type=Path, help="folder with the published annotations")
    files = parser.add_mutually_exclusive_group()
    audio = "folder with the audio, in <split>/ or directly (default: the argument root)"
    files.add_argument("--audio", type=Path, help=audio)
    features = (
        "folder of published features, for the recipe key feature_files: one file VID.npz or VID.npy per recording, "
        "in <split>/ or directly"
    )
    files.add_argument("--features", type=Path, help=features)
    keep_help = "also list recordings whose file is missing (recordings of a blind list are always listed)"
    add("--keep-missing", action="store_true", help=keep_help)
    list_help = (
        "split of queries without windows (default: blind); choose train if a model shall find their windows for "
        "training (lbar rank --windows --as-training)"
    )
    add("--list-split", choices=("blind", "train"), default="blind", help=list_help)
    add("--name", default="castella", help="name of the recordings' source, for their ids (default: castella)")
    add_manifest(parser)
    add("--moments", type=ending_in(".jsonl"), required=True, help="the file of moments to write (.jsonl)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `castella`: make a manifest and a file of moments of CASTELLA; return the exit status."""
    if arguments.out.absolute() == arguments.moments.absolute():
        raise DataError(f"--out and --moments are both {arguments.out}; give different names")
    source, features = check_source(arguments.name), arguments.features
    if features is not None and not features.is_file():
        require_folder(features)
    folder, suffixes = features or arguments.audio, FEATURES if features else SUFFIXES
    published = read_castella(arguments.root, folder, source, suffixes, arguments.keep_missing, arguments.list_split)
    for out in (arguments.out, arguments.moments):
        require_other(out, published.files)
    if not published.moments:
        raise DataError(
            f"{arguments.root}: no query of a listed recording has a valid window; `check MANIFEST --moments "
            "FILE` lists the faults of a file"
        )
    write_moments(arguments.moments, published.moments)
    write_manifest(arguments.out, published.clips)
    print(*published.counts, sep="\n")
    for (kind, done), count in sorted(Counter((fault.kind, fault.done) for _, fault in published.faults).items()):
        print(f"{count:>7}  {kind}: {done}")
    for path, fault in published.faults[:SHOWN]:
        print(f"  {path}, {fault.sentence}")
    if len(published.faults) > SHOWN:
        print(f"  and {len(published.faults) - SHOWN} more faults (`check --moments FILE` lists the faults of a file)")
    print(f"wrote {arguments.out}: {counted(len(published.clips), 'recording')}")
    print(f"wrote {arguments.moments}: {counted(len(published.moments), 'query')}")
    return 0
