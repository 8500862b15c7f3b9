"""Front-end of VGGish and YAMNet.

It computes 100 log-mel columns per second, and cuts them into patches.

Source: `mel_features.py` of Google's VGGish; torchvggish contains it unchanged.
"""

import numpy as np

from system.networks import COLUMNS_AT_ONCE

RATE = 16_000  # Hz
SIZE = 512  # of the FFT
WINDOW = 400  # samples
HOP = 160  # samples
PATCH = 96  # columns in a patch (0.96 s)
PATCH_SAMPLES = WINDOW + (PATCH - 1) * HOP  # 15,600: shortest input of one patch, 0.975 s


def mel_basis() -> np.ndarray:
    """Return the mel filters of AudioSet models: (257, 64) float64 triangles.

    The sides of the triangles are linear in mel (in librosa they are linear in Hz), 125 to 7,500 Hz, without area norm.
    """
    from transformers.audio_utils import mel_filter_bank

    # "kaldi" is 1127 ln(1 + Hz / 700), Google's form of HTK's scale.
    result: np.ndarray = mel_filter_bank(
        SIZE // 2 + 1, 64, 125, 7500, RATE, None, "kaldi", triangularize_in_mel_space=True
    )
    return result


def log_mel(wave: np.ndarray, offset: float) -> np.ndarray:
    """Compute the log-mel spectrogram, ln(mel magnitude + `offset`), of a wave for AudioSet models.

    Wave (N,) at 16 kHz, N >= 400 -> T columns of 64 bands, (T, 64) float32, 100 columns per second. A column is
    computed from a periodic Hann window of 400 samples, followed by zeros for a 512-point FFT. There is a window every
    160 samples; the first one begins with the wave. An incomplete window at the end is dropped. Computed in float64.
    """
    windows = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    basis = mel_basis()
    columns = np.empty((len(windows), basis.shape[1]), np.float32)
    for first in range(0, len(windows), COLUMNS_AT_ONCE):
        magnitude = np.abs(np.fft.rfft(windows[first : first + COLUMNS_AT_ONCE] * hann, SIZE))
        columns[first : first + COLUMNS_AT_ONCE] = np.log(magnitude @ basis + offset)
    return columns


def cut_into_patches(columns: np.ndarray, hop: int) -> np.ndarray:
    """Cut a log-mel spectrogram into patches of 96 columns, one every `hop` columns.

    T columns of 64 bands (T, 64) -> P patches (P, 96, 64), P >= 1 for T >= 96. Remaining columns at the end are
    dropped.
    """
    return np.lib.stride_tricks.sliding_window_view(columns, PATCH, axis=0)[::hop].transpose(0, 2, 1)
