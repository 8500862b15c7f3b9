"""Sixteen synthetic sound classes, each a row of settings of one synthesiser.

A sound is a tone with partials and a band of noise under an envelope: steady, or struck again and again, in groups. No
two instances are equal, because every setting is drawn from a range. A class that ESC-50 has too has its name.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft

SAMPLE_RATE = 16_000  # Hz

Samples = npt.NDArray[np.float64]
Rng = np.random.Generator
Range = tuple[float, float]


class Voice(NamedTuple):
    """Settings of a class; a pair is a range to draw from.

    Attributes:
        tone: Frequency in Hz; (0, 0): no tone.
        partials: Frequencies relative to the tone.
        bend: Relative change of the frequency: within a strike, or back and forth if `waves` is above 0.
        waves: Waves of the frequency per second.
        noise: Lower and upper edge of the noise in Hz; (0, 0): no noise.
        share: Level of the noise relative to the tone.
        strikes: Strikes per second; (0, 0): steady.
        decay: Seconds in which a strike falls to 1/e.
        group: Strikes in a group; as long as it lasts, so long is the pause behind it. 1: no pauses.
        sway: Range of the slow changes of a steady sound's level.
    """

    tone: Range = (0, 0)
    partials: tuple[float, ...] = (1,)
    bend: Range = (0, 0)
    waves: Range = (0, 0)
    noise: Range = (0, 0)
    share: Range = (1, 1)
    strikes: Range = (0, 0)
    decay: Range = (1, 1)
    group: int = 1
    sway: Range = (0.8, 1.2)


_VOICES = {
    "siren": Voice((650, 900), (1, 2, 3), (0.3, 0.45), (0.3, 0.8)),
    "church_bells": Voice((280, 480), (0.5, 1, 1.19, 1.5, 2, 2.67, 3.01, 4.1), strikes=(0.8, 1.3), decay=(0.6, 1)),
    "clock_alarm": Voice((1900, 2400), (1, 3), strikes=(5, 8), decay=(0.1, 0.2), group=4),
    "rain": Voice(noise=(1200, 7500)),
    "wind": Voice((420, 620), (1,), (0.1, 0.2), (0.2, 0.5), noise=(120, 420), share=(2, 4), sway=(0.2, 1.5)),
    "engine": Voice((35, 60), tuple(range(1, 20)), (0.02, 0.06), (0.4, 1), noise=(60, 900), share=(0.4, 1)),
    "door_wood_knock": Voice((180, 300), (1, 1.6, 2.4, 3.5), strikes=(4.5, 7), decay=(0.02, 0.04), group=3),
    "clock_tick": Voice((3000, 3800), (1, 1.31, 1.73), strikes=(2, 4), decay=(0.005, 0.008)),
    "chirping_birds": Voice((2800, 4000), (1,), (0.2, 0.5), strikes=(7, 10), decay=(0.04, 0.08), group=5),
    "phone_ring": Voice((1150, 1450), (1, 1.26, 2.51), strikes=(18, 26), decay=(0.03, 0.06), group=13),
    "footsteps": Voice((70, 110), (1, 1.9), noise=(1400, 3200), share=(0.5, 1), strikes=(1.6, 2.6), decay=(0.03, 0.05)),
    "thunderstorm": Voice(noise=(30, 250), strikes=(0.5, 0.8), decay=(0.7, 1.3)),
    "whistle": Voice((1000, 1500), (1,), (0.15, 0.4), (1, 2.5), noise=(900, 2500), share=(0.02, 0.08)),
    "water_drops": Voice((650, 900), (1,), (0.3, 0.9), strikes=(2.5, 5), decay=(0.015, 0.03)),
    "crickets": Voice((4700, 5500), strikes=(28, 42), decay=(0.01, 0.02), group=14),
    "hand_saw": Voice(noise=(900, 3000), strikes=(2, 4), decay=(0.2, 0.4)),
}
CLASSES = tuple(_VOICES)


def synthesise(name: str, rng: Rng, n: int) -> Samples:
    """Synthesise one instance of a sound class: (n,) samples at SAMPLE_RATE, n >= 1, at any level."""
    voice = _VOICES[name]
    tone, bend, waves, share, strikes, decay = (
        rng.uniform(*setting)
        for setting in (voice.tone, voice.bend, voice.waves, voice.share, voice.strikes, voice.decay)
    )
    time = np.arange(n) / SAMPLE_RATE
    if strikes:
        count = (time * strikes + rng.uniform(0, 0.3)).astype(int)
        since = time - np.maximum.accumulate(np.where(np.diff(count, prepend=-1) > 0, time, 0))
        envelope = rng.uniform(0.6, 1, count[-1] + 1)[count] * np.exp(-since / decay) * np.minimum(1, since / 0.002)
        envelope *= (count // voice.group) % 2 == 0 if voice.group > 1 else 1
        curve = np.minimum(1, since / (2 * decay))
    else:
        envelope = _random_curve(rng, n, 1, *voice.sway)
        curve = np.sin(2 * np.pi * (waves * time + rng.random()))
    sound = share * filtered_noise(rng, n, _band(*voice.noise)) if voice.noise[1] else np.zeros(n)
    if tone:
        phase = 2 * np.pi * np.cumsum(tone * (1 + bend * curve)) / SAMPLE_RATE
        for number, partial in enumerate(voice.partials, 1):
            sound = sound + rng.uniform(0.4, 1) / number**0.5 * np.sin(partial * phase)
    result: Samples = envelope * sound
    return result


def filtered_noise(rng: Rng, n: int, gain: Callable[[Samples], Samples]) -> Samples:
    """Return noise of RMS 1 whose spectrum follows gain(frequencies in Hz)."""
    size = fft.next_fast_len(n, real=True)
    frequencies = fft.rfftfreq(size, 1 / SAMPLE_RATE)
    noise = fft.irfft(fft.rfft(rng.standard_normal(size)) * gain(frequencies), size)[:n]
    result: Samples = noise / np.sqrt(np.mean(noise**2) + 1e-20)
    return result


def _band(low: float, high: float) -> Callable[[Samples], Samples]:
    """Return a band-pass with soft edges at `low` and `high` Hz, as a function from frequencies to gains."""

    def gain(frequencies: Samples) -> Samples:
        frequencies = np.maximum(frequencies, 1.0)
        return 1 / np.sqrt((1 + (low / frequencies) ** 4) * (1 + (frequencies / high) ** 4))

    return gain


def _random_curve(rng: Rng, n: int, rate: float, low: float, high: float) -> Samples:
    """Return a smooth curve through random values in [low, high], `rate` of them per second."""
    points = np.arange(int(n * rate / SAMPLE_RATE) + 2)
    return np.interp(np.arange(n) * rate / SAMPLE_RATE, points, rng.uniform(low, high, len(points)))
