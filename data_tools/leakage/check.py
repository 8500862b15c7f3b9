"""Faults and overlaps of splits."""

import argparse
import errno
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.audio import audio_seconds, content_key, sound_problem
from data_tools.cli import add_json, counted, ending_in, progress, section
from data_tools.documents.strict import Report, print_report
from data_tools.errors import AudioError, sentence_of
from data_tools.frames import holds_frames, read_frames
from data_tools.leakage.moment_faults import NO_CLIP, MomentFault, moment_faults
from data_tools.manifest import Clip, Joined, read_manifest
from data_tools.names import plain_id
from data_tools.tables import write_table

MISSING = "missing audio files"
CORRUPT = "corrupt audio files"
NO_SOUND = "audio without sound"
DUPLICATE_ID = "duplicate ids"
CONTENT_INSIDE = "same audio content inside a split"
CONTENT_ACROSS = "same audio content across splits"
FREESOUND_ACROSS = "same Freesound id across splits"
NAME_ACROSS = "same file name across splits"
SHARED_CAPTION = "captions shared by different clips"
NO_CAPTION = "clips without captions"

FILES_AT_ONCE = 10_000
Result = tuple[str, str, str | None]  # result of reading a file: see _read
KNOWN: dict[Result, Result] = {one: one for one in ((MISSING, "", None), ("", "", None))}  # of most files, stored once

log = logging.getLogger(__name__)

ERRORS = (MISSING, CORRUPT, DUPLICATE_ID)
CONTENT = (CONTENT_INSIDE, CONTENT_ACROSS)
TO_JUDGE = (NO_SOUND, *CONTENT, FREESOUND_ACROSS, NO_CAPTION)  # may be part of the published data
KINDS = (*ERRORS, NO_SOUND, *CONTENT, FREESOUND_ACROSS, NAME_ACROSS, SHARED_CAPTION, NO_CAPTION)


class Finding(NamedTuple):
    """One problem or overlap.

    key: The value that the clips share, or the reason why the audio is corrupt or has no sound.
    """

    kind: str
    key: str
    clips: list[Clip]


class ClipOfFinding(Report):
    id: str
    path: str


class ReportedFinding(Report):
    """A finding in the report. key: The value that the clips share, or why the audio is corrupt or has no sound."""

    finding: str
    key: str
    clips: list[ClipOfFinding]


class CheckReport(Report):
    """Result of a check.

    Attributes:
        quick: Whether no audio was decoded and no content compared.
        counts: Number of findings of each kind, null if the kind was not searched.
        moments: Faults of the files of moments.
        ok: Whether no audio is missing or corrupt, no id repeats, and every moment's clip is present.
    """

    clips: int
    quick: bool
    counts: dict[str, int | None]
    findings: list[ReportedFinding]
    moments: list[MomentFault]
    ok: bool


def check_clips(clips: Collection[Clip], quick: bool = False) -> list[Finding]:
    """Check clips; return all problems and overlaps, sorted by kind. quick: Only read headers of audio files.

    Equal files are searched within each split and between splits; equal Freesound ids and file names only between
    splits; equal captions between any clips. Here a split is a source and its split, such as clotho/evaluation. Files
    are equal if all their bytes are: the same sound in two encodings is not found. If several clips have the same id,
    this is reported, and only the last of them is checked further. A clip of a blind split needs no captions.

    Without `quick`, every file is decoded and hashed; with it, no content is compared.
    Files with published embeddings in place of audio are always read completely.
    """
    unique = _LastOfEachId(clips)
    audio = _check_files(unique, quick)

    def result_of(clip: Clip) -> Result:
        """Return the result of `_check_file` for a clip's audio file."""
        return audio[hash(clip.path)]

    def content_hashes(clip: Clip) -> list[str]:
        """Return the hash of a clip's audio in a list; [] if the audio is unreadable."""
        problem, key, _ = result_of(clip)
        return [key] if key and not problem else []

    return [
        *(Finding(MISSING, "", [clip]) for clip in unique if result_of(clip)[0] == MISSING),
        *(Finding(CORRUPT, result_of(clip)[1], [clip]) for clip in unique if result_of(clip)[0] == CORRUPT),
        *_find_shared(DUPLICATE_ID, clips, lambda clip: [clip.id]),
        *(Finding(NO_SOUND, found, [clip]) for clip in unique if (found := result_of(clip)[2])),
        *_find_shared(
            CONTENT_INSIDE, unique, lambda clip: [f"{clip.source}/{clip.split} {key}" for key in content_hashes(clip)]
        ),
        *across_splits(CONTENT_ACROSS, unique, content_hashes),
        *across_splits(FREESOUND_ACROSS, unique, freesound_ids),
        *across_splits(NAME_ACROSS, unique, lambda clip: [clip.file_name]),
        *_find_shared(SHARED_CAPTION, unique, lambda clip: dict.fromkeys(clip.captions)),
        *(Finding(NO_CAPTION, "", [clip]) for clip in unique if not clip.captions and clip.split != "blind"),
    ]


