"""Verb audit: overlaps with test data.

Overlaps of training data with data that it must not contain: forbidden ids, test clips, the same recordings.
"""

import argparse
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

from data_tools.cli import add_json, counted, each, ending_in, first_of, section
from data_tools.documents.strict import Report, print_report
from data_tools.errors import AudioError, DataError
from data_tools.leakage.check import FREESOUND_ACROSS, NAME_ACROSS, across_splits, freesound_ids
from data_tools.leakage.exclusion import Exclusions, read_exclusions
from data_tools.leakage.fingerprint import Fingerprint, fingerprint, near_duplicates
from data_tools.leakage.prints import StoredPrints
from data_tools.manifest import TEST_SPLITS, VALIDATION_SPLITS, Clip, read_manifest
from data_tools.moments import read_moments
from data_tools.names import plain_id
from data_tools.tables import write_table

FORBIDDEN = "Freesound id on an exclusion list"
CAPTION_ACROSS = "same caption across splits"
SOUND_ACROSS = "near-duplicate audio across splits"
YOUTUBE_ACROSS = "same YouTube id across splits"
KINDS = (FORBIDDEN, FREESOUND_ACROSS, NAME_ACROSS, YOUTUBE_ACROSS, SOUND_ACROSS, CAPTION_ACROSS)

QUIET = "sound too short, silent or steady for a comparison"
UNSURE = "sound so short or steady that noise may hide a copy"
NOT_COMPARED = "sound not compared"
COMPARED_UNSURELY = "sound compared, but a noisy copy of it may be missed"

_YOUTUBE_NAME = re.compile(r"(?:.*/)?Y?([A-Za-z0-9_-]{11})(?:_[0-9]{1,9})?\.\w+")

log = logging.getLogger(__name__)


class Overlap(NamedTuple):
    """One clip's overlap with another split, or its place on an exclusion list.

    Attributes:
        split, other_split: "<source>/<split>" of both clips. For an exclusion list, other_split is the list's name.
        other: Id of the first overlapping clip in the other split. For an exclusion list, the id on the list.
        evidence: Value that both clips share, such as a file name.
    """

    finding: str
    clip: Clip
    split: str
    other_split: str
    other: str
    evidence: str
    leak: bool  # training data contains forbidden data: the audit fails


class ReportedOverlap(Report):
    """An Overlap in the report. clip: Its id."""

    finding: str
    clip: str
    split: str
    other_split: str
    other: str
    evidence: str
    leak: bool


class AuditReport(Report):
    """Result of an audit.

    Attributes:
        clips: Number of audited clips.
        training: Number of audited clips in training splits.
        against: Number of further clips that the audited clips are compared with.
        excluded: Dict from each exclusion list to its number of Freesound ids.
        without_id: Number of training clips without a Freesound id.
        compared: Number of clips whose sound was compared; null if that was not requested.
        not_compared: Dict from the id of every clip whose sound was not compared to the reason.
        unsure: Ids of compared clips that are so short or steady that noise may hide a copy of them.
        ok: Whether no overlap is a leak.
        verdict: The result in words.
    """

    clips: int
    training: int
    against: int
    excluded: dict[str, int]
    without_id: int
    compared: int | None
    not_compared: dict[str, str]
    unsure: list[str]
    overlaps: list[ReportedOverlap]
    ok: bool
    verdict: str


class Fingerprints(NamedTuple):
    """Fingerprints by clip id; for clips without one, the reason by clip id."""

    prints: StoredPrints
    without: dict[str, str]

    def sure_clips(self, clips: Iterable[Clip]) -> list[Clip]:
        """Return the clips for which the comparison finds every copy of the sound, even a copy with added noise."""
        unsure = frozenset(self.prints.unsure)
        return [clip for clip in clips if clip.id in self.prints and clip.id not in unsure]


