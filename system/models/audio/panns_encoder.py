"""PANNs on waveforms: network.

A network of PANNs on waveforms, trained or frozen, followed by an embedding layer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from system.compute.device import on_device, suited_to
from system.experts.network import compute_in_pieces
from system.experts.waveform import FULL_SCALE
from system.models.audio.encoder import AudioEncoder
from system.models.batch import Series
from system.models.embeddings import Embedded
from system.networks.augment import crop_longer_waves, draw_stripe_mask
from system.networks.frontend import LogMelFrontEnd
from system.networks.layers import mlp, pooled_over_time
from system.networks.panns import NETWORKS, load_published
from system.networks.published import DIM, HOP, RATE, SHORTEST, STRIDE
from system.networks.segment import group_by_length
from system.networks.weights import read_weights

# B clips, N samples, T frames

SECONDS_AT_ONCE = {"cpu": 60, "cuda": 600}  # of clips of one length, in evaluation; a GPU needs more to be busy
PIECE = 188  # frames (60 s) of a longer clip that are computed together in evaluation


class PannsEncoder(AudioEncoder):
    """16-bit waves -> log-mel -> network -> pooled over frequency, then time -> two linear layers; see panns.py.

    In training a clip is padded with silence to the longest clip of its batch. (Clips under 0.31 s are always padded to
    0.31 s.) Batch norms include this silence. It also changes up to `reach` frames at a clip's end: 4 (Cnn14) or 10
    (ResNet-38). Pooling only uses a clip's own frames. In evaluation clips are computed in groups of
    equal length, so that an embedding does not depend on other clips.
    Source: github.com/XinhaoMei/audio-text_retrieval. Deviations: a frozen network stays in evaluation mode; in the
    source its dropout and the statistics of its batch norms remain in training mode. In the source, pooling over time
    includes the silence, also in evaluation. The source cuts a clip that is too long only once; here a new random part
    is drawn each time.
    """

    def __init__(
        self,
        expert: str,
        out: int,
        *,
        network: Literal["resnet38", "cnn14"],
        weights: Path | None,
        trainable: bool,
        training_samples: int,
        pooling: tuple[str, Literal["mean", "max", "max_mean"]],
        dropout: float,
        spec_augment: Mapping[str, int] | None,
        hidden: int,
    ) -> None:
        """Build the network and the layers after it, untrained.

        expert: Name of the expert whose waves are the input. out: Number of values per embedding. trainable: Whether
        the network is trained, in addition to the linear layers. training_samples: Maximum number of samples of a clip
        in training. pooling: Kind of pooling over frequency, and kind of pooling over time. spec_augment: Arguments of
        the function spec_augment; None for no stripes. hidden: Number of values between the two linear layers.
        """
        super().__init__()
        self.expert, self.weights, self.trainable, self.training_samples = expert, weights, trainable, training_samples
        self.frequency_pooling, self.time_pooling = pooling
        self.spec_augment = spec_augment
        self.front_end = LogMelFrontEnd()
        self.network = NETWORKS[network](dropout).requires_grad_(trainable)
        self.mlp = mlp(DIM, hidden, out)

    def train(self, mode: bool = True) -> "PannsEncoder":
        """Set training or evaluation mode. A frozen network stays in evaluation mode.

        In evaluation mode, batch norms use the published statistics, and there is no dropout.
        """
        super().train(mode)
        self.network.train(mode and self.trainable)
        return self

    def load_pretrained(self) -> None:
        """Load the published weights into the network; do nothing for a network without them."""
        if self.weights is not None:
            load_published(self.network, read_weights(self.weights, "model"))

    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Embed the clips of a batch."""
        waves, lengths = audio[self.expert].values[..., 0], audio[self.expert].lengths
        if self.training:
            waves, lengths = crop_longer_waves(waves, lengths, self.training_samples)  # unless it was cut before
        waves, lengths = F.pad(waves, (0, max(0, SHORTEST - waves.shape[1]))), lengths.clamp(min=SHORTEST)
        return Embedded(
            self.mlp(self._compute_pooled(waves, lengths) if self.training else self._pool_by_length(waves, lengths))
        )

    def _pool_by_length(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the network's pooled output for waves, in groups of equal length: (B, 2048)."""
        pooled = torch.empty(len(waves), DIM, device=waves.device)
        max_samples = suited_to(waves.device, SECONDS_AT_ONCE) * RATE
        for indices in group_by_length(lengths.tolist(), max_samples):
            group_lengths = lengths[indices]
            pooled[indices] = self._compute_pooled(waves[indices, : int(group_lengths[0])], group_lengths)
        return pooled

    def _compute_pooled(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the network's output for waves, pooled over frequency and time.

        waves: (B, N) int16. lengths: Numbers of samples, at least one frame each. Returns: (B, 2048).
        """
        maps = self._compute_maps(waves.float() / FULL_SCALE).float()  # a sum over frames needs more than 16 bits
        frames = maps.mean(3) if self.frequency_pooling == "mean" else maps.amax(3) + maps.mean(3)
        counts = on_device((1 + lengths // HOP) // STRIDE, frames.device)
        return pooled_over_time(frames.transpose(1, 2), counts, self.time_pooling)

    def _compute_maps(self, waves: torch.Tensor) -> torch.Tensor:
        """Compute the last convolutional maps of waves: (B, N) float32 -> (B, 2048, T, 2)."""
        columns = self.network.normalise_bands(self.front_end(waves))
        if self.training:
            augment = self.spec_augment
            result: torch.Tensor = self.network(columns if augment is None else spec_augment(columns, **augment))
            return result
        return compute_in_pieces(self.network, columns, 2, STRIDE, self.network.reach, PIECE)

    def parts(self) -> dict[str, nn.Module]:
        """Return a dict from the name of each part of the encoder to its torch module."""
        return {"network": self.network, "mlp": self.mlp}


def spec_augment(
    columns: torch.Tensor, time_stripes: int, time_width: int, band_stripes: int, band_width: int
) -> torch.Tensor:
    """Set random stripes of every clip's spectrogram to 0, which is the mean value after a batch norm.

    columns: (B, 1, T, bands), spectrograms of T columns. time_stripes, band_stripes: Numbers of stripes of neighbouring
    columns, and of neighbouring bands. time_width, band_width: Limits w of a stripe's width, which is random, from 0 to
    w - 1. Its position is random within the spectrogram. Stripes may overlap. Random numbers come from the random state
    of the device.
    Source: Park et al., SpecAugment (2019), as in torchlibrosa 0.1.0. Deviations: stripes too wide for a short clip
    cover all of it; torchlibrosa raises an error.
    """
    batch, _, length, bands = columns.shape
    in_time = draw_stripe_mask(batch, length, time_stripes, time_width, columns.device)
    in_bands = draw_stripe_mask(batch, bands, band_stripes, band_width, columns.device)
    return columns.masked_fill((in_time[:, :, None] | in_bands[:, None, :])[:, None], 0.0)
