"""Synthesise sounds, with the settings in voices.yaml.

A sound is a tone with partials and a band of noise under an envelope: steady, or struck again and again, in groups. No
two instances are equal, because every setting is drawn from a range. A class that ESC-50 has too has its name.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_tools.settings import parse_yaml

SAMPLE_RATE = 16_000  # Hz

Samples = npt.NDArray[np.float64]
Rng = np.random.Generator


_TABLE = parse_yaml(Path(__file__).with_name("voices.yaml").read_bytes())
_VOICES = {name: _TABLE["default"] | voice for name, voice in _TABLE["voices"].items()}
_DRAWN = ("tone", "bend", "waves", "share", "strikes", "decay")  # settings that are ranges for a whole sound
CLASSES = tuple(_VOICES)


def synthesise(name: str, rng: Rng, n: int) -> Samples:
    """Synthesise one instance of a sound class: (n,) samples at SAMPLE_RATE, n >= 1, at any level."""
    voice = _VOICES[name]
    tone, bend, waves, share, strikes, decay = (rng.uniform(*voice[setting]) for setting in _DRAWN)
    time = np.arange(n) / SAMPLE_RATE
    if strikes:
        count = (time * strikes + rng.uniform(0, 0.3)).astype(int)
        since = time - np.maximum.accumulate(np.where(np.diff(count, prepend=-1) > 0, time, 0))
        envelope = rng.uniform(0.6, 1, count[-1] + 1)[count] * np.exp(-since / decay) * np.minimum(1, since / 0.002)
        envelope *= (count // voice["group"]) % 2 == 0 if voice["group"] > 1 else 1
        curve = np.minimum(1, since / (2 * decay))
    else:
        envelope = _random_curve(rng, n, 1, *voice["sway"])
        curve = np.sin(2 * np.pi * (waves * time + rng.random()))
    sound = share * filtered_noise(rng, n, _band(*voice["noise"])) if voice["noise"][1] else np.zeros(n)
    if tone:
        phase = 2 * np.pi * np.cumsum(tone * (1 + bend * curve)) / SAMPLE_RATE
        for number, partial in enumerate(voice["partials"], 1):
            sound = sound + rng.uniform(0.4, 1) / number**0.5 * np.sin(partial * phase)
    result: Samples = envelope * sound
    return result


def filtered_noise(rng: Rng, n: int, gain: Callable[[Samples], Samples]) -> Samples:
    """Return noise of RMS 1 whose spectrum follows gain(frequencies in Hz)."""
    from scipy import fft  # slow to import, which --help would wait for

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