def audit(
    clips: Sequence[Clip],
    against: Sequence[Clip],
    exclusions: Exclusions | None = None,
    fingerprints: Fingerprints | None = None,
) -> list[Overlap]:
    """Find the overlaps of clips with each other across splits, with the clips `against`, and with exclusion lists.

    Here a split is a source and its split, such as clotho/evaluation.

    Args:
        clips: Clips to compare with each other and with those in `against`.
        against: Further clips, which are not compared with each other.
        exclusions: Lists of forbidden Freesound ids.
        fingerprints: Fingerprints of the clips' sound; None: sounds are not compared.
    Returns: the overlaps, sorted by kind. If a clip shares a value with several clips of another split, they are one
        overlap. It is listed under the clip whose split comes first: training, validation, test.

    An overlap is a leak if a training clip (splits development, train) is on an exclusion list. It is also a leak if a
    training clip has the Freesound id, file name, YouTube id or sound of a clip in a test split. Equal captions are no
    leak, because two recordings may have the same description.
    """
    audited = {clip.id: clip for clip in clips}
    others = {clip.id: clip for clip in against if clip.id not in audited}
    everything = sorted([*audited.values(), *others.values()], key=_split_order)
    same_youtube_id = across_splits(YOUTUBE_ACROSS, everything, _youtube_ids)
    findings = [
        *across_splits(FREESOUND_ACROSS, everything, freesound_ids),
        *across_splits(NAME_ACROSS, everything, lambda clip: [clip.file_name]),
        *(one for one in same_youtube_id if len({clip.source for clip in one.clips}) > 1),
        *across_splits(CAPTION_ACROSS, everything, lambda clip: dict.fromkeys(clip.captions)),
    ]
    overlaps = _find_forbidden(audited.values(), exclusions) if exclusions else []
    for finding in findings:
        overlaps += _overlaps_of_value(finding.kind, finding.clips, finding.key, audited)
    if fingerprints:
        overlaps += _find_same_sound(everything, audited, fingerprints)
    return sorted(overlaps, key=lambda overlap: KINDS.index(overlap.finding))


def _youtube_ids(clip: Clip) -> list[str]:
    """Return the YouTube id in a file's name: <id> as in CASTELLA, <id>_<start> or Y<id> as in AudioCaps and AudioSet.

    The same recording may be complete in CASTELLA and cut to ten seconds in AudioCaps. Only ids of different sources
    are compared, because other names within one source may look like ids (`field_notes_1`). The result is empty for
    sounds of Freesound.
    """
    match = None if clip.freesound_id else _YOUTUBE_NAME.fullmatch(clip.file_name)
    return [match[1]] if match else []


def fingerprint_all(clips: Iterable[Clip]) -> Fingerprints:
    """Return the fingerprints of the clips' audio, computed in several threads."""
    ordered = list(clips)
    fingerprints = Fingerprints(StoredPrints(), {})
    with ThreadPool() as pool:
        results = each(pool.imap(_fingerprint_or_reason, ordered), "listening", "file", len(ordered))
        for clip, result in zip(ordered, results, strict=True):
            if isinstance(result, Fingerprint):
                fingerprints.prints.store(clip.id, result)
            else:
                fingerprints.without[clip.id] = result
    return fingerprints


def _fingerprint_or_reason(clip: Clip) -> Fingerprint | str:
    """Return the fingerprint of a clip's audio, or the reason why it has no fingerprint."""
    try:
        return fingerprint(clip.path) or QUIET
    except AudioError as error:
        return str(error)


def _split_order(clip: Clip) -> int:
    """Return 0 for a clip of a training split, 1 for validation, and 2 for test."""
    return 2 if clip.split in TEST_SPLITS else int(clip.split in VALIDATION_SPLITS)


def _split_name(clip: Clip) -> str:
    """Return the clip's source and split, such as `clotho/development`."""
    return f"{clip.source}/{clip.split}"


def _find_forbidden(clips: Iterable[Clip], exclusions: Exclusions) -> list[Overlap]:
    """Return an overlap for each training clip that an exclusion list forbids."""
    return [
        Overlap(FORBIDDEN, clip, _split_name(clip), name, plain_id(freesound_id), f"Freesound id {freesound_id}", True)
        for clip in clips
        if _split_order(clip) == 0 and (freesound_id := clip.freesound_id)
        for name in exclusions.lists(freesound_id)
    ]


def _overlaps_of_value(kind: str, clips: Sequence[Clip], shared: str, audited: Collection[str]) -> list[Overlap]:
    """Return the overlaps between splits of clips with the same value; an overlap has at least one audited clip."""
    splits: dict[str, list[Clip]] = {}
    for clip in clips:
        splits.setdefault(_split_name(clip), []).append(clip)
    overlaps = []
    for ours, theirs in combinations(splits.values(), 2):
        audited_theirs = [other for other in theirs if other.id in audited]
        for clip in ours:
            if others := theirs if clip.id in audited else audited_theirs:
                more = f" ({len(others)} clips)" if len(others) > 1 else ""
                overlaps.append(_make_overlap(kind, clip, others[0], shared + more))
    return overlaps


def _make_overlap(kind: str, clip: Clip, other: Clip, evidence: str) -> Overlap:
    """Return an overlap of two clips, marked if it is a leak. kind: Kind of overlap. evidence: The shared value."""
    leak = kind != CAPTION_ACROSS and _split_order(clip) == 0 and _split_order(other) == 2
    return Overlap(kind, clip, _split_name(clip), _split_name(other), other.id, evidence, leak)