def freesound_ids(clip: Clip) -> list[str]:
    """Return a list with a clip's Freesound id, without leading zeros; [] if it is unknown."""
    return [plain_id(clip.freesound_id)] if clip.freesound_id else []


class _LastOfEachId:
    """The clips of a collection, with only the last clip of each id."""

    def __init__(self, clips: Iterable[Clip]) -> None:
        """Find the last clip of each id among the clips."""
        self._clips = clips
        hashes = np.fromiter((hash(clip.id) for clip in clips), np.int64)
        self._taken = np.zeros(len(hashes), bool)
        self._taken[len(hashes) - 1 - np.unique(hashes[::-1], return_index=True)[1]] = True

    def __iter__(self) -> Iterator[Clip]:
        """Iterate over the last clip of each id."""
        return compress(self._clips, self._taken)


def _check_files(clips: Iterable[Clip], quick: bool) -> dict[int, Result]:
    """Check each clip's audio file once; return a dict from hash(path) to the result. quick: Only read headers."""
    results: dict[int, Result] = {}
    paths = sorted({clip.path for clip in clips})
    with ThreadPool() as pool, progress("reading", len(paths), "file") as bar:
        for start in range(0, len(paths), FILES_AT_ONCE):  # a pool stores results until they are read
            part = paths[start : start + FILES_AT_ONCE]
            for path, result in zip(part, pool.imap(partial(_check_file, quick=quick), part), strict=True):
                results[hash(path)] = KNOWN.get(result, result)
                bar.advance()
    return results


def _check_file(path: str, quick: bool) -> Result:
    """Check an audio file; return problem, hash, and the reason why it has no sound. quick: Only read the header.

    The result is (MISSING, "", None) for a missing file, and (CORRUPT, description of the damage, None) for a damaged
    file. For a readable file it is ("", its hash, the reason), with the reason None for a file with sound. For a
    readable file with `quick`, it is ("", "", None).
    """
    silent = None
    try:
        if not Path(path).is_file():
            return MISSING, "", None
        if holds_frames(path):
            read_frames(path)
        elif quick:
            audio_seconds(path)
        else:
            silent = sound_problem(path)
        return "", "" if quick else content_key(path), silent
    except AudioError as error:
        return CORRUPT, str(error).removeprefix(f"{path}: "), None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # limits of this machine, not faults of the file
            raise
        return CORRUPT, sentence_of(error).removeprefix(f"{path}: "), None


def _find_shared(kind: str, clips: Iterable[Clip], keys: Callable[[Clip], Iterable[str]]) -> list[Finding]:
    """Return a finding for every key, such as a file name, that more than one clip has.

    Iterates over `clips` twice, so that keys of a single clip, which are most, are not stored.
    """
    hashes, counts = np.unique(
        np.fromiter((hash(key) for clip in clips for key in keys(clip)), np.int64), return_counts=True
    )
    repeated = set(hashes[counts > 1].tolist())
    groups = defaultdict(list)
    for clip in clips if repeated else ():
        for key in keys(clip):
            if hash(key) in repeated:
                groups[key].append(clip)
    return [Finding(kind, key, group) for key, group in groups.items() if len(group) > 1]


def across_splits(kind: str, clips: Iterable[Clip], keys: Callable[[Clip], Iterable[str]]) -> list[Finding]:
    """Return a finding for every key, such as a file name, that clips in more than one split have."""
    findings = _find_shared(kind, clips, keys)
    return [finding for finding in findings if len({(clip.source, clip.split) for clip in finding.clips}) > 1]


def _count_by_kind(findings: Sequence[Finding], quick: bool) -> dict[str, int | None]:
    """Count the findings of each kind; None for kinds that a quick check does not look for."""
    counts = Counter(finding.kind for finding in findings)
    return {kind: None if quick and kind in CONTENT else counts[kind] for kind in KINDS}


