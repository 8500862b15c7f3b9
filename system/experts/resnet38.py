"""PANNs ResNet-38 at 32 kHz: 2,048-d frames, 3.1 a second, before its pooling over time."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from system.experts.base import ExpertSettings, Frames
from system.networks.published import ADDRESSES, BANDS, DIM, FFT, FRAMES_PER_SECOND, HOP, RATE, SHORTEST, STRIDE

if TYPE_CHECKING:
    import torch

BATCH = 60 * RATE  # samples of clips that are computed together
PIECE = 188  # frames (60 s) computed at once of a longer clip


class PannsResNet38(ExpertSettings):
    """Frames (T, 2048), T = (1 + N // 320) // 32 for N samples; silence fills clips under 0.31 s (9,920 samples).

    The last convolution block, averaged over frequency; no pooling over time. Log-mel: see system/networks/frontend.py,
    with the checkpoint's own kernels and mel basis.

    Source: Kong et al., PANNs (2020), `ResNet38` of audioset_tagging_cnn and torchlibrosa 0.1.0. Deviations: batch
    norms folded into convolutions (2e-6 of the largest value); clips over a minute are computed in overlapping pieces,
    which changes nothing but rounding; resampling: see panns.py.
    """

    kind: Literal["panns_resnet38"]
    weights: str

    usual: ClassVar[dict[str, Any]] = {"weights": "ResNet38_mAP=0.434.pth"}
    rate: ClassVar[int] = RATE
    dim: ClassVar[int] = DIM
    frames_per_second: ClassVar[float] = FRAMES_PER_SECOND
    cost: ClassVar[float] = 0.027
    parameters: ClassVar[int] = 74_866_703  # with the frozen front-end and the classifier, as the paper counts

    def weight_files(self) -> dict[str, Path]:
        return {"weights": Path(self.weights)}

    def published(self) -> dict[str, str]:
        return {"weights": ADDRESSES["resnet38"]}

    def load(self, device: "torch.device") -> Frames:
        import torch

        from system.experts.network import exact, in_pieces, of_one_length, placed
        from system.networks.convolutions import fold_norms, take_published
        from system.networks.frontend import published_log_mel
        from system.networks.resnet38 import ResNet38
        from system.networks.weights import read_weights

        weights = read_weights(Path(self.weights), "model")
        network = ResNet38()
        take_published(network, weights)
        fold_norms(network)
        log_mel = published_log_mel(weights, FFT, HOP).to(device)
        scale, shift = (part.to(device) for part in weights.affine("bn0", BANDS, network.bn0.eps))
        convolutions = placed(network, device)

        @exact()
        def frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            filled = [np.pad(wave, (0, max(0, SHORTEST - len(wave)))) for wave in waves]
            results: list[np.ndarray] = [np.empty(0)] * len(waves)
            for indices in of_one_length([len(wave) for wave in filled], BATCH):
                columns = log_mel(torch.from_numpy(np.stack([filled[index] for index in indices])).to(device))
                maps = in_pieces(convolutions, (columns * scale + shift)[:, None], 2, STRIDE, network.reach, PIECE)
                for index, clip_frames in zip(indices, maps.mean(3).transpose(1, 2).cpu(), strict=True):
                    results[index] = clip_frames.contiguous().numpy()
            return results

        return frames
