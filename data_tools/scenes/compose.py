"""Mix events into a scene.

Composes one scene: events, their times and levels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_tools.scenes.recordings import Pool, Recording, cut, draw_recording, frame_powers
from data_tools.scenes.synth import SAMPLE_RATE, Rng, Samples, synthesise

SECONDS = 8.0
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
_LEVEL, _PEAK = 0.1, 0.95  # RMS of an event's loud parts before gains; highest sample after them
_FADE = 0.02  # seconds


class Event(NamedTuple):
    """A sound class and the recording to use; None: the event is synthesised."""

    name: str
    recording: Recording | None


def draw_events(rng: Rng, kind: str, pool: Pool) -> list[Event]:
    """Draw a scene's events, of different classes; all classes, and all recordings of a class, are equally likely."""
    names = rng.choice(sorted(pool), KINDS[kind], replace=False)
    return [Event(name, draw_recording(rng, pool, name)) for name in names.tolist()]


def render(rng: Rng, kind: str, events: Sequence[Event]) -> Samples:
    """Mix the events of a scene: return its samples, (SECONDS * SAMPLE_RATE,), peak at most 0.95.

    kind: Kind of the scene, a key of KINDS. events: Sounds of different classes, by rising start. In scenes of the kind
    `background`, the last one sounds during all others.
    """
    n = round(SECONDS * SAMPLE_RATE)
    under = kind == "background"
    sounds = [_event_sound(rng, event, _draw_length(rng, _LENGTHS[kind])) for event in events[: -1 if under else None]]
    starts = _draw_starts(rng, kind, [len(sound) for sound in sounds], n)
    scene = gain(rng, _FLOOR_DB) * rng.standard_normal(n)
    for start, sound in zip(starts, sounds, strict=True):
        scene[start : start + len(sound)] += gain(rng, _EVENT_DB) * sound
    if under:
        begin = max(0, starts[0] - _draw_length(rng, _LEAD))
        end = min(n, starts[-1] + len(sounds[-1]) + _draw_length(rng, _LEAD))
        scene[begin:end] += gain(rng, _BACKGROUND_DB) * _event_sound(rng, events[-1], end - begin, fill=True)
    scene *= gain(rng, _SCENE_DB)
    return scene * min(1.0, _PEAK / float(np.abs(scene).max()))


def _event_sound(rng: Rng, event: Event, n: int, fill: bool = False) -> Samples:
    """Return the sound of an event, at most `n` samples, scaled to a common level and faded at both ends.

    fill: Whether a recording that is shorter than n samples is repeated up to n.
    """
    return levelled(cut(event.recording, rng, n, fill) if event.recording else synthesise(event.name, rng, n))


def levelled(sound: Samples) -> Samples:
    """Return a sound with faded ends, scaled so that its loudest quarter has an RMS of 0.1."""
    power = np.sort(frame_powers(sound, SAMPLE_RATE // 20))
    loudest = power[-max(1, len(power) // 4) :]
    fade = np.minimum(1, (np.arange(len(sound)) + 0.5) / (_FADE * SAMPLE_RATE))
    result: Samples = sound * fade * fade[::-1] * (_LEVEL / np.sqrt(np.mean(loudest)))
    return result


def _draw_starts(rng: Rng, kind: str, lengths: Sequence[int], n: int) -> list[int]:
    """Draw the start of each event in a scene of `n` samples; return the starts, as sample numbers, in events' order.

    In an overlap, most of the shorter event is within the other.
    """
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
    """Draw a duration from the range `seconds`; return it as a number of samples."""
    return round(rng.uniform(*seconds) * SAMPLE_RATE)


def gain(rng: Rng, decibels: tuple[float, float]) -> float:
    """Return a random factor to multiply samples by, drawn uniformly in decibels."""
    return float(10 ** (rng.uniform(*decibels) / 20))
