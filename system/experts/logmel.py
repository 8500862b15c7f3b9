"""Log-mel energies.

They have this kit's scaling, or are those of the DCASE 2022 baseline. They need no weights, so that all parts of the
kit also run without any checkpoint.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from system.experts.base import Device, ExpertSettings, Frames

if TYPE_CHECKING:
    import torch


FLOOR = float(np.spacing(1.0))  # 2.2e-16, added to every power
SILENCE = float(np.log(FLOOR))  # -36.04


class MelSettings(ExpertSettings):
    """Settings of the mel power spectrogram of log-mel experts, which is computed in float64.

    Periodic Hann window, centred, reflect padding, FFT of the next power of two. A clip shorter than one FFT is padded
    with silence.
    """

    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz
    bands: int = Field(ge=8, le=256)  # number of mel bands
    window_seconds: float = Field(ge=0.005, le=0.2)  # length of a column's window
    hop_seconds: float = Field(ge=0.002, le=0.2)  # from one column to the next

    usual: ClassVar[dict[str, Any]] = {"bands": 64, "window_seconds": 0.04, "hop_seconds": 0.02}

    @property
    def rate(self) -> int:
        """Sample rate of the input waves, in Hz."""
        return self.sample_rate

    def mel_power(
        self, device: Device, lowest: float, highest: float, scale: str = "htk", norm: str | None = None
    ) -> "Callable[[np.ndarray], torch.Tensor]":
        """Return a function that computes a wave's mel power spectrogram, with filters from `lowest` to `highest` Hz.

        The wave: (N,) -> (T, bands) float64, T = 1 + max(N, size of the FFT) // hop. scale: "htk" or "slaney". norm:
        "slaney" for triangles of area 1 Hz, None for height 1.
        """
        import torch
        from transformers.audio_utils import mel_filter_bank

        from system.networks.frontend import MelPower, padded_hann

        window, hop = (round(seconds * self.sample_rate) for seconds in (self.window_seconds, self.hop_seconds))
        size = 1 << (window - 1).bit_length()
        basis = mel_filter_bank(size // 2 + 1, self.bands, lowest, highest, self.sample_rate, norm, scale)
        mel = MelPower(padded_hann(window, size), torch.from_numpy(basis), hop).to(device)

        def compute_power(wave: np.ndarray) -> torch.Tensor:
            """Compute the mel power spectrogram of a wave."""
            filled = np.pad(wave, (0, max(0, size - len(wave))))  # reflect padding needs more samples than it adds
            return mel.compute_centred(torch.from_numpy(filled)[None].to(device))[0]

        return compute_power


class LogMel(MelSettings):
    """Log-mel frames with this kit's scaling. A frame joins `stack` neighbouring columns of the spectrogram.

    HTK mel scale without area norm, ln(power + 1e-5), then (x + 6) / 4. This fixed scaling maps everyday sounds to
    about [-1.4, 2], so that a linear layer may follow. A frame has bands x stack values; the index of the band changes
    fastest. If the last frame has fewer than `stack` columns, its last column is repeated.
    """

    kind: Literal["logmel"]
    stack: int = Field(ge=1, le=64)  # columns per frame

    usual: ClassVar[dict[str, Any]] = MelSettings.usual | {"sample_rate": 16_000, "stack": 4}

    @property
    def dim(self) -> int:
        """Number of values in a frame."""
        return self.bands * self.stack

    @property
    def frames_per_second(self) -> float:
        """Number of frames per second of audio."""
        return 1.0 / (self.hop_seconds * self.stack)

    @property
    def first_centre(self) -> float:
        """Seconds from the beginning of a clip to the centre of its first frame."""
        return self.hop_seconds * (self.stack - 1) / 2

    def load(self, device: Device) -> Frames:
        """Return a function that computes the frames of waves on a device."""
        import torch

        power = self.mel_power(device, 0.0, self.sample_rate / 2)

        def compute_frames(wave: np.ndarray) -> np.ndarray:
            """Compute the log-mel frames of a wave."""
            columns = ((power(wave) + 1e-5).log() + 6.0) / 4.0
            short = -len(columns) % self.stack
            columns = torch.cat([columns, columns[-1:].expand(short, -1)])
            return columns.reshape(-1, self.dim).float().cpu().numpy()

        def compute_all_frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            """Compute the log-mel frames of several waves, in one thread."""
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # with so little work, several threads mostly wait for each other
            try:
                return [compute_frames(wave) for wave in waves]
            finally:
                torch.set_num_threads(threads)

        return compute_all_frames


class LogMelSlaney(MelSettings):
    """Frames (T, bands), T = 1 + N // hop: ln(power + 2.2e-16) of mel bands between two frequencies.

    Periodic Hann window, centred, reflect padding, FFT of the next power of two, Slaney's mel scale and area norm. A
    clip shorter than one FFT is padded with silence. Stored in float32: float16 has steps of 0.03 at silence.
    Source: librosa 0.8.1's melspectrogram as github.com/xieh97/dcase2022-audio-retrieval calls it. On test waves,
    values differ from it by at most 5e-7. librosa 0.9.0 and later pad both ends with silence, which changes the first
    and the last frame by up to 1.5. This is version 2 of the expert. Values of version 1, with an FFT in float32, were
    wrong by up to 2.5 in empty bands of a recording, and by up to 0.003 in bands up to 8 kHz.
    """

    kind: Literal["logmel_slaney"]
    lowest: float = Field(ge=0)  # Hz
    highest: float = Field(gt=0)  # Hz

    usual: ClassVar[dict[str, Any]] = MelSettings.usual | {"sample_rate": 44_100, "lowest": 12, "highest": 8_000}
    version: ClassVar[int] = 2
    dtype: ClassVar[str] = "float32"

    @model_validator(mode="after")
    def _require_rising_frequencies(self) -> "LogMelSlaney":
        """Raise an error unless `lowest` is below `highest`, and `highest` at most half of the sample rate."""
        if not self.lowest < self.highest <= self.sample_rate / 2:
            raise ValueError(
                f"lowest is {self.lowest:g} Hz and highest {self.highest:g} Hz: lowest must be below highest, and "
                f"highest at most half of sample_rate ({self.sample_rate / 2:g} Hz)"
            )
        return self

    @property
    def dim(self) -> int:
        """Number of values in a frame."""
        return self.bands

    @property
    def frames_per_second(self) -> float:
        """Number of frames per second of audio."""
        return 1.0 / self.hop_seconds

    @property
    def first_centre(self) -> float:
        """Seconds from the beginning of a clip to the centre of its first frame."""
        return 0.0

    def load(self, device: Device) -> Frames:
        """Return a function that computes the frames of waves on a device."""
        power = self.mel_power(device, self.lowest, self.highest, scale="slaney", norm="slaney")
        return lambda waves: [(power(wave) + FLOOR).log().float().cpu().numpy() for wave in waves]
