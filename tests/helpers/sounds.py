"""Invented sounds at 16 kHz: noise, everyday sounds of kinds that are much alike, tones; and noise over them."""

import numpy as np
import numpy.typing as npt

Wave = npt.NDArray[np.float32]
RATE = 16_000  # Hz


def noise(seed: int, seconds: float, slope: float = 0.0) -> Wave:
    """Noise that falls by `slope` dB an octave above 60 Hz, peak 0.5."""
    count = int(seconds * RATE)
    spectrum = np.fft.rfft(np.random.default_rng(seed).normal(size=count))
    wave = np.fft.irfft(spectrum * np.maximum(np.fft.rfftfreq(count, 1 / RATE), 60) ** (-slope / 6.02), count)
    return (wave / np.abs(wave).max() / 2).astype(np.float32)


def tone(frequency: float, seconds: float = 5.0) -> Wave:
    return (0.3 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def everyday(kind: str, seed: int) -> Wave:
    """5 s of a kind whose sounds are much alike: none is any other's."""
    rng = np.random.default_rng(seed)
    t = np.arange(5 * RATE) / RATE
    if kind == "rain":
        return noise(seed, 5)
    if kind in ("waves", "wind"):
        swell = np.interp(t, np.linspace(0, 5, 20), np.exp(rng.normal(size=20))).astype(np.float32)
        return noise(seed + 100, 5, 6 if kind == "waves" else 18) * swell / 4
    if kind == "ticks":
        hit = noise(seed, 0.05, 12) * np.exp(-np.arange(int(0.05 * RATE)) / 200).astype(np.float32)
        wave = np.zeros(5 * RATE, np.float32)
        for start in range(int(rng.integers(0, 4000)), 5 * RATE - len(hit), RATE // 2):
            wave[start : start + len(hit)] += hit
        return wave
    if kind == "birds":
        wave = noise(seed, 5, 3) / 100
        for start in rng.integers(0, 5 * RATE - 3200, 20):
            pitch = np.linspace(*rng.uniform(1500, 5000, 2), 3200)
            wave[start : start + 3200] += np.hanning(3200) * np.sin(2 * np.pi * np.cumsum(pitch) / RATE) / 4
        return wave
    if kind == "voice":
        wave = noise(seed, 5, 3) / 100
        pitch = np.interp(t, np.linspace(0, 5, 16), rng.uniform(100, 250, 16))
        loud = np.maximum(0, np.interp(t, np.linspace(0, 5, 26), rng.uniform(-0.5, 1, 26)))
        phase = 2 * np.pi * np.cumsum(pitch) / RATE
        wave += sum(np.sin(k * phase) / k for k in range(1, 16)) * loud / 8
        return wave.astype(np.float32)
    if kind == "alarm":
        there = (t * 2 + rng.uniform()) % 1 < 0.3
        return (tone(1000) * there).astype(np.float32) + noise(seed + 300, 5) / 100
    assert kind == "hum"
    return tone(100) + tone(300) / 3 + noise(seed + 400, 5) / 1000
