"""Compose a captioned data set of synthetic or recorded events, in Clotho's layout; or long recordings with moments.

All random choices depend on (seed, split, number of the clip), so that later clips do not change earlier ones.
"""

import argparse
import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.audio import content_key, encoded
from data_tools.cli import counted, each
from data_tools.datasets.clotho import CLOTHO_SPLITS, read_clotho
from data_tools.errors import DataError
from data_tools.files import read_json, remove_parts, replacing, write_json
from data_tools.manifest import TEST_SPLITS, Clip, Split, audio_clip, write_manifest
from data_tools.moments import Moment, write_moments
from data_tools.names import check_source
from data_tools.scenes.captions import MAX_HELD_OUT, describe, describe_event, describe_noisily
from data_tools.scenes.mix import (
    KINDS,
    SHAPES,
    Event,
    Pool,
    TimedEvent,
    credit,
    draw_events,
    draw_timeline,
    mixed,
    read_recordings,
    render,
    table_path,
)
from data_tools.scenes.synth import CLASSES, SAMPLE_RATE, Samples
from data_tools.tables import read_table, write_table

FORMAT = 3  # version of the drawing: raised if the same arguments would give other files
COUNTS = {"development": 2400, "validation": 300, "evaluation": 300}
MOMENT_COUNTS = {"development": 400, "validation": 60, "evaluation": 120}
FOLDS = {"development": ["1", "2", "3"], "validation": ["4"], "evaluation": ["5"]}
METADATA = ("file_name", "keywords", "sound_id", "sound_link", "start_end_samples", "manufacturer", "license")
LABELS = ("file_name", "split", "kind", "events")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings that determine the files; stored in scenes.json.

    Attributes:
        name: Name of the data set.
        seed: Decides all random choices.
        counts: Number of clips per split.
        held_out: Share of the wordings of sounds, and of the templates of captions, that only test splits use.
        captions: "5" or "1" per clip, or "noisy" (one description in the style of uploaders); "" with moments.
        recordings: SHA-256 of the table of labelled recordings; None: events are synthesised.
        folds: Folds of the recordings per split.
        moments: Key of SHAPES for long recordings with moments; "" for scenes.
        seconds: Length of a long recording.
        format: Version of the program that draws.
    """

    name: str
    seed: int
    counts: dict[Split, int]
    held_out: float = 0.0
    captions: str = "5"
    recordings: str | None = None
    folds: dict[str, list[str]] | None = None
    moments: str = ""
    seconds: float = 0.0
    format: int = FORMAT

    def pools(self, folder: Path | None) -> dict[Split, Pool]:
        """Return the recordings of each split by class. Raises DataError for a split with too few classes."""
        if folder is None:
            return {split: {name: [] for name in CLASSES} for split in self.counts}
        folds, least = self.folds or {}, 2 if self.moments else max(KINDS.values())
        pools: dict[Split, Pool] = {split: read_recordings(folder, folds[split]) for split in self.counts}
        for split, pool in pools.items():
            if len(pool) < least:
                raise DataError(f"{folder}: the folds of {split} have {len(pool)} categories, {least} are needed")
        return pools


class Scene(NamedTuple):
    """A planned clip. seed: For its audio, independent of its events and captions."""

    file_name: str
    split: Split
    kind: str
    events: list[Event]
    captions: list[str]
    seed: tuple[int, ...]


class Recorded(NamedTuple):
    """A composed recording: its clip, its queries, and a row of events.csv for each of its events."""

    clip: Clip
    moments: list[Moment]
    rows: Sequence[Sequence[str]]


def make_scenes(out: Path, settings: Settings, recordings: Path | None = None) -> int:
    """Compose scenes in a folder; return the number of new audio files.

    Writes scenes.json first, then the missing audio files (8 s, 16 kHz, mono, 16 bit), Clotho's tables, labels.csv
    (kind, and events by rising start, a background last), and manifest.jsonl last. Only one process may write.
    Raises DataError for unusable recordings, and a folder with other content.
    """
    pools = settings.pools(recordings)
    claim(out, settings)
    made, scenes = 0, {split: plan_split(settings, split, pools[split]) for split in settings.counts}
    for split, planned in scenes.items():
        remove_parts(out / split)
        missing = [scene for scene in planned if not (out / split / scene.file_name).is_file()]
        made += len(missing)
        for scene in each(missing, split, "clip"):
            samples = render(np.random.default_rng(scene.seed), scene.kind, scene.events)
            _write_samples(out / split / scene.file_name, samples)
    if made or not (out / "manifest.jsonl").is_file():
        for split, planned in scenes.items():
            header = ["file_name", *(f"caption_{number}" for number in range(1, len(planned[0].captions) + 1))]
            captions = [[scene.file_name, *scene.captions] for scene in planned]
            write_table(out / f"clotho_captions_{split}.csv", header, captions)
            write_table(out / f"clotho_metadata_{split}.csv", METADATA, map(_metadata_row, planned))
        every = [scene for planned in scenes.values() for scene in planned]
        labels = [(one.file_name, one.split, one.kind, ";".join(event.name for event in one.events)) for one in every]
        write_table(out / "labels.csv", LABELS, labels)
        write_manifest(out / "manifest.jsonl", read_clotho(out, list(scenes), settings.name)[0])
    return made


def plan_split(settings: Settings, split: Split, pool: Pool) -> list[Scene]:
    """Return the plans of a split's clips.

    In a test split no caption repeats, because a ranked CSV identifies a query by its text.
    """
    scenes: list[Scene] = []
    taken: set[str] = set()
    for number in range(1, settings.counts[split] + 1):
        scenes.append(_plan_clip(settings, split, number, pool, taken))
        if split in TEST_SPLITS:
            taken.update(scenes[-1].captions)
    return scenes


def _plan_clip(settings: Settings, split: Split, number: int, pool: Pool, taken: Collection[str]) -> Scene:
    """Return the plan of one clip. taken: Captions of earlier clips."""
    seed = (settings.seed, CLOTHO_SPLITS.index(split), number)
    kind = list(KINDS)[(number - 1) % len(KINDS)]
    events = draw_events(np.random.default_rng((*seed, 0)), kind, pool)
    names = [event.name for event in events]
    rng = np.random.default_rng((*seed, 1))
    if settings.captions == "noisy":
        captions = [describe_noisily(rng, names)]
    else:
        held_out = 0.0 if split in TEST_SPLITS else settings.held_out
        captions = describe(rng, kind, names, int(settings.captions), held_out, taken)
    return Scene(f"{settings.name}_{split}_{number:05d}.wav", split, kind, events, captions, (*seed, 2))


def _metadata_row(scene: Scene) -> list[str]:
    """Return a clip's row for Clotho's metadata table; a scene is no Freesound sound, even if its parts are."""
    links, authors, licences = credit(event.recording for event in scene.events)
    return [scene.file_name, ";".join(event.name for event in scene.events), "Not found", links, "", authors, licences]


def ceiling(folder: Path, split: str) -> float:
    """Return the mAP@10 of a system that knows only the label (kind and events) of each scene; ties are random.

    A caption's own clip is tied with all clips of the split with the same label. With g such clips, ranks 1 .. g are
    equally likely, so the expected AP@10 is (1/g) * sum_{r=1..min(g,10)} 1/r. In an overlap the order of the events
    does not matter. Raises DataError for a folder without labels.csv, and a split without clips.
    """
    groups = Counter(
        (row["kind"], *(sorted(row["events"].split(";")) if row["kind"] == "overlap" else row["events"].split(";")))
        for _, row in read_table(folder / "labels.csv", LABELS)
        if row["split"] == split
    )
    if not groups:
        raise DataError(f"{folder / 'labels.csv'}: no clips in the split {split}; choose another split")
    return sum(sum(1 / rank for rank in range(1, min(size, 10) + 1)) for size in groups.values()) / groups.total()


def make_moments(out: Path, settings: Settings, recordings: Path | None = None) -> tuple[int, int]:
    """Compose long recordings with moments; return the numbers of queries and of new audio files.

    Writes scenes.json first, then the missing audio files (16 kHz, mono, 16 bit), events.csv (every event, in unrounded
    seconds, with the id of its query), moments.jsonl, <split>_release.jsonl, and manifest.jsonl last.
    Raises DataError for unusable recordings, a split without queries, and a folder with other content.
    """
    pools = settings.pools(recordings)
    claim(out, settings)
    paths = {
        split: [out / split / f"{settings.name}_{split}_{number:05d}.wav" for number in range(1, count + 1)]
        for split, count in settings.counts.items()
    }
    made = sum(not path.is_file() for part in paths.values() for path in part)
    if not made and (out / "manifest.jsonl").is_file() and (out / "moments.jsonl").is_file():
        return (out / "moments.jsonl").read_bytes().count(b"\n"), 0
    every: list[Recorded] = []
    for split, part in paths.items():
        remove_parts(out / split)
        numbered = enumerate(each(part, split, "recording"), 1)
        recorded = [_compose(path, settings, split, number, pools[split]) for number, path in numbered]
        moments = [moment for one in recorded for moment in one.moments]
        if not moments:
            raise DataError(f"{out}: no recording of {split} has an event; ask for more, or a longer --length")
        write_moments(out / f"{split}_release.jsonl", moments, [one.clip for one in recorded])
        every += recorded
    header = ("file_name", "split", "event", "start", "end", "qid")
    write_table(out / "events.csv", header, [row for one in every for row in one.rows])
    moments = [moment for one in every for moment in one.moments]
    write_moments(out / "moments.jsonl", moments, [one.clip for one in every])
    write_manifest(out / "manifest.jsonl", [one.clip for one in every])
    return len(moments), made


def _compose(path: Path, settings: Settings, split: Split, number: int, pool: Pool) -> Recorded:
    """Compose one recording, write its audio if it is missing, and return its clip, queries and events."""
    shape, seed = SHAPES[settings.moments], (settings.seed, CLOTHO_SPLITS.index(split), number)
    n = round(settings.seconds * SAMPLE_RATE)
    events = draw_timeline(np.random.default_rng((*seed, 0)), shape, pool, n)
    if not path.is_file():
        _write_samples(path, mixed(np.random.default_rng((*seed, 2)), shape, events, n))
    _, authors, licences = credit(event.recording for event in events)
    queries = draw_queries(np.random.default_rng((*seed, 1)), settings, split, path.stem, events)
    texts = [text for _, text, _ in queries.values()]
    clip = audio_clip(path.parent, path.name, settings.name, split, texts, settings.seconds, None, licences, authors)
    moments = [Moment(id=qid, text=text, clip=clip.id, windows=windows) for qid, text, windows in queries.values()]
    rows = []
    for event in events:
        start, end = (f"{sample / SAMPLE_RATE:.4f}" for sample in (event.start, event.end))
        rows.append((path.name, split, event.name, start, end, queries[event.name][0] if event.name in queries else ""))
    return Recorded(clip, moments, rows)


def draw_queries(
    rng: np.random.Generator, settings: Settings, split: Split, vid: str, events: Sequence[TimedEvent]
) -> dict[str, tuple[str, str, list[tuple[float, float]]]]:
    """Draw the queries of a recording: id ("<vid>_<n>"), text and all windows, by sound class.

    Classes are taken in the order of their first event. Each gets a query with the shape's probability, and at least
    one of them gets it.
    """
    shape = SHAPES[settings.moments]
    names = list(dict.fromkeys(event.name for event in events))
    asked = rng.random(len(names)) < shape.asked
    if names and not asked.any():
        asked[int(rng.integers(len(names)))] = True
    queries = {}
    for number, name in enumerate((name for name, is_asked in zip(names, asked, strict=True) if is_asked), 1):
        windows = [
            (round(event.start / SAMPLE_RATE, shape.decimals), round(event.end / SAMPLE_RATE, shape.decimals))
            for event in events
            if event.name == name
        ]
        queries[name] = f"{vid}_{number}", describe_event(rng, name, split, settings.held_out), windows
    return queries


def claim(out: Path, settings: Settings) -> None:
    """Record the settings of a new folder. Raises DataError for a folder with other settings or content."""
    path, wanted = out / "scenes.json", json.loads(json.dumps(asdict(settings)))
    if not path.is_file():
        if out.is_dir() and any(not entry.name.startswith(".") for entry in out.iterdir()):
            raise DataError(f"{out}: contains files but no scenes.json; choose a new or empty folder")
        write_json(path, wanted)
    elif (begun := read_json(path)) != wanted:
        changed = [key for key in wanted if not isinstance(begun, dict) or begun.get(key) != wanted[key]]
        raise DataError(f"{out}: was made with another {', '.join(changed)}; choose another folder or delete this one")


def _write_samples(path: Path, samples: Samples) -> None:
    """Write a 16-bit WAV file. samples: (n,) at SAMPLE_RATE, in [-1, 1]."""
    with replacing(path) as temporary:
        temporary.write_bytes(encoded(np.round(samples * 32767).astype(np.int16), SAMPLE_RATE, "WAV", "PCM_16"))


def parse_folds(values: Sequence[str]) -> dict[str, list[str]]:
    """Parse texts like "development=1,2,3". Raises DataError for a fold in two splits."""
    folds: dict[str, list[str]] = {}
    for value in values:
        split, equals, names = value.partition("=")
        if split not in CLOTHO_SPLITS or not equals or not all(names.split(",")):
            raise DataError(f"--folds {value}: write it as development=1,2,3 (or validation, evaluation)")
        folds[split] = names.split(",")
    taken = Counter(name for names in folds.values() for name in names)
    if twice := [name for name, count in taken.items() if count > 1]:
        raise DataError(f"--folds: fold {twice[0]} comes twice; no recording may be in two splits")
    return folds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `scenes` to its parser."""
    add = parser.add_argument
    add("out", type=Path, help="output folder; run again with the same arguments to complete it")
    add("--seed", type=int, required=True, help="seed of the random choices; the same seed gives the same scenes")
    for split, count in COUNTS.items():
        of_moments = f"number of clips (default: {count}; with --moments {MOMENT_COUNTS[split]})"
        add(f"--{split}", type=int, metavar="N", help=of_moments)
    add("--captions", choices=["5", "1", "noisy"], help="captions per clip; noisy: 1 in Freesound's style (default: 5)")
    held_out = (
        "share of the wordings of sounds, 0 to 0.5, that only captions of evaluation use (default: 0); with --moments "
        "and a share above 0, one further wording per sound is only used in validation"
    )
    add("--heldout-phrasings", type=float, default=0.0, metavar="SHARE", help=held_out)
    add("--recordings", type=Path, metavar="FOLDER", help="recordings to compose, in ESC-50's layout")
    folds = "folds of recordings per split (default: development=1,2,3 validation=4 evaluation=5)"
    add("--folds", nargs="+", metavar="SPLIT=FOLDS", help=folds)
    moments = (
        "make long recordings, and queries with the windows of one sound each. castella: short events, some "
        "several times. clotho: whole sounds, each once, as in Clotho-Moment (default: castella)"
    )
    add("--moments", nargs="?", const="castella", choices=list(SHAPES), help=moments)
    add("--length", type=float, default=60.0, metavar="SECONDS", help="seconds per recording, with --moments")
    add("--name", help="name of the clips' source, for their ids (default: the folder's name)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `scenes`: compose clips, or long recordings with moments; return the exit status."""
    defaults = MOMENT_COUNTS if arguments.moments else COUNTS
    given = {split: getattr(arguments, split) for split in CLOTHO_SPLITS}
    asked = {split: defaults[split] if count is None else count for split, count in given.items()}
    counts: dict[Split, int] = {split: count for split, count in asked.items() if count}
    if not counts or min(counts.values()) < 0 or arguments.seed < 0:
        raise DataError("the seed and the numbers of clips must be 0 or more, and one number above 0")
    if not 0 <= arguments.heldout_phrasings <= MAX_HELD_OUT:
        raise DataError(f"--heldout-phrasings {arguments.heldout_phrasings}: use 0 to {MAX_HELD_OUT}")
    if not 10 <= arguments.length <= 3600:
        raise DataError(f"--length {arguments.length:g}: must be 10 to 3600 seconds")
    folds: dict[str, list[str]] | None = None
    if arguments.recordings:
        parsed = parse_folds(arguments.folds) if arguments.folds else FOLDS
        if missing := [split for split in counts if split not in parsed]:
            raise DataError(f"--folds gives no folds for {', '.join(missing)}; add them, or make none of its clips")
        folds = {split: parsed[split] for split in counts}
    elif arguments.folds:
        raise DataError("--folds only works with --recordings FOLDER; add it, or leave out --folds")
    if arguments.captions and (arguments.moments or (arguments.captions == "noisy" and arguments.heldout_phrasings)):
        raise DataError(f"--captions {arguments.captions} does not work with the other options; leave it out")
    settings = Settings(
        name=check_source(arguments.name or arguments.out.absolute().name),
        seed=arguments.seed,
        counts=counts,
        held_out=arguments.heldout_phrasings,
        captions="" if arguments.moments else arguments.captions or "5",
        recordings=content_key(table_path(arguments.recordings)) if arguments.recordings else None,
        folds=folds,
        moments=arguments.moments or "",
        seconds=arguments.length if arguments.moments else 0.0,
    )
    queries = ""
    if arguments.moments:
        count, made = make_moments(arguments.out, settings, arguments.recordings)
        queries = f", {counted(count, 'query')}"
    else:
        made = make_scenes(arguments.out, settings, arguments.recordings)
    clips = counted(sum(counts.values()), "recording" if arguments.moments else "clip")
    print(f"{arguments.out / 'manifest.jsonl'}: {clips}{queries}; {made} were made now")
    return 0
