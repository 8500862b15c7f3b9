"""VGGish, frozen.

VGGish: 128-d frames, one per 0.96 s, by default with its post-processing (PCA, 8-bit quantisation).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from system.experts.audioset import PATCH, PATCH_SAMPLES, RATE, cut_into_patches, log_mel
from system.experts.base import Frames, PublishedWeights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from system.networks.weights import Weights

RELEASE = "https://github.com/harritaylor/torchvggish/releases/download/v0.1"
OFFSET = 0.01  # added to the mel magnitude before the logarithm
# Key of each convolution, its output channels, and whether 2 x 2 max pooling follows.
CONVOLUTIONS = ((0, 64, True), (3, 128, True), (6, 256, False), (8, 256, True), (11, 512, False), (13, 512, True))
DENSE = ((0, 12_288, 4096), (2, 4096, 4096), (4, 4096, 128))
BATCH = 16  # patches
DENSE_BATCH = 256  # patches: reading the 270 MB of weights dominates the cost of dense layers
LIMIT = 2.0  # quantised PCA values are clipped to [-2, 2]


def _pca_error(message: str) -> PydanticCustomError:
    """Make the validation error for a wrong setting pca_weights."""
    return PydanticCustomError("pca", message)


class Vggish(PublishedWeights):
    """Frames (T, 128) of VGGish, T = 1 + ((1 + (N - 400) // 160) - 96) // 96 for N samples at 16 kHz.
    Clips under 0.975 s (15,600 samples) are padded with silence.

    output: `raw` is the output of the last layer, `pca` its PCA with whitening, and `quantised` this PCA clipped to
    [-2, 2] and rounded to 0 to 255, like the published AudioSet features. The last layer ends with a ReLU. Front-end in
    float64: `audioset.py`, ln(x + 0.01), patches of 96 columns without overlap; remaining columns at the end are
    dropped.

    Source: torchvggish (harritaylor, 2021), whose default output is `quantised`; the parameter count in "Take it easy"
    (2022) includes the PCA. Deviation: clips are resampled by soxr HQ, not by resampy's kaiser_best. Outputs `pca` with
    resampy's method of 2022 (`kaiser_best_0.2`) differ from those with soxr HQ by 0.1 to 0.5 % of the largest value.
    """

    kind: Literal["vggish"]
    pca_weights: str | None = None  # the published file; null for raw output
    output: Literal["quantised", "pca", "raw"] = "quantised"

    usual: ClassVar[dict[str, Any]] = {
        "weights": "vggish-10086976.pth",
        "pca_weights": "vggish_pca_params-970ea276.pth",
    }
    rate: ClassVar[int] = RATE
    dim: ClassVar[int] = DENSE[-1][2]
    frames_per_second: ClassVar[float] = 100.0 / PATCH

    @model_validator(mode="after")
    def _require_fitting_pca(self) -> "Vggish":
        """Raise an error if pca_weights is missing but needed for the setting `output`, or set but not needed."""
        if self.output == "raw" and self.pca_weights is not None:
            raise _pca_error("output raw does not use pca_weights; remove the key pca_weights")
        if self.output != "raw" and self.pca_weights is None:
            raise _pca_error(
                f"output {self.output} needs pca_weights; set it to the path of the PCA file, or set output: raw"
            )
        return self

    @property
    def parameters(self) -> int:
        """Number of parameters of VGGish, with its PCA if the setting `output` uses the PCA."""
        return 72_141_184 + (0 if self.output == "raw" else 16_512)

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting name to the path of the weight file."""
        return super().weight_files() | ({} if self.pca_weights is None else {"pca_weights": Path(self.pca_weights)})

    def known_sha256(self) -> dict[str, str]:
        """Return a dict from setting name to the first digits of the sha256 of the published weight file."""
        return {"weights": "10086976", "pca_weights": "970ea276"}  # from the file names, by torch.hub's convention

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from setting name to the web address of the published weight file."""
        return {name: f"{RELEASE}/{self.usual[name]}" for name in self.weight_files()}

    def load(self, device: "torch.device") -> Frames:
        """Return a function that computes the frames of waves on a device."""
        import torch

        from system.experts.network import apply_by_rows, exact_arithmetic, move_to_device
        from system.networks.weights import read_weights

        weights = read_weights(Path(self.weights))
        features, dense = (
            move_to_device(build_convolutions(weights), device),
            move_to_device(build_dense_layers(weights), device),
        )
        pca = None if self.pca_weights is None else read_pca(read_weights(Path(self.pca_weights)), device)

        @exact_arithmetic()
        def compute_maps(inputs: np.ndarray) -> np.ndarray:
            """Compute the last maps of the convolutions, one flat row per input patch."""
            found = features(torch.from_numpy(inputs)[:, None].to(device))
            return found.permute(0, 2, 3, 1).flatten(1).cpu().numpy()  # TensorFlow flattens channels last

        @exact_arithmetic()
        def compute_embeddings(flat: np.ndarray) -> np.ndarray:
            """Compute the embeddings from the flat maps of the convolutions."""
            frames = dense(torch.from_numpy(flat).to(device))
            if pca is not None:
                frames = apply_pca(frames, *pca)
            if self.output == "quantised":
                frames = quantise(frames)
            return frames.cpu().numpy()

        return lambda waves: apply_by_rows(
            apply_by_rows([cut_into_examples(wave) for wave in waves], BATCH, compute_maps),
            DENSE_BATCH,
            compute_embeddings,
        )


def cut_into_examples(wave: np.ndarray) -> np.ndarray:
    """Cut a wave into examples, VGGish's input patches, each of 96 log-mel columns.

    Wave of N samples (N,) float32 at 16 kHz -> T patches of 96 columns and 64 bands, (T, 96, 64) float32.
    """
    filled = np.pad(wave, (0, max(0, PATCH_SAMPLES - len(wave))))
    return cut_into_patches(log_mel(filled, OFFSET), PATCH)


def build_convolutions(weights: "Weights") -> "nn.Sequential":
    """Build VGGish's convolutions with the checkpoint's weights.

    The result computes the maps of P patches: (P, 1, 96 columns, 64 bands) -> (P, 512 channels, 6, 4). Pooling is
    before the ReLU; the result is the same as after it, with fewer operations.
    """
    from torch import nn

    layers: list[nn.Module] = []
    inputs = 1
    for number, outputs, is_pooled in CONVOLUTIONS:
        layers.append(weights.convolution(f"features.{number}", inputs, outputs, bias=True))
        layers += [nn.MaxPool2d(2)] if is_pooled else []
        layers.append(nn.ReLU(inplace=True))
        inputs = outputs
    return nn.Sequential(*layers)


def build_dense_layers(weights: "Weights") -> "nn.Sequential":
    """Build VGGish's last linear layers with the checkpoint's weights, with a ReLU after every layer.

    The result computes the frames of P patches from their flattened maps: (P, 12288) -> (P, 128).
    """
    from torch import nn

    layers: list[nn.Module] = []
    for number, inputs, outputs in DENSE:
        layers += [weights.linear(f"embeddings.{number}", inputs, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def read_pca(weights: "Weights", device: "torch.device") -> "tuple[torch.Tensor, torch.Tensor]":
    """Return the PCA of the checkpoint: eigenvectors (128, 128), one per row, and means (128,)."""
    size = DENSE[-1][2]
    vectors = weights.checked_tensor("pca_eigen_vectors", size, size)
    return vectors.to(device), weights.checked_tensor("pca_means", size).to(device)


def apply_pca(frames: "torch.Tensor", vectors: "torch.Tensor", means: "torch.Tensor") -> "torch.Tensor":
    """Apply the PCA of VGGish to frames.

    P frames (P, 128) -> (P, 128). Value k of the result is row k of the eigenvectors `vectors` times (frame - `means`).
    """
    return (frames - means) @ vectors.T


def quantise(frames: "torch.Tensor") -> "torch.Tensor":
    """Round frames to 8 bits: [-2, 2] becomes whole numbers 0 to 255.

    Values outside [-2, 2] are clipped.
    """
    return ((frames.clamp(-LIMIT, LIMIT) + LIMIT) * (255.0 / (2 * LIMIT))).round()
