"""Check manifests: bad audio, and training data that a test split or an exclusion list contains."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Annotated, NamedTuple

import typer

from data_tools.audio import audio_seconds, content_key, sound_problem
from data_tools.cli import SHOWN, counted, each, ending_in
from data_tools.errors import AudioError
from data_tools.exclusion import Exclusions, Lists, read_exclusions
from data_tools.frames import holds_frames, read_frames
from data_tools.manifest import TEST_SPLITS, TRAINING_SPLITS, Clip, iter_manifest
from data_tools.moments import read_published, repaired
from data_tools.names import plain_id
from data_tools.tables import write_table

NO_CAPTION, SHARED_CAPTION = "clip without captions", "caption of several clips"
# AudioCaps and AudioSet name files Y<id> or <id>_<start>, CASTELLA <id>.
_YOUTUBE_NAME = re.compile(r"(?:.*/)?Y?([A-Za-z0-9_-]{11})(?:_[0-9]{1,9})?\.\w+")


class Finding(NamedTuple):
    """A fault of a clip, or what it shares with another one.

    Attributes:
        kind: What was found.
        clip: Id of the clip, or place of a moment.
        other: Id of the other clip, or name of the exclusion list; "" for a fault.
        evidence: What both share, or the reason of a fault.
        fatal: Whether it must be fixed: else it may be part of published data.
    """

    kind: str
    clip: str
    other: str
    evidence: str
    fatal: bool


def check_clips(clips: Sequence[Clip], exclusions: Exclusions | None = None, quick: bool = False) -> list[Finding]:
    """Return what is wrong with clips, and what clips of several splits have in common.

    It is fatal if training data has an id or a file of another source's test split, or is on an exclusion list.

    Args:
        clips: Clips of all manifests.
        exclusions: Forbidden Freesound ids.
        quick: Read only the headers of audio files, and compare no contents.
    """
    count = Counter(clip.id for clip in clips)
    findings = [
        Finding("id that is in two manifests", name, "", f"{number} times", True)
        for name, number in count.items()
        if number > 1
    ]
    audio = _check_files(sorted({clip.path for clip in clips}), quick)
    for clip in clips:
        number = plain_id(clip.freesound_id or "")
        for name in (exclusions or {}).get(number, ()) if clip.split in TRAINING_SPLITS else ():
            findings.append(Finding("Freesound id on an exclusion list", clip.id, name, number, True))
        if problem := audio[clip.path].problem:
            fatal = audio[clip.path].fatal
            findings.append(Finding("bad audio" if fatal else "audio without sound", clip.id, "", problem, fatal))
        if not clip.captions and clip.split != "blind":
            findings.append(Finding(NO_CAPTION, clip.id, "", "", False))

    def shared(kind: str, keys: Callable[[Clip], Iterable[str]], fatal: bool = True) -> list[Finding]:
        found = _overlaps(kind, clips, keys)
        return [one._replace(fatal=one.fatal and fatal) for one in found]

    findings += shared("same Freesound id", lambda clip: [plain_id(clip.freesound_id)] if clip.freesound_id else [])
    findings += [one for one in shared("same YouTube id", _youtube_ids) if one.fatal]
    findings += shared("same audio file", lambda clip: filter(None, [audio[clip.path].content]))
    findings += shared("same file name", lambda clip: [clip.file_name], fatal=False)
    return findings + shared(SHARED_CAPTION, lambda clip: dict.fromkeys(clip.captions), fatal=False)


def moment_findings(path: Path, clips: Iterable[Clip]) -> tuple[list[Finding], set[str]]:
    """Return the faults of a file of moments, and the ids of the clips with moments."""
    named: dict[str, list[Clip]] = defaultdict(list)
    for one in clips:
        named[PurePath(one.file_name).stem].append(one)
    findings, with_moments = [], set()
    for where, line in read_published(path):
        if len(named[line.vid]) != 1:
            what = "several recordings have" if named[line.vid] else "no manifest has"
            findings.append(Finding("fault of a moment", where, "", f"{what} the name {line.vid}", True))
            continue
        (clip,) = named[line.vid]
        with_moments.add(clip.id)
        for window in line.relevant_windows or ():
            if fault := repaired(window, line.duration or clip.seconds)[1]:
                findings.append(Finding("fault of a moment", where, "", f"the window {list(window)} {fault}", False))
    return findings, with_moments


def _youtube_ids(clip: Clip) -> list[str]:
    match = None if clip.freesound_id else _YOUTUBE_NAME.fullmatch(clip.file_name)
    return [match[1]] if match else []


class Audio(NamedTuple):
    """State of a file: its problem, "" without one, whether that is fatal, and its checksum."""

    problem: str = ""
    fatal: bool = False
    content: str = ""


def _check_files(paths: Sequence[str], quick: bool) -> dict[str, Audio]:
    with ThreadPoolExecutor() as pool:
        found = each(pool.map(lambda path: _check_file(path, quick), paths), "reading", "file", len(paths))
        return dict(zip(paths, found, strict=True))


def _check_file(path: str, quick: bool) -> Audio:
    try:
        if holds_frames(path):
            read_frames(path)
            return Audio() if quick else Audio(content=content_key(path))
        if quick:
            audio_seconds(path)
            return Audio()
        return Audio(sound_problem(path) or "", False, content_key(path))
    except AudioError as error:
        return Audio(str(error).removeprefix(f"{path}: "), True)


def _overlaps(kind: str, clips: Iterable[Clip], keys: Callable[[Clip], Iterable[str]]) -> Iterator[Finding]:
    """Yield a finding for each clip that shares a key with clips of another split, once per split."""
    groups: dict[str, list[Clip]] = defaultdict(list)
    for clip in clips:
        for key in keys(clip):
            groups[key].append(clip)
    for key, group in groups.items():
        group.sort(key=_order)
        firsts = {(clip.source, clip.split): clip for clip in reversed(group)}
        for clip in group if len(firsts) > 1 else ():
            for split, other in firsts.items():
                if _order(clip) < _order(other) and split != (clip.source, clip.split):
                    leaks = clip.split in TRAINING_SPLITS and other.split in TEST_SPLITS and clip.source != other.source
                    yield Finding(kind, clip.id, other.id, key, leaks)


def _order(clip: Clip) -> tuple[int, str, str]:
    """Order of splits: training, validation, test."""
    rank = 0 if clip.split in TRAINING_SPLITS else 2 if clip.split in TEST_SPLITS else 1
    return rank, clip.source, clip.split


def check(
    manifests: Annotated[list[Path], typer.Argument(metavar="MANIFEST", help="Manifests to check together.")],
    exclude: Lists = None,
    moments: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A file of moments to check with them; repeat.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Read only audio headers, and compare no contents.")] = False,
    table: Annotated[
        Path | None, typer.Option("--list", callback=ending_in(".csv"), help="Write all findings to a table (.csv).")
    ] = None,
) -> None:
    """Find bad audio, and training clips that are forbidden or in a test split too (exit status 1)."""
    clips = [clip for path in manifests for _, clip in iter_manifest(path)]
    exclusions = read_exclusions(exclude) if exclude else None
    findings, with_moments = check_clips(clips, exclusions, quick), set[str]()
    for path in moments or ():
        found, ids = moment_findings(path, clips)
        findings, with_moments = findings + found, with_moments | ids
    findings = [one for one in findings if one.kind != NO_CAPTION or one.clip not in with_moments]
    training = [clip for clip in clips if clip.split in TRAINING_SPLITS]
    print(f"{len(clips):>7}  clips, {len(training)} of them for training")
    if exclusions and (unknown := sum(clip.freesound_id is None for clip in training)):
        print(f"{unknown:>7}  training clips have no Freesound id: not compared with the lists")
    for kind in dict.fromkeys(one.kind for one in findings):
        group = sorted((one for one in findings if one.kind == kind), key=lambda one: not one.fatal)
        print(f"{len(group):>7}  {kind}")
        for one in group[:SHOWN]:
            print(f"           {' | '.join(filter(None, [one.clip, one.other, one.evidence]))}")
        if len(group) > SHOWN:
            print(f"           and {len(group) - SHOWN} more (--list FILE.csv)")
    if table:
        write_table(table, Finding._fields, findings)
    if fatal := Counter(one.kind for one in findings if one.fatal):
        print(f"to fix: {', '.join(f'{kind} ({count})' for kind, count in fatal.items())}")
        raise typer.Exit(1)
    print("nothing to fix")
    if findings:
        print(f"to judge, since published data may have it: {counted(len(findings), 'finding')}")
