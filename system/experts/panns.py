"""PANNs (Cnn14, ResNet-38), frozen.

PANNs: Cnn14 at 16 kHz and ResNet-38 at 32 kHz, 2,048-d frames, 3.1 per second, before their pooling over time.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from system.experts.base import Device, Frames, PublishedWeights
from system.networks.published import ADDRESSES, BANDS, DIM, FFT, FRAMES_PER_SECOND, HOP, RATE, STRIDE, Name

BATCH_SECONDS = 60  # of clips that are computed together
PIECE = 188  # frames (60 s) per piece of a longer clip


class PannsExpert(PublishedWeights):
    """Frames (T, 2048), T = (1 + N // hop) // 32 for N samples; clips under 0.31 s (31 hops) are padded with silence.

    A frame is the output of the last convolution block, averaged over frequency, without pooling over time. The input
    is a log-mel in dB of 64 bands, computed with the kernels and mel filters of the checkpoint (settings `fft`, `hop`).

    Source: Kong et al., PANNs (2020), audioset_tagging_cnn and torchlibrosa 0.1.0. Deviations: batch norms are folded
    into convolutions (frames differ by up to 2e-6 of the largest value). Clips over a minute are computed in
    overlapping pieces, which changes only rounding. Clips are resampled by soxr HQ, while librosa before 0.10 uses
    resampy's kaiser_best. Frames with resampy's method of 2022 (`kaiser_best_0.2`) differ from those with soxr HQ by
    0.1 to 0.3 % of the largest value.
    """

    network: ClassVar[Name]
    fft: ClassVar[int]  # samples
    hop: ClassVar[int]  # samples
    dim: ClassVar[int] = DIM
    frames_per_second: ClassVar[float] = FRAMES_PER_SECOND

    def load(self, device: Device) -> Frames:
        """Return a function that computes the frames of waves on a device."""
        import torch

        from system.experts.network import apply_by_length, compute_in_pieces, exact_arithmetic, move_to_device
        from system.networks.frontend import published_log_mel
        from system.networks.panns import NETWORKS, fold_batch_norms, load_published
        from system.networks.weights import read_weights

        weights = read_weights(Path(self.weights), "model")
        network = NETWORKS[self.network]()
        load_published(network, weights)
        fold_batch_norms(network)
        log_mel = published_log_mel(weights, self.fft, self.hop).to(device)
        scale, shift = (part.to(device) for part in weights.batch_norm_scale_and_shift("bn0", BANDS, network.bn0.eps))
        convolutions = move_to_device(network, device)
        shortest = (STRIDE - 1) * self.hop  # samples for the columns of one frame

        @exact_arithmetic()
        def compute_frames(waves: np.ndarray) -> np.ndarray:
            """Compute the frames of waves of equal length."""
            columns = log_mel(torch.from_numpy(waves).to(device))
            maps = compute_in_pieces(convolutions, (columns * scale + shift)[:, None], 2, STRIDE, network.reach, PIECE)
            return maps.mean(3).transpose(1, 2).contiguous().cpu().numpy()

        def compute_all_frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            """Compute the frames of waves of any lengths."""
            filled = [np.pad(wave, (0, max(0, shortest - len(wave)))) for wave in waves]
            return apply_by_length(filled, BATCH_SECONDS * self.rate, compute_frames)

        return compute_all_frames


class PannsCnn14(PannsExpert):
    """`Cnn14_16k`: periodic Hann 512, hop 160, 50 to 8,000 Hz."""

    kind: Literal["panns_cnn14_16k"]

    usual: ClassVar[dict[str, Any]] = {"weights": "Cnn14_16k_mAP=0.438.pth"}
    address: ClassVar[str] = "https://zenodo.org/record/3987831/files/Cnn14_16k_mAP%3D0.438.pth"
    network: ClassVar[Name] = "cnn14"
    rate: ClassVar[int] = 16_000
    fft: ClassVar[int] = 512
    hop: ClassVar[int] = 160
    parameters: ClassVar[int] = 81_033_231  # with the frozen front-end and the classifier, as in the paper

    def known_sha256(self) -> dict[str, str]:
        """Return a dict from setting name to the first digits of the sha256 of the published weight file."""
        return {"weights": "e2ee543a27919542c2ea03eabaa70b24dcd4e6c8e05621de6b67a94e4c5058e6"}


class PannsResNet38(PannsExpert):
    """`ResNet38`: periodic Hann 1024, hop 320, 50 to 14,000 Hz."""

    kind: Literal["panns_resnet38"]

    usual: ClassVar[dict[str, Any]] = {"weights": "ResNet38_mAP=0.434.pth"}
    address: ClassVar[str] = ADDRESSES["resnet38"]
    network: ClassVar[Name] = "resnet38"
    rate: ClassVar[int] = RATE
    fft: ClassVar[int] = FFT
    hop: ClassVar[int] = HOP
    parameters: ClassVar[int] = 74_866_703  # with the frozen front-end and the classifier, as in the paper
