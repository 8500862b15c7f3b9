"""The front-end of the AudioSet models (VGGish, YAMNet): log-mel columns at 100 a second, cut into patches.

Source: `mel_features.py` of Google's VGGish; torchvggish carries it unchanged."""

import numpy as np

RATE = 16_000  # Hz
WINDOW = 400  # samples
HOP = 160  # samples
PATCH = 96  # columns in a patch (0.96 s)
PATCH_SAMPLES = WINDOW + (PATCH - 1) * HOP  # 15,600: the least that fills a patch, 0.975 s


def mel_basis() -> np.ndarray:
    """(257, 64) float64 triangles, linear in HTK mel between 125 and 7,500 Hz, no area norm.

    torchaudio's and librosa's HTK triangles are linear in Hz."""

    def mel(hertz: np.ndarray) -> np.ndarray:
        return 1127.0 * np.log1p(hertz / 700.0)

    bins = mel(np.linspace(0.0, RATE / 2, 257))[:, None]
    edges = np.linspace(mel(np.array(125.0)), mel(np.array(7500.0)), 66)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    return np.maximum(0.0, np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)))


def log_mel(wave: np.ndarray, offset: float) -> np.ndarray:
    """(N,) at 16 kHz, N >= 400 -> (T, 64), ln(mel magnitude + offset), 100 columns a second, of the wave's float type.

    Periodic Hann 400, hop 160, no centring, magnitude of a 512-point FFT (zeros at the end), incomplete windows
    dropped."""
    windows = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(wave.dtype)
    magnitude = np.abs(np.fft.rfft(windows * hann, 512)).astype(wave.dtype)
    return np.log(magnitude @ mel_basis().astype(wave.dtype) + offset, dtype=wave.dtype)


def patches(columns: np.ndarray, hop: int) -> np.ndarray:
    """(T, 64) -> (P, 96, 64): a patch every `hop` columns, what is left at the end dropped; P >= 1 needs T >= 96."""
    return np.lib.stride_tricks.sliding_window_view(columns, PATCH, axis=0)[::hop].transpose(0, 2, 1)
