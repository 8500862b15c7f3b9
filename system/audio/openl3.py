"""OpenL3: a frame of one second every half second.

This is its network for environmental sounds with 256 mel bands and 512 values.

Source: torchopenl3 1.0.1, `PytorchOpenl3('env', 'mel256', 512)` with hop 0.5 s and `center`. Frames equal the
original's by a relative 5e-5 (tests/golden). The mel filters are those of the checkpoint, since libraries differ.
Deviation: the log-mel is in float64; in recordings with empty bands the original in float32 is wrong by up to 4 %.
"""

from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from system.audio.mel import PublishedDft
from system.audio.network import AudioNetwork, Layers, in_parts

RATE = 48_000  # Hz, also the samples of a frame
HOP = 24_000
PAD = 982  # zeros on either side of a frame, for 199 columns
CHANNELS = (64, 64, 128, 128, 256, 256, 512)
FRAMES_AT_ONCE = 8


class OpenL3(AudioNetwork):
    """Frames (L, 512), centred at t / 2 s.

    Silence fills the first and the last one. Each frame's spectrogram is scaled by its own maximum, so that loudness is
    lost.
    """

    kind: Literal["openl3"]

    rate: ClassVar = RATE
    dim: ClassVar = CHANNELS[-1]
    frame_rate: ClassVar = RATE / HOP
    first_centre: ClassVar = 0.0
    mixes_batch: ClassVar = True
    addresses: ClassVar = {
        "torchopenl3_mel256_env_512.pth.tar": "https://github.com/torchopenl3/torchopenl3-models/raw/master/"
        "torchopenl3_mel256_env_512.pth.tar"
    }

    def layers(self) -> Layers:
        return OpenL3Layers()


class OpenL3Layers(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.dft = PublishedDft(2048, round_window=True)
        self.speclayer = nn.Module()
        self.speclayer.register_buffer("mel_basis", torch.zeros(256, 1025))
        self.batch_normalization_1 = nn.BatchNorm2d(1, eps=1e-3)
        for i, (inputs, outputs) in enumerate(pairwise((1, *CHANNELS)), start=1):
            self.add_module(f"conv2d_{i}", nn.Conv2d(inputs, outputs, 3, padding=1))
            self.add_module(f"batch_normalization_{i + 1}", nn.BatchNorm2d(outputs, eps=1e-3))
        self.audio_embedding_layer = nn.Conv2d(512, 512, 3, padding=1)

    def log_mel(self, windows: Tensor) -> Tensor:
        """Compute the mel level of seconds of sound.

        Args:
            windows: (P, 48000).

        Returns:
            (P, 256, 199): 10 log10 of the amplitude, of which the maximum is 0.
        """
        power = self.dft(F.pad(windows, (PAD, PAD)).unfold(1, 2048, 242))
        basis: Tensor = self.speclayer.mel_basis  # type: ignore[assignment]
        level = 10 * (power @ basis.double().T).sqrt().clamp_min(1e-10).log10()
        return (level - level.amax((1, 2), keepdim=True)).clamp_min(-80.0).float().transpose(1, 2)

    def embed(self, windows: Tensor) -> Tensor:
        x = self.batch_normalization_1(self.log_mel(windows)[:, None])
        for i in range(1, 8):
            x = self.get_submodule(f"batch_normalization_{i + 1}")(self.get_submodule(f"conv2d_{i}")(x))
            x = (F.max_pool2d(x, 2) if i in (2, 4, 6) else x).relu()  # the same as after it, and faster
        return self.audio_embedding_layer(x).amax((2, 3))

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        count = 1 + max(0, -(-(waves.shape[1] - HOP) // HOP))
        windows = F.pad(waves, (HOP, count * HOP - waves.shape[1])).unfold(1, RATE, HOP)
        return in_parts(self.embed, windows, FRAMES_AT_ONCE), (1 + (lengths - 1) // HOP).clamp(1, count)
