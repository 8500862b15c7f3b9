"""Log-mel energies as the DCASE 2022 baseline computes them."""

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from system.experts.base import ExpertSettings, Frames

if TYPE_CHECKING:
    import torch

FLOOR = float(np.spacing(1.0))  # 2.2e-16, added to every power
SILENCE = float(np.log(FLOOR))  # -36.04


class LogMelSlaney(ExpertSettings):
    """Frames (T, bands), T = 1 + N // hop: ln(power + 2.2e-16) of mel bands between two frequencies.

    Periodic Hann window, centred, reflect padding, FFT of the next power of two, Slaney's mel scale and area norm;
    silence fills a clip up to one FFT. Kept in float32: float16 has steps of 0.03 at the level of silence.
    Source: librosa 0.8.1's melspectrogram as github.com/xieh97/dcase2022-audio-retrieval calls it (6e-5 on test waves).
    librosa from 0.9.0 on fills the ends with silence, which changes the first and the last frame by up to 1.5.
    """

    kind: Literal["logmel_slaney"]
    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz
    bands: int = Field(ge=8, le=256)
    window_seconds: float = Field(ge=0.005, le=0.2)
    hop_seconds: float = Field(ge=0.002, le=0.2)
    lowest: float = Field(ge=0)  # Hz
    highest: float = Field(gt=0)  # Hz

    dtype: ClassVar[str] = "float32"
    cost: ClassVar[float] = 0.0005

    @model_validator(mode="after")
    def _frequencies_rise(self) -> "LogMelSlaney":
        if not self.lowest < self.highest <= self.sample_rate / 2:
            raise ValueError(
                f"lowest {self.lowest:g} and highest {self.highest:g} Hz: they must rise, up to half of sample_rate"
            )
        return self

    @property
    def rate(self) -> int:
        return self.sample_rate

    @property
    def dim(self) -> int:
        return self.bands

    @property
    def frames_per_second(self) -> float:
        return 1.0 / self.hop_seconds

    def load(self, device: "torch.device") -> Frames:
        import torch
        from torchaudio.functional import melscale_fbanks

        window = round(self.window_seconds * self.sample_rate)
        hop = round(self.hop_seconds * self.sample_rate)
        size = 1 << (window - 1).bit_length()
        hann = torch.hann_window(window).to(device)
        bands = (self.lowest, self.highest, self.bands)
        basis = melscale_fbanks(size // 2 + 1, *bands, self.sample_rate, norm="slaney", mel_scale="slaney").to(device)

        def frames(wave: np.ndarray) -> np.ndarray:
            # Reflect padding needs more samples than it adds.
            filled = torch.from_numpy(np.pad(wave, (0, max(0, size - len(wave))))).to(device)
            spectrum = torch.stft(filled, size, hop, window, hann, pad_mode="reflect", return_complex=True)
            return (spectrum.abs().square().T @ basis + FLOOR).log().cpu().numpy()

        return lambda waves: [frames(wave) for wave in waves]
