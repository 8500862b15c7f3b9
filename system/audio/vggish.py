"""VGGish: 128 values per 0.96 s.

Source: github.com/harritaylor/torchvggish (2021), as in "Take it easy" (2022). Frames equal the original's by a
relative 2e-5 (tests/golden). Deviation: files are resampled by soxr HQ unless `resampling` says otherwise.
"""

import itertools
from pathlib import Path
from typing import ClassVar, Literal

from torch import Tensor, nn
from torchvision.models.vgg import make_layers

from system.audio import Need
from system.audio.checkpoint import load_checkpoint
from system.audio.mel import audioset_log_mel
from system.audio.network import AudioNetwork, Layers, in_parts

PATCH = 96  # columns of the log-mel, 0.96 s
SIZES = (12_288, 4096, 4096, 128)


class Vggish(AudioNetwork):
    """Frames (L, 128), one per 0.96 s.

    A rest of less is dropped, and a shorter clip is padded with silence.
    """

    kind: Literal["vggish"]
    pca_weights: str | None  # the published PCA, whose result is rounded to 0 to 255 as in AudioSet; null: raw frames

    rate: ClassVar = 16_000
    dim: ClassVar = 128
    frame_rate: ClassVar = 100 / PATCH
    seconds: ClassVar = (0.975, 600.0)  # of one patch
    addresses: ClassVar = {
        name: f"https://github.com/harritaylor/torchvggish/releases/download/v0.1/{name}"
        for name in ("vggish-10086976.pth", "vggish_pca_params-970ea276.pth")
    }
    sha256: ClassVar = {name: name[-12:-4] for name in addresses}

    def needs(self) -> list[Need]:
        return super().needs() + ([self.need("pca_weights", self.pca_weights)] if self.pca_weights else [])

    def layers(self) -> Layers:
        return VggishLayers()

    def load_into(self, layers: Layers) -> None:
        super().load_into(layers)
        if self.pca_weights:
            pca = load_checkpoint(Path(self.pca_weights))
            layers.pca_vectors, layers.pca_means = pca["pca_eigen_vectors"], pca["pca_means"].flatten()


class VggishLayers(Layers):
    pca_vectors: Tensor | None
    pca_means: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.features = make_layers([64, "M", 128, "M", 256, 256, "M", 512, 512, "M"])
        self.features[0] = nn.Conv2d(1, 64, 3, padding=1)
        dense = [layer for a, b in itertools.pairwise(SIZES) for layer in (nn.Linear(a, b), nn.ReLU(True))]
        self.embeddings = nn.Sequential(*dense)
        self.register_buffer("pca_vectors", None, persistent=False)
        self.register_buffer("pca_means", None, persistent=False)

    def embed(self, patches: Tensor) -> Tensor:
        """Embed patches, (P, 96, 64) -> (P, 128)."""
        return self.embeddings(self.features(patches[:, None]).permute(0, 2, 3, 1).flatten(1))  # channels last

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        patches = audioset_log_mel(waves, 0.01).unfold(1, PATCH, PATCH).transpose(2, 3)  # (S, L, 96, 64)
        frames = in_parts(self.embed, patches)
        if self.pca_vectors is not None:
            frames = (((frames - self.pca_means) @ self.pca_vectors.T).clamp(-2, 2) + 2).mul(255 / 4).round()
        return frames, ((lengths - 15_600).clamp(min=0) // (PATCH * 160) + 1).clamp(1, frames.shape[1])
