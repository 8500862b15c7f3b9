"""ATST-Frame (base): a transformer over slices of a log-mel.

A slice lasts 40 ms. Source: Li et al., "Self-Supervised Audio Teacher-Student Transformer for Both Clip-Level and
Frame-Level Tasks" (2023), as in github.com/OptimusPrimus/salsa. Frames equal the original's by a relative 2e-5
(tests/golden). Deviation: in evaluation, the floor of the log-mel is 80 dB below the largest value of the segment, not
of the batch.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torchaudio.functional import melscale_fbanks, resample

from system.audio.blocks import Block, table
from system.audio.mel import power
from system.audio.network import AudioNetwork, Layers, frames_within

LAST = "norm_frame.weight"


class AtstFrame(AudioNetwork):
    """Frames (L, 768), 25 per second.

    The vector of a segment is their mean.
    """

    kind: Literal["atst_frame"]
    floor: Literal["segment", "batch"] = "segment"  # largest value in training, under which 80 dB remain

    rate: ClassVar = 32_000
    dim: ClassVar = 768
    frame_rate: ClassVar = 25.0
    seconds: ClassVar = (0.04, 10.0)
    addresses: ClassVar = {
        "atstframe_base.ckpt": "Google Drive, id 1bGJSZWlAIIJ6GL5Id5dW0PTB72DL-QDQ, linked from "
        "github.com/Audio-WestlakeU/audiossl"
    }

    @property
    def mixes_batch(self) -> bool:
        return self.floor == "batch"

    def layers(self) -> Layers:
        return AtstFrameLayers(self.floor == "batch")


class AtstFrameLayers(Layers):
    def __init__(self, floor_of_batch: bool) -> None:
        super().__init__()
        self.floor_of_batch = floor_of_batch
        self.window = nn.Buffer(torch.hann_window(1024), persistent=False)
        self.basis = nn.Buffer(melscale_fbanks(513, 60.0, 7800.0, 64, 16_000).T, persistent=False)
        self.patch_embed = nn.ModuleDict({"patch_embed": nn.Linear(256, 768)})
        self.pos_embed = table(251, 768)
        self.blocks = nn.Sequential(*(Block(qkv_bias=False) for _ in range(12)))
        self.norm_frame = nn.LayerNorm(768, 1e-6)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take the tensors; a teacher's, if there is a student."""
        found = [key for key in tensors if key.endswith(LAST)]
        prefix = max(found, key=lambda key: "teacher" in key, default=LAST).removesuffix(LAST)
        super().load({key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)})

    @torch.no_grad()
    def log_mel(self, waves: Tensor) -> Tensor:
        """Compute the input of the transformer.

        Returns:
            (S, 64, T), about -1 to 1.
        """
        with torch.autocast(waves.device.type, enabled=False):
            spectrum = torch.stft(resample(waves, 32_000, 16_000), 1024, 160, 1024, self.window, return_complex=True)
            decibels = 10 * (self.basis @ power(spectrum)).clamp_min(1e-10).log10()
            whole = self.training and self.floor_of_batch
            largest = decibels.amax() if whole else decibels.amax((1, 2), keepdim=True)
            return (torch.maximum(decibels, largest - 80).clamp(-50, 80) + 79.6482) / 130.3324 * 2 - 1

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        columns = self.log_mel(waves)
        size = columns.shape[2] // 4
        slices = columns[:, :, : size * 4].unflatten(2, (size, 4)).transpose(1, 2).flatten(2)
        x = self.patch_embed["patch_embed"](slices) + self.pos_embed[:, 1 : size + 1]
        return self.norm_frame(self.blocks(x)), frames_within(lengths, waves.shape[1], size)
