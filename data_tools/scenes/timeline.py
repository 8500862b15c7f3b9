"""Timeline of a long recording.

Draws the events of one long recording, with their times and levels.

A shape is a set of settings that imitates a data set of moments. The shape `castella` imitates CASTELLA: short events,
which repeat, some of them without a query. The shape `clotho` repeats the recipe of Clotho-Moment, with one event per
query (Munakata et al., 2024; h-munakata/Lighthouse-Wrapper-for-Audio-Moment-Retrieval).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from data_tools.scenes.compose import gain, levelled
from data_tools.scenes.recordings import Pool, Recording, cut, draw_recording, without_silent_ends
from data_tools.scenes.synth import SAMPLE_RATE, Rng, Samples, filtered_noise, synthesise

AGAIN_SECONDS = 1.0  # shortest gap between two events of one class: closer ones would count as the same event
_TRIES = 20  # cuts of a recording, until one is long enough without its silent ends
_WHOLE_DB = -5.0  # Clotho-Moment: cuts off seconds at the ends below this, relative to the mean power


class Shape(NamedTuple):
    """Settings of long recordings of one kind.

    Attributes:
        gap_seconds: Mean length of the gaps before events; each gap is drawn from an exponential distribution.
        event_seconds: Range of the lengths of events; each length is drawn uniformly. A recorded sound that is too
            short is repeated with short pauses.
        whole: Whether recorded events are complete recordings, with their own length.
        again: Whether a sound class may occur several times in a recording. Its query then has several windows.
        asked: Probability that a sound class in a recording gets a query.
        decimals: Decimal places of window times in seconds.
        level: Meaning of `event_db`: level of the peak of an event, or of the RMS of its loudest quarter.
        event_db: Range of the events' levels in dB.
        background_db: Range of the background's level (RMS) in dB.
        peak_db: Range of the whole recording's peak, in dB relative to full scale.
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
    """A sound in a recording. start: Its first sample. recording: Its source; None: it is synthesised."""

    name: str
    recording: Recording | None
    start: int
    sound: Samples

    @property
    def end(self) -> int:
        """Number of the first sample after the event."""
        return self.start + len(self.sound)


def draw_timeline(rng: Rng, shape: Shape, pool: Pool, n: int) -> list[TimedEvent]:
    """Draw the sequence of events of a recording of n samples; it ends before the first event that does not fit.

    Args:
        pool: Dict from sound class to its recordings; at least two classes. All classes are equally likely, and so are
            all recordings of a class.

    A class is repeated only after a gap of a second (AGAIN_SECONDS), and only if `shape` allows repeated classes.
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
        sound = _draw_sound(rng, shape, name, recording)
        start = end + round(gap * SAMPLE_RATE)
        if start + len(sound) > n:
            return events
        events.append(TimedEvent(name, recording, start, sound))
        end = events[-1].end


def mixed(rng: Rng, shape: Shape, events: Sequence[TimedEvent], n: int) -> Samples:
    """Return the samples of a recording, (n,), peak at most 1: its events in pink noise, each with its own level."""
    noise = filtered_noise(rng, n, lambda frequencies: 1 / np.sqrt(np.maximum(frequencies, 20.0)))
    scene: Samples = gain(rng, shape.background_db) * noise
    for event in events:
        sound = levelled(event.sound)
        reference = np.abs(sound).max() if shape.level == "peak" else 0.1
        scene[event.start : event.end] += gain(rng, shape.event_db) / reference * sound
    return scene * (gain(rng, shape.peak_db) / float(np.abs(scene).max()))


def _draw_sound(rng: Rng, shape: Shape, name: str, recording: Recording | None) -> Samples:
    """Return an event's sound before levelling, with a length in shape.event_seconds, or shorter if necessary."""
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
    """Cut a sound to its loud part: from the first to the last second whose power is above the sound's mean minus 5 dB.

    A sound shorter than a second is unchanged.
    """
    count = len(sound) // SAMPLE_RATE
    if not count:
        return sound
    power = np.mean(sound[: count * SAMPLE_RATE].reshape(count, SAMPLE_RATE) ** 2, axis=1)
    loud = np.flatnonzero(power > np.mean(sound**2) * 10 ** (_WHOLE_DB / 10))
    return sound[loud[0] * SAMPLE_RATE : (loud[-1] + 1) * SAMPLE_RATE] if len(loud) else sound