def _find_same_sound(everything: Sequence[Clip], audited: Collection[str], fingerprints: Fingerprints) -> list[Overlap]:
    """Find pairs of clips in different splits with the same sound, at least one audited; return the overlaps."""
    listened = [clip for clip in everything if clip.id in fingerprints.prints]
    position = {clip.id: number for number, clip in enumerate(everything)}
    earlier = [clip for clip in listened if clip.id not in audited]
    overlaps = []
    for split in dict.fromkeys(_split_name(clip) for clip in listened if clip.id in audited):
        same_split = [clip for clip in listened if _split_name(clip) == split and clip.id in audited]
        ours, theirs = (fingerprints.prints.of([clip.id for clip in side]) for side in (same_split, earlier))
        for match in near_duplicates(ours, theirs):
            pair, offset = (same_split[match.first], earlier[match.second]), match.offset
            if _split_name(pair[0]) == _split_name(pair[1]):
                continue
            if position[pair[0].id] > position[pair[1].id]:
                pair, offset = (pair[1], pair[0]), 0.0 - offset
            where = f"{offset:+.2f} s later in the other clip, match score {match.score:.0f}"
            evidence = f"{match.seconds:.2f} s of sound are alike, {where}"
            overlaps.append(_make_overlap(SOUND_ACROSS, *pair, evidence))
        earlier += same_split
    return sorted(overlaps, key=lambda overlap: position[overlap.clip.id])


def _format_overlaps(overlaps: Sequence[Overlap], compared: bool) -> list[str]:
    """Format each kind of overlap: number of clips, and first examples. compared: Whether sounds were compared."""
    lines, sections = [], []
    for kind in KINDS:
        group = [overlap for overlap in overlaps if overlap.finding == kind]
        count = "-" if kind == SOUND_ACROSS and not compared else len({overlap.clip.id for overlap in group})
        lines.append(f"{count:>7}  {kind}")
        clips = dict.fromkeys((f"{t.split} overlaps {t.other_split}", t.clip.id) for t in group)
        lines += [f"{count:>14}  {splits}" for splits, count in Counter(splits for splits, _ in clips).items()]
        shared = [f"{t.clip.id} | {t.other_split if kind == FORBIDDEN else t.other}: {t.evidence}" for t in group]
        sections += section(kind, shared)
    return lines + sections


def _verdict(
    overlaps: Sequence[Overlap], training: Sequence[Clip], others: Sequence[Clip], fingerprints: Fingerprints | None
) -> str:
    """Return a sentence on the overlaps of the `training` clips with exclusion lists and test clips (`others`).

    Sounds that are too short or too steady cannot be compared reliably; the sentence calls their overlap unknown.
    """
    if leaks := [overlap for overlap in overlaps if overlap.leak]:
        kinds = "; ".join(dict.fromkeys(overlap.finding for overlap in leaks))
        count = counted(len({t.clip.id for t in leaks}), "clip")
        return f"training data overlaps test splits or exclusion lists: remove {count} from the training data ({kinds})"
    clips = f"none of {len(training)} training clips"
    no_overlap = f"{clips} is on an exclusion list or shares a Freesound id, YouTube id or file name with a test split"
    if fingerprints is None or not len(fingerprints.prints) or not others:
        return f"{no_overlap}; their sound was not compared"
    ours, theirs = (len(fingerprints.sure_clips(side)) for side in (training, others))
    if ours == len(training) and theirs == len(others):
        return (
            f"{clips} is on an exclusion list or shares a Freesound id, YouTube id, file name or sound with a test "
            "split"
        )
    if not ours or not theirs:
        return f"{no_overlap}; shared sounds are not known, because the clips named above cannot be compared reliably"
    return (
        f"{no_overlap}; {counted(ours, 'training clip')} could be compared with {theirs} of {len(others)} test clips, "
        "and no shared sound was found; whether the clips named above share a sound is not known"
    )