def _format_report(findings: Sequence[Finding], faults: Sequence[MomentFault], clips: int, quick: bool) -> str:
    """Return the report of the verb `check` as text."""
    lines, sections = [f"{clips:>7}  clips"], []
    for kind, count in _count_by_kind(findings, quick).items():
        lines.append(f"{'-' if count is None else count:>7}  {kind}")
        sections += section(kind, [_format_finding(finding) for finding in findings if finding.kind == kind])
    kinds = Counter(fault.finding for fault in faults)
    for kind, count in kinds.items():
        lines.append(f"{count:>7}  {kind}")
        sections += section(kind, [_format_fault(fault) for fault in faults if fault.finding == kind])
    if quick:
        lines.append("quick check: only headers were read; no audio was decoded, and no content compared")
    return "\n".join([*lines, *sections, "", _verdict(findings, faults)])


def _verdict(findings: Sequence[Finding], faults: Sequence[MomentFault] = ()) -> str:
    """Return the last line of the report: faults to fix before training, and faults that the user must judge.

    >>> _verdict([])
    'nothing to fix'
    """
    counts = Counter([*(finding.kind for finding in findings), *(fault.finding for fault in faults)])
    errors = (*ERRORS, NO_CLIP)

    def count_text(kinds: Sequence[str]) -> str:
        """Return a text with those of `kinds` that were found, each with its number of findings."""
        return ", ".join(f"{kind} ({counts[kind]})" for kind in kinds if counts[kind])

    count = sum(counts[kind] for kind in errors)
    verdict = f"{counted(count, 'problem')} to fix: {count_text(errors)}" if count else "nothing to fix"
    judged = count_text((*TO_JUDGE, *(kind for kind in counts if kind not in (*KINDS, NO_CLIP))))
    return (
        f"{verdict}; for you to judge, because published data may have such findings: {judged}" if judged else verdict
    )


def _format_finding(finding: Finding) -> str:
    """Return a finding as text: its key, such as a file name, and the ids of its clips."""
    names = " | ".join(clip.id for clip in finding.clips)
    return f"{finding.key}: {names}" if finding.key not in ("", names) else names


def _format_fault(fault: MomentFault) -> str:
    """Format a fault of a moment, such as a window after the recording's end, on one line."""
    return f"{fault.where}: {fault.text}" + (f": {fault.done}" if fault.done else "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `check` to its parser."""
    add = parser.add_argument
    add("manifests", nargs="+", type=Path, metavar="MANIFEST", help="manifests to check together")
    moments = "also check files of moments: the kit's own, or published ones (_release.jsonl, json/en/*.json)"
    add("--moments", nargs="+", type=Path, default=[], metavar="FILE", help=moments)
    add("--quick", action="store_true", help="read only audio headers, do not compare contents")
    add("--list", type=ending_in(".csv"), metavar="FILE.csv", help="write all findings to a table, a row per clip")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `check`; return the exit status: 1 for bad audio, duplicate ids, and moments of missing clips.

    Overlaps, and faults in published files of moments, are only reported. A clip with moments needs no captions.
    """
    clips = Joined([read_manifest(manifest, unique=False) for manifest in arguments.manifests])
    faults, with_queries = moment_faults(arguments.moments, clips)
    findings = [
        finding
        for finding in check_clips(clips, arguments.quick)
        if finding.kind != NO_CAPTION or finding.clips[0].id not in with_queries
    ]
    ok = not any(finding.kind in ERRORS for finding in findings) and all(fault.done for fault in faults)
    if arguments.json:
        reported = [
            ReportedFinding(
                finding=finding.kind,
                key=finding.key,
                clips=[ClipOfFinding(id=clip.id, path=clip.path) for clip in finding.clips],
            )
            for finding in findings
        ]
        counts = _count_by_kind(findings, arguments.quick)
        report = CheckReport(
            clips=len(clips), quick=arguments.quick, counts=counts, findings=reported, moments=faults, ok=ok
        )
        print_report(report)
    else:
        print(_format_report(findings, faults, len(clips), arguments.quick))
    if arguments.list:
        rows = [(finding.kind, finding.key, clip.id, clip.path) for finding in findings for clip in finding.clips]
        rows += [(fault.finding, _format_fault(fault), "", "") for fault in faults]
        write_table(arguments.list, ["finding", "key", "clip_id", "path"], rows)
        log.info("wrote %s: %s", arguments.list, counted(len(rows), "row"))
    return 0 if ok else 1
