"""Mix events into scenes and long recordings.

Recordings in ESC-50's layout are cut into events.

Piczak, "ESC: Dataset for Environmental Sound Classification", ACM Multimedia 2015; https://github.com/karolpiczak/ESC-50
ESC-50 is CC BY-NC, its part ESC-10 is CC BY; every clip comes from Freesound.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.audio import read_audio
from data_tools.errors import AudioError, KitError
from data_tools.scenes.synth import SAMPLE_RATE, Rng, Samples, filtered_noise, synthesise
from data_tools.tables import read_table

# Relative to the loudest frame of a recording: quieter ends are cut off; a part has a frame louder than this.
SILENCE_DB, LOUD_DB = -40.0, -20.0
_FRAME = SAMPLE_RATE // 100
_LEVEL, _PEAK = 0.1, 0.95  # RMS of an event's loud parts before gains; highest sample after them
_FADE = 0.02  # seconds

SECONDS = 8.0  # of a scene
# Kinds of scene, used in turn; their events are in sequence, overlapping, or the last one under a sequence of two.
KINDS = {"one": 1, "sequence_2": 2, "overlap": 2, "sequence_3": 3, "background": 3}
_LENGTHS = {  # seconds of an event that is not a background
    "one": (2.0, 5.0),
    "sequence_2": (1.5, 3.5),
    "overlap": (2.5, 4.5),
    "sequence_3": (1.5, 2.2),
    "background": (1.5, 2.2),
}
_GAP = (0.1, 0.5)  # seconds between events of a sequence; three of 2.2 s and two gaps are under SECONDS
_LEAD = (0.4, 1.2)  # seconds of a background before and after the sequence
_EVENT_DB, _BACKGROUND_DB, _SCENE_DB = (-5.0, 5.0), (-14.0, -8.0), (-10.0, 0.0)
_FLOOR_DB = (-70.0, -55.0)  # re full scale

# Long recordings, as CASTELLA's: short events that repeat, over pink noise.
AGAIN_SECONDS = 1.0  # shortest gap between two events of one class: closer ones would count as the same event
GAP_SECONDS = 8.0  # mean of the gaps before events, exponential
EVENT_SECONDS = (1.5, 8.0)  # a recorded sound that is shorter is repeated
_NOISE_DB, _PEAK_DB = (-50.0, -35.0), (-10.0, -0.5)  # RMS of the noise relative to events; peak re full scale
_TRIES = 20  # cuts of a recording, until one is long enough without its silent ends


class Recording(NamedTuple):
    """A labelled recording. author, licence and url (its Freesound page) are "" if unknown."""

    path: Path
    author: str
    licence: str
    url: str


Pool = Mapping[str, Sequence[Recording]]  # recordings by class; a class without any is synthesised


class Event(NamedTuple):
    """A sound class and the recording to use; None: the event is synthesised."""

    name: str
    recording: Recording | None


class TimedEvent(NamedTuple):
    """A sound in a long recording. start: Its first sample. recording: None if it is synthesised."""

    name: str
    recording: Recording | None
    start: int
    sound: Samples

    @property
    def end(self) -> int:
        """Number of the first sample after the event."""
        return self.start + len(self.sound)


def table_path(folder: Path) -> Path:
    """Return the path of the table of a folder in ESC-50's layout. Raises KitError if it is missing."""
    for path in (folder / "meta" / "esc50.csv", folder / "esc10.csv"):
        if path.is_file():
            return path
    raise KitError(f"{folder}: not in ESC-50's layout, which needs meta/esc50.csv (or esc10.csv) and audio/")


def read_recordings(folder: Path, folds: Sequence[str]) -> dict[str, list[Recording]]:
    """Return the recordings of the given folds by category, sorted.

    The table has filename or file_name, fold and category; author, clip_license and freesound_url are optional.
    Raises KitError for a missing table.
    """
    path = table_path(folder)
    rows = read_table(path, ["fold", "category"])
    column = "filename" if "filename" in rows[0][1] else "file_name"
    if column not in rows[0][1]:
        raise KitError(f"{path}: no column filename, only {', '.join(rows[0][1])}; add it")
    pool: dict[str, list[Recording]] = {}
    for row in sorted((row for _, row in rows), key=lambda row: (row["category"], row[column])):
        if row["fold"] in folds:
            facts = (row.get(name, "") for name in ("author", "clip_license", "freesound_url"))
            pool.setdefault(row["category"], []).append(Recording(folder / "audio" / row[column], *facts))
    return pool