def _format_compared(fingerprints: Fingerprints | None) -> list[str]:
    """Return lines about the comparison of sounds: the number of compared clips, and the other clips with reasons."""
    if fingerprints is None:
        return ["audio was not compared; add --audio to compare it"]
    lines = [f"{len(fingerprints.prints):>7}  clips whose sound was compared"]
    without = fingerprints.without.items()
    notes = (
        (f"of them with {UNSURE}", fingerprints.prints.unsure),
        (f"clips with {QUIET}", [clip_id for clip_id, why in without if why == QUIET]),
        ("clips without readable audio", [f"{clip_id} ({why})" for clip_id, why in without if why != QUIET]),
    )
    return lines + [f"{len(names):>7}  {what}: {'; '.join(first_of(names))}" for what, names in notes if names]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `audit` to its parser."""
    add = parser.add_argument
    add("manifests", nargs="+", type=Path, metavar="MANIFEST", help="manifests to audit, also against each other")
    against = "manifests to compare with; overlaps among these are not listed"
    add("--against", nargs="+", type=Path, default=[], metavar="MANIFEST", help=against)
    add("--exclude", nargs="+", type=Path, default=[], metavar="LIST", help="lists of forbidden Freesound ids")
    add("--audio", action="store_true", help="also compare the sound of all clips, by audio fingerprints")
    add("--list", type=ending_in(".csv"), metavar="FILE.csv", help="write all findings to a table, a row per overlap")
    queries = "files of moments, whose queries count as captions (Clotho-Moment's queries are captions of Clotho)"
    add("--moments", nargs="+", type=Path, default=[], metavar="FILE.jsonl", help=queries)
    add_json(parser)


def add_queries(clips: Sequence[Clip], files: Iterable[Path]) -> Sequence[Clip]:
    """Return the clips with added captions: the queries of the moments in `files`, each once per clip.

    Clotho-Moment publishes no Clotho ids, but its queries are captions of Clotho, which identify the source clips.
    Raises DataError for moments of a missing clip, and for a file of moments with bad lines.
    """
    texts: dict[str, list[str]] = {}
    known = {clip.id for clip in clips}
    for path in files:
        for line, moment in enumerate(read_moments(path), 1):
            if moment.clip not in known:
                raise DataError(f"{path}, line {line}: no given manifest has the clip {moment.clip}; add its manifest")
            texts.setdefault(moment.clip, []).append(moment.text)
    if not texts:
        return clips
    return [
        clip.model_copy(update={"captions": list(dict.fromkeys([*clip.captions, *texts.get(clip.id, ())]))})
        for clip in clips
    ]


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `audit`; return the exit status: 1 if a training clip is forbidden or overlaps with a test split."""
    audited = [clip for path in arguments.manifests for clip in read_manifest(path)]
    against = [clip for path in arguments.against for clip in read_manifest(path)]
    everything = add_queries([*audited, *against], arguments.moments)
    clips, against = list(everything[: len(audited)]), list(everything[len(audited) :])
    training = [clip for clip in clips if _split_order(clip) == 0]
    if not training:
        names = ", ".join(map(str, arguments.manifests))
        raise DataError(f"nothing to audit: {names} has no clip of a training split; add a manifest that has some")
    by_id = {clip.id: clip for clip in [*against, *clips]}
    tested = [clip for clip in by_id.values() if _split_order(clip) == 2]
    if not arguments.exclude and not tested:
        raise DataError(
            "nothing to compare with: no clip of a test split is given, and no list; add --against MANIFEST or "
            "--exclude LIST"
        )
    exclusions = read_exclusions(arguments.exclude)
    fingerprints = fingerprint_all(by_id.values()) if arguments.audio else None
    overlaps = audit(clips, against, exclusions, fingerprints)

    without = sum(not clip.freesound_id for clip in training)
    report = AuditReport(
        clips=len(clips),
        training=len(training),
        against=len(against),
        excluded={listed.name: listed.ids for listed in exclusions.sources},
        without_id=without,
        compared=None if fingerprints is None else len(fingerprints.prints),
        not_compared=dict(fingerprints.without) if fingerprints else {},
        unsure=fingerprints.prints.unsure if fingerprints else [],
        overlaps=[
            ReportedOverlap.model_validate({**overlap._asdict(), "clip": overlap.clip.id}) for overlap in overlaps
        ],
        ok=not any(overlap.leak for overlap in overlaps),
        verdict=_verdict(overlaps, training, tested, fingerprints),
    )
    if arguments.json:
        print_report(report)
    else:
        compared = counted(len(against), "other clip")
        print(f"{len(clips):>7}  clips, {len(training)} of them for training; compared with {compared}")
        for listed in exclusions.sources:
            print(f"{listed.ids:>7}  Freesound ids on {listed.name}, and {listed.not_found} entries without an id")
        if without:
            print(f"{without:>7}  training clips without a Freesound id, compared only by name, captions and sound")
        print(*_format_compared(fingerprints), sep="\n")
        print(*_format_overlaps(overlaps, bool(report.compared)), sep="\n")
        print(f"\n{report.verdict}")
    if arguments.list:
        rows = [(t.finding, t.clip.id, t.clip.freesound_id, t.other_split, t.other, t.evidence) for t in overlaps]
        others = [(NOT_COMPARED, name, why) for name, why in report.not_compared.items()]
        others += [(COMPARED_UNSURELY, name, UNSURE) for name in report.unsure]
        rows += [(finding, name, by_id[name].freesound_id, "", "", why) for finding, name, why in others]
        write_table(arguments.list, ["finding", "clip", "freesound_id", "other_split", "other", "evidence"], rows)
        log.info("wrote %s: %s", arguments.list, counted(len(rows), "row"))
    return 0 if report.ok else 1
