"""Find bad audio and forbidden training data."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from data_tools.arrays import holds_frames, read_frames
from data_tools.audio import audio_seconds, sound_problem
from data_tools.cli import SHOWN, counted, each, ending_in
from data_tools.errors import AudioError
from data_tools.exclusion import Exclusions, Lists, read_exclusions
from data_tools.files import checksum
from data_tools.manifest import TEST_SPLITS, TRAINING_SPLITS, Clip, read_manifest
from data_tools.names import plain_id
from data_tools.tables import write_table

# AudioCaps and AudioSet name files Y<id> or <id>_<start>, CASTELLA <id>. Nearly all ids have a capital letter that is
# not the first one (99.4 %); names such as dog_barking.wav have none.
_YOUTUBE_NAME = re.compile(r"(?:.*/)?(?=[^./]+[A-Z])Y?([A-Za-z0-9_-]{11})(?:_[0-9]{1,9})?\.\w+")


class Finding(NamedTuple):
    """A fault of a clip, or what it shares with another one.

    Attributes:
        kind: What was found.
        clip: Id of the clip.
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
    findings: list[Finding] = []
    paths = sorted({clip.path for clip in clips})
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda path: _problem(path, quick), paths)
        problems = dict(zip(paths, each(found, "reading", "file", len(paths)), strict=True))
        whole = [] if quick else [path for path in paths if Path(path).is_file()]
        contents = dict(zip(whole, pool.map(checksum, map(Path, whole)), strict=True))
    forbidden = exclusions or {}
    for clip in clips:
        number = plain_id(clip.freesound_id or "")
        if clip.split in TRAINING_SPLITS and number in forbidden:
            findings.append(Finding("Freesound id on an exclusion list", clip.id, forbidden[number], number, True))
        if problem := problems[clip.path]:
            is_bad = isinstance(problem, AudioError)
            reason = str(problem).removeprefix(f"{clip.path}: ")
            findings.append(Finding("bad audio" if is_bad else "audio without sound", clip.id, "", reason, is_bad))
    findings += _overlaps("same Freesound id", clips, lambda clip: clip.freesound_id and plain_id(clip.freesound_id))
    findings += [one for one in _overlaps("same YouTube id", clips, _youtube_id) if one.fatal]
    return [*findings, *_overlaps("same audio file", clips, lambda clip: contents.get(clip.path))]


def _youtube_id(clip: Clip) -> str | None:
    match = None if clip.freesound_id else _YOUTUBE_NAME.fullmatch(clip.file_name)
    return match[1] if match else None


def _problem(path: str, quick: bool) -> str | AudioError | None:
    """Return why a file has no sound, or cannot be read."""
    try:
        if holds_frames(path):
            read_frames(path)
        elif quick:
            audio_seconds(path)
        else:
            return sound_problem(path)
    except AudioError as error:
        return error
    return None


def _overlaps(kind: str, clips: Iterable[Clip], key_of: Callable[[Clip], str | None]) -> Iterator[Finding]:
    """Yield a finding for each clip that shares a key with clips of another split, once per split."""
    groups: dict[str, list[Clip]] = defaultdict(list)
    for clip in clips:
        if key := key_of(clip):
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
    manifests: list[Path],
    *,
    exclude: Lists = None,
    quick: bool = False,
    table: Annotated[Path | None, typer.Option("--list", callback=ending_in(".csv"))] = None,
) -> None:
    """Find bad audio and forbidden training data.

    The exit status is 1 if something must be fixed.

    Args:
        manifests: Manifests to check together.
        quick: Read only audio headers, and compare no contents.
        table: Write all findings to a table (.csv).
    """
    clips = [clip for path in manifests for clip in read_manifest(path)]
    exclusions = read_exclusions(exclude or [])
    findings = check_clips(clips, exclusions, quick)
    training = [clip for clip in clips if clip.split in TRAINING_SPLITS]
    print(f"{len(clips):>7}  clips, {len(training)} of them for training")
    if exclusions and (unknown := sum(clip.freesound_id is None for clip in training)):
        print(f"{unknown:>7}  training clips have no Freesound id: not compared with the lists")
    for kind in dict.fromkeys(one.kind for one in findings):
        group = sorted((one for one in findings if one.kind == kind), key=lambda one: not one.fatal)
        print(f"{len(group):>7}  {kind}")
        for one in group[:SHOWN]:
            print(f"           {' | '.join(filter(None, [one.clip, one.other, one.evidence[:60]]))}")
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
