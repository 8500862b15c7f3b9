"""PANNs Cnn14 at 16 kHz: 2,048-d frames, 3.1 a second, before its pooling over time."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from system.experts.base import ExpertSettings, Frames

if TYPE_CHECKING:
    import torch
    from torch import nn

    from system.networks.weights import Weights

RATE = 16_000  # Hz
FFT = 512
FFT_HOP = 160
BANDS = 64
EPS = 1e-5
CHANNELS = (64, 128, 256, 512, 1024, 2048)
STRIDE = 32  # columns in a frame
SHORTEST = (STRIDE - 1) * FFT_HOP  # samples that make the 32 columns of one frame, 0.31 s
BATCH = 60 * RATE  # samples of clips that are computed together
# Outputs that one output sees to either side: 2 x (1 + 2 + ... + 32) = 126 columns.
REACH = 4
PIECE = 188  # frames (60 s) computed at once of a longer clip


class PannsCnn14(ExpertSettings):
    """Frames (T, 2048), T = (1 + N // 160) // 32 for N samples; silence fills clips under 0.31 s (4,960 samples).

    The last convolution block, averaged over frequency; no pooling over time. Log-mel: see system/networks/frontend.py,
    with the checkpoint's own kernels (periodic Hann 512, hop 160) and mel basis (64 bands, 50 to 8,000 Hz).

    Source: Kong et al., PANNs (2020), `Cnn14_16k` of audioset_tagging_cnn and torchlibrosa 0.1.0. Deviations: batch
    norms folded into convolutions (2e-6 of the largest value; with the log-mel in float32, as before, the same); clips
    over a minute are computed in overlapping pieces, which changes nothing but rounding; resampling by soxr HQ, where
    librosa before 0.10 has resampy's kaiser_best (of 2022: 0.1 to 0.3 % of the largest value of frames).
    """

    kind: Literal["panns_cnn14_16k"]
    weights: str

    usual: ClassVar[dict[str, Any]] = {"weights": "Cnn14_16k_mAP=0.438.pth"}
    rate: ClassVar[int] = RATE
    dim: ClassVar[int] = CHANNELS[-1]
    frames_per_second: ClassVar[float] = RATE / (FFT_HOP * STRIDE)
    cost: ClassVar[float] = 0.024
    parameters: ClassVar[int] = 81_033_231  # with the frozen front-end and the classifier, as the paper counts

    def weight_files(self) -> dict[str, Path]:
        return {"weights": Path(self.weights)}

    def known_sha256(self) -> dict[str, str]:
        return {"weights": "e2ee543a27919542c2ea03eabaa70b24dcd4e6c8e05621de6b67a94e4c5058e6"}

    def published(self) -> dict[str, str]:
        return {"weights": "https://zenodo.org/record/3987831/files/Cnn14_16k_mAP%3D0.438.pth"}

    def load(self, device: "torch.device") -> Frames:
        import torch

        from system.experts.network import exact, in_pieces, of_one_length, placed
        from system.networks.frontend import published_log_mel
        from system.networks.weights import read_weights

        weights = read_weights(Path(self.weights), "model")
        log_mel = published_log_mel(weights, FFT, FFT_HOP).to(device)
        scale, shift = (part.to(device) for part in weights.affine("bn0", BANDS, EPS))
        network = placed(convolutions(weights), device)

        @exact()
        def frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            filled = [np.pad(wave, (0, max(0, SHORTEST - len(wave)))) for wave in waves]
            results: list[np.ndarray] = [np.empty(0)] * len(waves)
            for indices in of_one_length([len(wave) for wave in filled], BATCH):
                columns = log_mel(torch.from_numpy(np.stack([filled[index] for index in indices])).to(device))
                last = in_pieces(network, (columns * scale + shift)[:, None], 2, STRIDE, REACH, PIECE)
                for index, maps in zip(indices, last.mean(3).transpose(1, 2).cpu(), strict=True):
                    results[index] = maps.contiguous().numpy()
            return results

        return frames


def convolutions(weights: "Weights") -> "nn.Sequential":
    """(B, 1, T, 64) -> (B, 2048, T // 32, 2)."""
    from torch import nn

    layers: list[nn.Module] = []
    inputs = 1
    for block, outputs in enumerate(CHANNELS, start=1):
        for part in (1, 2):
            key = f"conv_block{block}"
            layer = weights.convolution(f"{key}.conv{part}", inputs, outputs)
            layers += [weights.folded(layer, f"{key}.bn{part}", EPS), nn.ReLU(inplace=True)]
            inputs = outputs
        layers += [nn.AvgPool2d(2)] if block < len(CHANNELS) else []
    return nn.Sequential(*layers)
