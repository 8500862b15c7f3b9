"""Synthesise events.

Sixteen recognisable sound classes made of sines, noise and envelopes; no two instances are equal.

Every class is a function (rng, n) -> (n,) samples at 16 kHz at any level; the composer sets the level. The ranges of
its parameters are such that a listener would recognise the class. A class that ESC-50 has, too, has the same name as
there.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import fft

SAMPLE_RATE = 16_000  # Hz

Samples = npt.NDArray[np.float64]
Rng = np.random.Generator


def synthesise(name: str, rng: Rng, n: int) -> Samples:
    """Synthesise one instance of a sound class: (n,) samples at SAMPLE_RATE, n >= 1."""
    return _CLASSES[name](rng, n)


def _siren(rng: Rng, n: int) -> Samples:
    """Synthesise a siren: a tone that sweeps up and down."""
    low, high = rng.uniform(450, 650), rng.uniform(1000, 1400)
    rate = rng.uniform(0.3, 0.8) if rng.random() < 0.6 else rng.uniform(2.0, 3.5)  # wail or yelp, sweeps per second
    phase = rate * _seconds(n) + rng.random()
    sweep = 0.5 - 0.5 * np.cos(2 * np.pi * phase)
    return np.tanh(rng.uniform(1.5, 3) * _tone(low * (high / low) ** sweep))


def _church_bells(rng: Rng, n: int) -> Samples:
    """Synthesise church bells."""
    base = rng.uniform(280, 480)
    ratios = np.array([0.5, 1, 1.19, 1.5, 2, 2.67, 3.01, 4.1])
    strengths = rng.uniform(0.3, 1, len(ratios)) / np.arange(1, len(ratios) + 1) ** 0.5

    bell = _ring(base * ratios, strengths, rng.uniform(0.7, 1.1) / ratios**0.6, 2.4)
    return _repeat(rng, n, (0.7, 1.3), lambda strength: strength * bell)


def _clock_alarm(rng: Rng, n: int) -> Samples:
    """Synthesise the beeps of an alarm clock."""
    frequency, beep = rng.uniform(1900, 2400), rng.uniform(0.06, 0.12)
    beeps, rest = rng.integers(2, 5), rng.uniform(0.2, 0.4)
    within = _seconds(n) % (2 * beep * beeps + rest)
    on = (within < 2 * beep * beeps) & (within % (2 * beep) < beep)
    return np.tanh(2 * _tone(np.full(n, frequency))) * _smooth(on, 0.003)


def _rain(rng: Rng, n: int) -> Samples:
    """Synthesise rain: hiss with drops."""
    hiss = filtered_noise(rng, n, _band(rng.uniform(900, 1500), 9000)) * _random_curve(rng, n, 0.7, 0.8, 1.2)
    drops = np.zeros(n)
    count = rng.poisson(rng.uniform(60, 160) * n / SAMPLE_RATE)
    drops[rng.integers(0, n, count)] = rng.exponential(1, count)
    tick = _ring(rng.uniform(2500, 5500, 3), np.ones(3), 0.002, 0.012)
    size = fft.next_fast_len(n + len(tick), real=True)
    ticks: Samples = fft.irfft(fft.rfft(drops, size) * fft.rfft(tick, size), size)[:n]
    return hiss + rng.uniform(1, 3) * ticks


def _wind(rng: Rng, n: int) -> Samples:
    """Synthesise howling wind."""
    low = filtered_noise(rng, n, _band(120, rng.uniform(260, 420)))
    howl = filtered_noise(rng, n, _band(rng.uniform(380, 520), rng.uniform(560, 700), 6))
    return low * _random_curve(rng, n, 0.8, 0.4, 1.2) + rng.uniform(0.5, 1) * howl * _random_curve(
        rng, n, 1.2, 0.0, 1.5
    )


def _engine(rng: Rng, n: int) -> Samples:
    """Synthesise an engine: harmonics of its firing rate, and noise."""
    speed = rng.uniform(35, 60) * _random_curve(rng, n, 1.5, 0.93, 1.07)  # firings per second
    phase = 2 * np.pi * np.cumsum(speed) / SAMPLE_RATE
    orders = np.arange(1, 25)
    strengths = rng.uniform(0.4, 1, len(orders)) / orders ** rng.uniform(0.35, 0.6)
    # All harmonics together from one complex exponential: Horner's scheme on z = exp(i phase).
    z = np.exp(1j * phase)
    tone = np.zeros(n, complex)
    for strength in strengths[::-1] * np.exp(2j * np.pi * rng.random(len(orders))):
        tone = (tone + strength) * z
    return tone.imag + rng.uniform(0.3, 0.8) * filtered_noise(rng, n, _band(60, 900)) * (1 + 0.6 * np.sin(phase))


def _door_wood_knock(rng: Rng, n: int) -> Samples:
    """Synthesise knocks on a wooden door."""
    modes = rng.uniform(180, 300) * np.array([1, 1.6, 2.4, 3.5])
    gap = rng.uniform(0.13, 0.24)

    def knocks(strength: float) -> Samples:
        """Return a group of two to four knocks. strength: Factor of their loudness."""
        onsets = gap * np.arange(rng.integers(2, 5)) * rng.uniform(0.95, 1.05)
        hits = [_knock(rng, modes, 0.03, 0.3) * strength * rng.uniform(0.7, 1) for _ in onsets]
        return _mix_at_onsets(int((onsets[-1] + 0.3) * SAMPLE_RATE), onsets, hits)

    return _repeat(rng, n, (1.0, 1.5), knocks)


def _clock_tick(rng: Rng, n: int) -> Samples:
    """Synthesise a ticking clock."""
    modes = np.array([1, 1.31, 1.73]) * rng.uniform(3000, 3800)
    tock = rng.uniform(0.7, 0.9)
    period = rng.uniform(0.25, 0.5)
    onsets = np.arange(rng.uniform(0, 0.15), n / SAMPLE_RATE, period)
    ticks = [_knock(rng, modes * (tock if i % 2 else 1), 0.006, 0.5) for i in range(len(onsets))]
    return _mix_at_onsets(n, onsets, ticks)


def _chirping_birds(rng: Rng, n: int) -> Samples:
    """Synthesise birdsong."""
    centre, sweep = rng.uniform(3000, 4200), rng.uniform(1.15, 1.5)
    shape = rng.integers(0, 3)
    length = rng.uniform(0.05, 0.12)

    def song(strength: float) -> Samples:
        """Return a group of chirps. strength: Factor of their loudness."""
        count = rng.integers(2, 7)
        notes = []
        for _ in range(count):
            x = np.linspace(0, 1, int(length * rng.uniform(0.8, 1.2) * SAMPLE_RATE))
            bend = (x, 1 - x, np.sin(np.pi * x))[shape]
            notes.append(strength * np.sin(np.pi * x) * _tone(centre * rng.uniform(0.95, 1.05) * sweep**bend))
        onsets = np.arange(count) * length * rng.uniform(1.2, 1.7)
        return _mix_at_onsets(int((onsets[-1] + 1.3 * length) * SAMPLE_RATE), onsets, notes)

    return _repeat(rng, n, (0.5, 1.0), song)


def _phone_ring(rng: Rng, n: int) -> Samples:
    """Synthesise the bell of an old telephone."""
    modes = rng.uniform(1150, 1450) * np.array([1, 1.26, 2.51])
    strokes = rng.uniform(18, 26)  # hammer strokes per second
    on, off = rng.uniform(0.7, 1.2), rng.uniform(0.3, 0.6)
    seconds = _seconds(n)
    hammer = np.exp(-4 * ((seconds * strokes) % 1))
    tone = sum(a * _tone(np.full(n, f)) for f, a in zip(modes, (1, rng.uniform(0.5, 1), 0.4), strict=True))
    ringing = _smooth(seconds % (on + off) < on, 0.02)
    return tone * hammer * ringing


def _footsteps(rng: Rng, n: int) -> Samples:
    """Synthesise footsteps."""
    thump = rng.uniform(70, 110)
    crunch_band = _band(rng.uniform(1200, 1800), rng.uniform(2800, 3600), 3)
    crunch = rng.uniform(0.35, 0.6)

    def step(strength: float) -> Samples:
        """Return one footstep. strength: Factor of its loudness."""
        length = int(0.16 * SAMPLE_RATE)
        scuff = filtered_noise(rng, length, crunch_band) * _decay(length, rng.uniform(0.02, 0.04))
        heel = _ring(thump * rng.uniform(0.9, 1.1) * np.array([1, 1.9]), np.array([1, 0.5]), 0.035, 0.16)
        return strength * (heel[:length] + crunch * scuff)

    return _repeat(rng, n, (0.38, 0.62), step, jitter=0.08)


def _thunderstorm(rng: Rng, n: int) -> Samples:
    """Synthesise thunder."""
    rumble = filtered_noise(rng, n, _band(30, rng.uniform(70, 110), 2))

    def clap(strength: float) -> Samples:
        """Return one clap of thunder. strength: Factor of its loudness."""
        length = int(rng.uniform(1.4, 2.4) * SAMPLE_RATE)
        crack = filtered_noise(rng, length, _band(80, rng.uniform(250, 500), 1)) * _decay(
            length, rng.uniform(0.25, 0.5)
        )
        roll = _random_curve(rng, length, 7, 0.3, 1) * np.minimum(1, np.arange(length) / (0.02 * SAMPLE_RATE))
        return strength * crack * roll

    return 0.35 * rumble * _random_curve(rng, n, 2, 0.3, 1) + 2 * _repeat(rng, n, (1.4, 2.6), clap)


def _whistle(rng: Rng, n: int) -> Samples:
    """Synthesise a whistled melody."""
    base = rng.uniform(1000, 1300)
    steps = rng.choice([0, 2, 4, 5, 7], max(1, int(np.ceil(n / SAMPLE_RATE / 0.3))))
    note = np.minimum((_seconds(n) / rng.uniform(0.3, 0.4)).astype(int), len(steps) - 1)
    vibrato = 1 + rng.uniform(0.005, 0.012) * np.sin(2 * np.pi * rng.uniform(4.5, 6.5) * _seconds(n))
    tone = _tone(_smooth(base * 2 ** (steps[note] / 12), 0.03) * vibrato)
    breath = filtered_noise(rng, n, _band(base * 0.9, base * 1.7))
    return (tone + rng.uniform(0.02, 0.08) * breath) * _random_curve(rng, n, 3, 0.5, 1)


def _water_drops(rng: Rng, n: int) -> Samples:
    """Synthesise drops of water."""
    centre = rng.uniform(650, 900)

    def drop(strength: float) -> Samples:
        """Return one drop, with two echoes. strength: Factor of its loudness."""
        length = int(rng.uniform(0.05, 0.11) * SAMPLE_RATE)
        rise = np.linspace(1, rng.uniform(1.3, 1.9), length)
        plink = strength * _tone(centre * rng.uniform(0.85, 1.2) * rise) * _decay(length, rng.uniform(0.015, 0.03))
        return _mix_at_onsets(int(0.35 * SAMPLE_RATE), np.array([0, 0.09, 0.19]), [plink, 0.25 * plink, 0.1 * plink])

    return _repeat(rng, n, (0.2, 0.55), drop, jitter=0.5)


def _crickets(rng: Rng, n: int) -> Samples:
    """Synthesise one or more chirping crickets."""
    seconds = _seconds(n)
    chorus = np.zeros(n)
    for _ in range(rng.integers(1, 4)):
        pulses = 0.5 - 0.5 * np.cos(2 * np.pi * (rng.uniform(28, 42) * seconds + rng.random()))
        chirps = ((rng.uniform(2, 3.5) * seconds + rng.random()) % 1) < rng.uniform(0.4, 0.6)
        frequency = rng.uniform(4700, 5500)
        chorus += rng.uniform(0.4, 1) * pulses * _smooth(chirps, 0.01) * _tone(np.full(n, frequency))
    return chorus


def _hand_saw(rng: Rng, n: int) -> Samples:
    """Synthesise a hand saw that moves back and forth."""
    strokes = (rng.uniform(1.2, 2.4) * _seconds(n) + rng.random()) * 2  # back and forth
    force = np.abs(np.sin(np.pi * strokes)) ** 0.7
    forth = strokes.astype(int) % 2 == 0
    teeth = 1 + rng.uniform(0.6, 0.9) * np.sin(2 * np.pi * np.cumsum(rng.uniform(80, 140) * force) / SAMPLE_RATE)
    centre = rng.uniform(1300, 1700)
    dark = filtered_noise(rng, n, _band(centre * 0.6, centre * 1.3, 3))
    bright = filtered_noise(rng, n, _band(centre * 0.8, centre * 2.0, 3))
    return np.where(forth, bright, rng.uniform(0.6, 0.9) * dark) * force * teeth


_FUNCTIONS = (
    _siren,
    _church_bells,
    _clock_alarm,
    _rain,
    _wind,
    _engine,
    _door_wood_knock,
    _clock_tick,
    _chirping_birds,
    _phone_ring,
    _footsteps,
    _thunderstorm,
    _whistle,
    _water_drops,
    _crickets,
    _hand_saw,
)
_CLASSES = {function.__name__.removeprefix("_"): function for function in _FUNCTIONS}
CLASSES = tuple(_CLASSES)


def _seconds(n: int) -> Samples:
    """Return the time of each of n samples in seconds."""
    return np.arange(n) / SAMPLE_RATE


def _tone(frequency: Samples) -> Samples:
    """Return a sine wave of varying frequency. frequency: Hz, at each sample."""
    return np.sin(2 * np.pi * np.cumsum(frequency) / SAMPLE_RATE)


def _decay(n: int, seconds: float) -> Samples:
    """Return n samples of an exponential curve that falls from 1 to 1/e in `seconds`."""
    return np.exp(-_seconds(n) / seconds)


def _ring(frequencies: Samples, strengths: Samples, decays: Samples | float, seconds: float) -> Samples:
    """Return the sum of damped sine waves that start together. frequencies: In Hz. decays: Seconds to fall to 1/e."""
    time = _seconds(int(seconds * SAMPLE_RATE))
    decays = np.broadcast_to(decays, frequencies.shape)
    modes = strengths[:, None] * np.exp(-time / decays[:, None]) * np.sin(2 * np.pi * frequencies[:, None] * time)
    result: Samples = modes.sum(axis=0)  # not a matrix product, whose rounding may depend on the number of threads
    return result


def _knock(rng: Rng, modes: Samples, decay: float, noise: float) -> Samples:
    """Return a strike on something hard: tones at `modes` (Hz) that fade in `decay` s, and a click of level `noise`."""
    hit = _ring(modes * rng.uniform(0.98, 1.02, len(modes)), rng.uniform(0.4, 1, len(modes)), decay, 8 * decay)
    return hit + noise * rng.standard_normal(len(hit)) * _decay(len(hit), decay / 6)


def filtered_noise(rng: Rng, n: int, gain: Callable[[Samples], Samples]) -> Samples:
    """Return noise of RMS 1 whose spectrum follows gain(frequencies in Hz)."""
    size = fft.next_fast_len(n, real=True)
    frequencies = fft.rfftfreq(size, 1 / SAMPLE_RATE)
    noise = fft.irfft(fft.rfft(rng.standard_normal(size)) * gain(frequencies), size)[:n]
    result: Samples = noise / np.sqrt(np.mean(noise**2) + 1e-20)
    return result


def _band(low: float, high: float, order: int = 2) -> Callable[[Samples], Samples]:
    """Return a band-pass with soft edges at `low` and `high` Hz, as a function from frequencies (Hz) to gains."""

    def gain(frequencies: Samples) -> Samples:
        """Return the gain of the band-pass at these frequencies (Hz)."""
        frequencies = np.maximum(frequencies, 1.0)
        return 1 / np.sqrt((1 + (low / frequencies) ** (2 * order)) * (1 + (frequencies / high) ** (2 * order)))

    return gain


def _random_curve(rng: Rng, n: int, rate: float, low: float, high: float) -> Samples:
    """Return a smooth curve through random values in [low, high], `rate` of them per second."""
    position = np.arange(n) * rate / SAMPLE_RATE
    values = rng.uniform(low, high, int(position[-1]) + 2)
    index = position.astype(int)
    blend = 0.5 - 0.5 * np.cos(np.pi * (position - index))
    result: Samples = values[index] * (1 - blend) + values[index + 1] * blend
    return result


def _smooth(curve: np.ndarray, seconds: float) -> Samples:
    """Return the curve without steps: a moving average over `seconds`."""
    width = max(1, int(seconds * SAMPLE_RATE))
    total = np.cumsum(np.concatenate([np.full(width, curve[0]), curve]))
    result: Samples = (total[width:] - total[:-width]) / width
    return result


def _mix_at_onsets(n: int, onsets: np.ndarray, sounds: list[Samples]) -> Samples:
    """Return a wave of n samples with sounds placed at their onsets (seconds); sounds are cut at its end."""
    out = np.zeros(n)
    for start, sound in zip((onsets * SAMPLE_RATE).astype(int), sounds, strict=True):
        part = sound[: max(0, n - start)]
        out[start : start + len(part)] += part
    return out


def _repeat(
    rng: Rng, n: int, gap: tuple[float, float], sound: Callable[[float], Samples], jitter: float = 0.05
) -> Samples:
    """Return n samples of a repeated sound.

    gap: Range of the mean interval from one repetition to the next, in seconds; the mean is drawn from it once. jitter:
    Largest difference of a single interval from the mean, as a share of the mean.
    """
    mean = rng.uniform(*gap)
    count = int(n / SAMPLE_RATE / (mean * (1 - jitter))) + 1
    onsets = rng.uniform(0, 0.1) + np.cumsum(mean * rng.uniform(1 - jitter, 1 + jitter, count)) - mean
    onsets = np.maximum(onsets[onsets < n / SAMPLE_RATE], 0)
    return _mix_at_onsets(n, onsets, [sound(rng.uniform(0.7, 1)) for _ in onsets])
