"""One long recording: which events come when, and how loud they stand in its background.

Its shapes are those of two data sets of moments: of CASTELLA the short events, which come again, and of which some
nobody asks for; of Clotho-Moment the recipe (Munakata et al., 2024; h-munakata/Lighthouse-Wrapper-for-Audio-Moment-
Retrieval), one event a query.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from data_tools.scenes.compose import gain, levelled
from data_tools.scenes.recordings import Pool, Recording, cut, draw_recording, without_silent_ends
from data_tools.scenes.synth import SAMPLE_RATE, Rng, Samples, filtered_noise, synthesise

AGAIN_SECONDS = 1.0  # after the end of an event another one of its class does not begin sooner: it would be the same
_TRIES = 20  # cuts of a recording, until one is long enough without its silent ends
_WHOLE_DB = -5.0  # Clotho-Moment: seconds at the ends below this, re the mean power, are cut off


class Shape(NamedTuple):
    """How long recordings of a kind are made.

    gap_seconds: mean of the exponential gaps in front of the events. event_seconds: an event's length is drawn from it
    evenly; a recorded one is repeated with short pauses until it is as long. whole: recorded events are recordings as
    long as they are. again: a class may come several times in a recording, and is one query. asked: the share of
    classes that are asked for. decimals: of windows, which are in seconds.
    level: what is 1 before gains, an event's peak or the RMS of its loudest quarter. event_db: gains of events.
    background_db: RMS of the background. peak_db: the recording's peak re full scale.
    """

    gap_seconds: float
    event_seconds: tuple[float, float]
    whole: bool
    again: bool
    asked: float
    decimals: int
    level: Literal["peak", "rms"]
    event_db: tuple[float, float]
    background_db: tuple[float, float]
    peak_db: tuple[float, float]


SHAPES = {
    "castella": Shape(8.0, (1.5, 8.0), False, True, 0.8, 2, "rms", (-5.0, 5.0), (-50.0, -35.0), (-10.0, -0.5)),
    "clotho": Shape(30.0, (12.0, 30.0), True, False, 1.0, 1, "peak", (-5.0, 5.0), (-25.0, -15.0), (0.0, 0.0)),
}


class TimedEvent(NamedTuple):
    """A sound in a recording. start: its first sample. recording: where it is from, None = it is synthesised."""

    name: str
    recording: Recording | None
    start: int
    sound: Samples

    @property
    def end(self) -> int:
        return self.start + len(self.sound)


def draw_timeline(rng: Rng, shape: Shape, pool: Pool, n: int) -> list[TimedEvent]:
    """The events of a recording of n samples, one after another; the first that would end behind it ends them.

    pool: of at least two classes, all equally likely, as are the recordings of a class. A class follows itself only
    after AGAIN_SECONDS, if the shape has it come again at all.
    """
    events: list[TimedEvent] = []
    end = 0
    while True:
        gap = rng.exponential(shape.gap_seconds)
        last = [event.name for event in events if not shape.again or (event is events[-1] and gap < AGAIN_SECONDS)]
        if not (names := sorted(set(pool) - set(last))):
            return events
        name = names[int(rng.integers(len(names)))]
        recording = draw_recording(rng, pool, name)
        sound = _sound(rng, shape, name, recording)
        start = end + round(gap * SAMPLE_RATE)
        if start + len(sound) > n:
            return events
        events.append(TimedEvent(name, recording, start, sound))
        end = events[-1].end


def mixed(rng: Rng, shape: Shape, events: Sequence[TimedEvent], n: int) -> Samples:
    """The samples of a recording: its events in pink noise, each at a level of its own. (n,), peak at most 1."""
    noise = filtered_noise(rng, n, lambda frequencies: 1 / np.sqrt(np.maximum(frequencies, 20.0)))
    scene: Samples = gain(rng, shape.background_db) * noise
    for event in events:
        sound = levelled(event.sound)
        reference = np.abs(sound).max() if shape.level == "peak" else 0.1
        scene[event.start : event.end] += gain(rng, shape.event_db) / reference * sound
    return scene * (gain(rng, shape.peak_db) / float(np.abs(scene).max()))


def _sound(rng: Rng, shape: Shape, name: str, recording: Recording | None) -> Samples:
    """An event at any level, as long as it can be heard: by event_seconds, or shorter where no cut gives that."""
    if recording and shape.whole:
        return loud_seconds(cut(recording, rng, round(shape.event_seconds[1] * SAMPLE_RATE)))
    for _ in range(_TRIES):
        n = round(rng.uniform(*shape.event_seconds) * SAMPLE_RATE)
        sound = cut(recording, rng, n, fill=True) if recording else synthesise(name, rng, n)
        sound = without_silent_ends(sound)
        if len(sound) >= shape.event_seconds[0] * SAMPLE_RATE:
            break
    return sound


def loud_seconds(sound: Samples) -> Samples:
    """A sound from its first to its last whole second whose power is over the mean of all less 5 dB; one that is
    shorter than a second, as it is."""
    count = len(sound) // SAMPLE_RATE
    if not count:
        return sound
    power = np.mean(sound[: count * SAMPLE_RATE].reshape(count, SAMPLE_RATE) ** 2, axis=1)
    loud = np.flatnonzero(power > np.mean(sound**2) * 10 ** (_WHOLE_DB / 10))
    return sound[loud[0] * SAMPLE_RATE : (loud[-1] + 1) * SAMPLE_RATE] if len(loud) else sound