def credit(events: Iterable[Event | TimedEvent]) -> tuple[str, str, str]:
    """Return pages, authors and licences of the recordings in a clip, each joined by "; "; "" if unknown."""
    known = [event.recording for event in events if event.recording]
    facts = ([one.url for one in known], [one.author for one in known], [one.licence for one in known])
    links, authors, licences = ("; ".join(dict.fromkeys(filter(None, values))) for values in facts)
    return links, authors, licences


def draw_events(rng: Rng, kind: str, pool: Pool) -> list[Event]:
    """Draw a scene's events, of different classes; all classes, and all recordings of a class, are equally likely."""
    names = rng.choice(sorted(pool), KINDS[kind], replace=False)
    return [Event(name, _draw_recording(rng, pool, name)) for name in names.tolist()]


def _draw_recording(rng: Rng, pool: Pool, name: str) -> Recording | None:
    return pool[name][int(rng.integers(len(pool[name])))] if pool[name] else None


def render(rng: Rng, kind: str, events: Sequence[Event]) -> Samples:
    """Mix the events of a scene: (SECONDS * SAMPLE_RATE,) samples, peak at most 0.95.

    Args:
        kind: Key of KINDS.
        events: By rising start. In the kind `background`, the last one sounds during all others.
    """
    n, under = round(SECONDS * SAMPLE_RATE), kind == "background"
    sounds = [_event_sound(rng, event, _draw_length(rng, _LENGTHS[kind])) for event in events[: -1 if under else None]]
    starts = _draw_starts(rng, kind, [len(sound) for sound in sounds], n)
    scene = _gain(rng, _FLOOR_DB) * rng.standard_normal(n)
    for start, sound in zip(starts, sounds, strict=True):
        scene[start : start + len(sound)] += _gain(rng, _EVENT_DB) * sound
    if under:
        begin = max(0, starts[0] - _draw_length(rng, _LEAD))
        end = min(n, starts[-1] + len(sounds[-1]) + _draw_length(rng, _LEAD))
        scene[begin:end] += _gain(rng, _BACKGROUND_DB) * _event_sound(rng, events[-1], end - begin, fill=True)
    scene *= _gain(rng, _SCENE_DB)
    return scene * min(1.0, _PEAK / float(np.abs(scene).max()))


def _event_sound(rng: Rng, event: Event, n: int, fill: bool = False) -> Samples:
    return _levelled(cut(event.recording, rng, n, fill) if event.recording else synthesise(event.name, rng, n))


