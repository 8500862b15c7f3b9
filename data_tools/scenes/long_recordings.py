"""Compose long recordings with moments.

A recording has events, and queries with the windows that match them.

All random choices depend on (seed, split, number of the recording), so that later recordings do not change earlier
ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, floor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.cli import each
from data_tools.datasets.clotho import CLOTHO_SPLITS
from data_tools.errors import DataError
from data_tools.files import remove_parts
from data_tools.manifest import Clip, Split, audio_clip, write_manifest
from data_tools.moments import Moment, write_moments
from data_tools.scenes.captions import describe_event
from data_tools.scenes.recordings import Pool, credit
from data_tools.scenes.scene_folder import FolderSettings, claim, write_samples
from data_tools.scenes.synth import SAMPLE_RATE
from data_tools.scenes.timeline import SHAPES, Shape, TimedEvent, draw_timeline, mixed
from data_tools.tables import write_table

MOMENT_COUNTS = {"development": 400, "validation": 60, "evaluation": 120}
EVENT_COLUMNS = ("file_name", "split", "event", "start", "end", "qid")
_SECONDS = (10.0, 3600.0)


@dataclass(frozen=True, kw_only=True)
class MomentSettings(FolderSettings):
    """Settings of long recordings that are composed of single sounds, with the windows of these sounds.

    Attributes:
        moments: Data set whose recordings are imitated (lengths and levels of events), a key of SHAPES in timeline.py.
        seconds: Length of each recording.
        whole_seconds: Whether windows begin and end at full seconds, as CASTELLA's do.
    """

    moments: str
    seconds: float = 60.0
    whole_seconds: bool = False
    format: int = 2

    @property
    def shape(self) -> Shape:
        """Ranges for drawing the recordings at random, such as the lengths of events."""
        return SHAPES[self.moments]


class Recorded(NamedTuple):
    """A composed recording: its clip, its queries, and a row of events.csv for each of its events."""

    clip: Clip
    moments: list[Moment]
    rows: Sequence[Sequence[str]]


def make_moments(out: Path, settings: MomentSettings, recordings: Path | None = None) -> tuple[int, int]:
    """Compose recordings and their moments in a folder; return the numbers of queries and of new audio files.

    recordings: The folder in ESC-50's layout, if settings.recordings is set.
    Writes scenes.json first, then the missing audio files (16 kHz, mono, 16 bit, <split>/<name>.wav). Then come
    events.csv (every event, in unrounded seconds, with the id of its query), <split>_release.jsonl (the queries in
    CASTELLA's format, for submission score), moments.jsonl, and manifest.jsonl last.
    Only one process may write to a folder.
    Both numbers are 0 if the folder was complete.
    Raises DataError for settings out of range, unusable recordings, a split without queries, and a folder with other
    content.
    """
    _check_settings(settings)
    pools = settings.pools(recordings, 2, "two are needed")
    claim(out, {**asdict(settings), "shape": settings.shape._asdict()})
    numbers = {split: range(1, count + 1) for split, count in settings.counts.items()}
    files = [_audio_path(out, settings, split, number) for split in numbers for number in numbers[split]]
    missing = [path for path in files if not path.is_file()]
    tables = [f"{split}_release.jsonl" for split in numbers]
    tables += ["events.csv", "moments.jsonl", "manifest.jsonl"]
    if not missing and all((out / name).is_file() for name in tables):
        return 0, 0
    made: dict[Split, list[Recorded]] = {}
    for split in numbers:
        remove_parts(out / split)
        shown = each(numbers[split], split, "recording")
        made[split] = [_compose_recording(out, settings, split, number, pools[split]) for number in shown]
    for split, recorded in made.items():
        _write_release(out / f"{split}_release.jsonl", recorded)
    recorded = [one for part in made.values() for one in part]
    moments = [moment for one in recorded for moment in one.moments]
    write_table(out / "events.csv", EVENT_COLUMNS, (row for one in recorded for row in one.rows))
    write_moments(out / "moments.jsonl", moments, [one.clip for one in recorded])
    write_manifest(out / "manifest.jsonl", [one.clip for one in recorded])
    return len(moments), len(missing)


def _check_settings(settings: MomentSettings) -> None:
    """Raise DataError if a setting of the composed recordings is out of range."""
    settings.check("recording")
    low, high = _SECONDS
    if not low <= settings.seconds <= high:
        raise DataError(f"--length {settings.seconds:g}: must be {low:g} to {high:g} seconds")
    if settings.whole_seconds and settings.seconds % 1:
        raise DataError(f"--length {settings.seconds:g}: must be a whole number with --whole-seconds")


def _audio_path(out: Path, settings: MomentSettings, split: Split, number: int) -> Path:
    """Return the path of a recording's audio file."""
    return out / split / f"{settings.name}_{split}_{number:05d}.wav"


def _compose_recording(out: Path, settings: MomentSettings, split: Split, number: int, pool: Pool) -> Recorded:
    """Compose one recording, write its audio if it is missing, and return its clip, queries and events."""
    seed = (settings.seed, CLOTHO_SPLITS.index(split), number)
    n = round(settings.seconds * SAMPLE_RATE)
    events = draw_timeline(np.random.default_rng((*seed, 0)), settings.shape, pool, n)
    path = _audio_path(out, settings, split, number)
    if not path.is_file():
        write_samples(path, mixed(np.random.default_rng((*seed, 2)), settings.shape, events, n))
    _, authors, licences = credit(event.recording for event in events)
    moments = draw_queries(np.random.default_rng((*seed, 1)), settings, split, path.stem, events)
    texts = [text for text, _, _ in moments.values()]
    clip = audio_clip(path.parent, path.name, settings.name, split, texts, settings.seconds, None, licences, authors)
    queries = [Moment(id=qid, text=text, clip=clip.id, windows=windows) for qid, (text, _, windows) in moments.items()]
    asking = {event_name: qid for qid, (_, event_name, _) in moments.items()}
    rows = []
    for event in events:
        start, end = (f"{sample / SAMPLE_RATE:.4f}" for sample in (event.start, event.end))
        rows.append((path.name, split, event.name, start, end, asking.get(event.name, "")))
    return Recorded(clip, queries, rows)


Windows = list[tuple[float, float]]


def draw_queries(
    rng: np.random.Generator, settings: MomentSettings, split: Split, vid: str, events: Sequence[TimedEvent]
) -> Mapping[str, tuple[str, str, Windows]]:
    """Draw the queries of a recording; return a dict from query id to (text, sound class, all windows of the class).

    Query ids are "<vid>_<n>", with n from 1. Classes are taken in the order of their first event. Each class gets a
    query with the probability settings.shape.asked; at least one gets it.
    """
    names = list(dict.fromkeys(event.name for event in events))
    is_queried = rng.random(len(names)) < settings.shape.asked
    if names and not is_queried.any():
        is_queried[int(rng.integers(len(names)))] = True
    queried = [name for name, is_wanted in zip(names, is_queried, strict=True) if is_wanted]
    return {
        f"{vid}_{number}": (
            describe_event(rng, name, split, settings.held_out),
            name,
            [window_of(event, settings) for event in events if event.name == name],
        )
        for number, name in enumerate(queried, 1)
    }


def window_of(event: TimedEvent, settings: MomentSettings) -> tuple[float, float]:
    """Return an event's start and end in seconds: extended to full seconds if the settings say so, else rounded."""
    start, end = event.start / SAMPLE_RATE, event.end / SAMPLE_RATE
    if settings.whole_seconds:
        return float(floor(start)), float(ceil(end))
    return round(start, settings.shape.decimals), round(end, settings.shape.decimals)


def _write_release(path: Path, recorded: Sequence[Recorded]) -> None:
    """Write the queries of a split to a file in CASTELLA's format. Raises DataError if no recording has a query."""
    if not any(one.moments for one in recorded):
        raise DataError(
            f"{path}: none of the {len(recorded)} recordings has an event; ask for more recordings or a longer --length"
        )
    write_moments(path, (moment for one in recorded for moment in one.moments), (one.clip for one in recorded))