def _levelled(sound: Samples) -> Samples:
    """Return a sound with a common RMS of its loudest quarter, faded at both ends."""
    power = np.sort(_frame_powers(sound, SAMPLE_RATE // 20))
    loudest = power[-max(1, len(power) // 4) :]
    fade = np.minimum(1, (np.arange(len(sound)) + 0.5) / (_FADE * SAMPLE_RATE))
    result: Samples = sound * fade * fade[::-1] * (_LEVEL / np.sqrt(np.mean(loudest)))
    return result


def _draw_starts(rng: Rng, kind: str, lengths: Sequence[int], n: int) -> list[int]:
    """Draw the first sample of each event. In an overlap, most of the shorter event is within the other."""
    if kind == "overlap":
        short, long = sorted(lengths)
        later = round(rng.uniform(-0.4 * short, long - 0.6 * short))  # start of the shorter one relative to the longer
        starts = [0, later] if lengths[1] == short else [later, 0]
        starts = [start - min(starts) for start in starts]
    else:
        starts = [0]
        for length in lengths[:-1]:
            starts.append(starts[-1] + length + _draw_length(rng, _GAP))
    spare = n - max(start + length for start, length in zip(starts, lengths, strict=True))
    lead = int(rng.integers(0, spare + 1))
    return [start + lead for start in starts]


def _draw_length(rng: Rng, seconds: tuple[float, float]) -> int:
    return round(rng.uniform(*seconds) * SAMPLE_RATE)


def _gain(rng: Rng, decibels: tuple[float, float]) -> float:
    return float(10 ** (rng.uniform(*decibels) / 20))


def draw_timeline(rng: Rng, pool: Pool, n: int) -> list[TimedEvent]:
    """Draw the events of a recording of n samples; it ends before the first event that does not fit.

    All classes of the pool (two or more) are equally likely, and all recordings of a class. A class is repeated only
    after a gap of a second.
    """
    events: list[TimedEvent] = []
    end = 0
    while True:
        gap = rng.exponential(GAP_SECONDS)
        last = {events[-1].name} if events and gap < AGAIN_SECONDS else set[str]()
        names = sorted(set(pool) - last)
        name = names[int(rng.integers(len(names)))]
        recording = _draw_recording(rng, pool, name)
        sound = _draw_sound(rng, name, recording)
        start = end + round(gap * SAMPLE_RATE)
        if start + len(sound) > n:
            return events
        events.append(TimedEvent(name, recording, start, sound))
        end = events[-1].end


def mixed(rng: Rng, events: Sequence[TimedEvent], n: int) -> Samples:
    """Mix the events of a long recording into pink noise: (n,) samples, peak at most 1."""
    noise = filtered_noise(rng, n, lambda frequencies: 1 / np.sqrt(np.maximum(frequencies, 20.0)))
    scene: Samples = _gain(rng, _NOISE_DB) * noise
    for event in events:
        scene[event.start : event.end] += _gain(rng, _EVENT_DB) / _LEVEL * _levelled(event.sound)
    return scene * (_gain(rng, _PEAK_DB) / float(np.abs(scene).max()))


def _draw_sound(rng: Rng, name: str, recording: Recording | None) -> Samples:
    """Draw the sound of an event, with a length in EVENT_SECONDS, or shorter if necessary."""
    for _ in range(_TRIES):
        n = _draw_length(rng, EVENT_SECONDS)
        sound = without_silent_ends(cut(recording, rng, n, fill=True) if recording else synthesise(name, rng, n))
        if len(sound) >= EVENT_SECONDS[0] * SAMPLE_RATE:
            break
    return sound


def cut(recording: Recording, rng: Rng, n: int, fill: bool = False) -> Samples:
    """Cut a random part of at most n samples, with some loud sound, from a recording without its silent ends.

    fill: Repeat a shorter recording up to n samples, with short pauses.
    Raises AudioError for a recording that cannot be read, and for silence.
    """
    sound, loud = _read_trimmed(recording.path)
    if len(sound) > n:
        at = loud[rng.integers(len(loud))]
        latest = min(at, len(sound) - n)
        start = rng.integers(min(latest, max(0, at + _FRAME - n)), latest + 1)
        return sound[start : start + n]
    parts = [sound]
    while fill and sum(map(len, parts)) < n:
        parts += [np.zeros(int(rng.uniform(0.1, 0.4) * SAMPLE_RATE)), sound]
    return np.concatenate(parts)[:n]


@lru_cache(maxsize=512)
def _read_trimmed(path: Path) -> tuple[Samples, list[int]]:
    """Read a recording without its silent ends; return it, and the first sample of each loud frame."""
    sound = read_audio(path, SAMPLE_RATE).astype(np.float64)
    power = _frame_powers(sound, _FRAME)
    if not power.any():
        raise AudioError(f"{path}: contains only silence; remove its row from the table")
    begin, end = _audible_range(power)
    loud = np.flatnonzero(power > power.max() * 10 ** (LOUD_DB / 10))
    return sound[begin:end], (loud * _FRAME - begin).tolist()


def without_silent_ends(sound: Samples) -> Samples:
    """Return a sound from its first to its last audible frame of 10 ms; a sound without one is returned whole."""
    begin, end = _audible_range(_frame_powers(sound, _FRAME))
    return sound[begin:end]


def _frame_powers(sound: Samples, length: int) -> Samples:
    """Return the mean power of every frame of `length` samples; the last one is filled up with zeros."""
    result: Samples = np.mean(np.pad(sound, (0, -len(sound) % length)).reshape(-1, length) ** 2, axis=1)
    return result


def _audible_range(power: Samples) -> tuple[int, int]:
    """Return the first audible sample, and the first one after the last audible frame."""
    audible = np.flatnonzero(power >= power.max() * 10 ** (SILENCE_DB / 10))
    return int(audible[0]) * _FRAME, (int(audible[-1]) + 1) * _FRAME
