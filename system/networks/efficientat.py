"""EfficientAT.

EfficientAT: a MobileNetV3 on log-mels. Imports torch. Keys of its tensors are those of the published files.
"""

from pathlib import Path

import torch
from torch import nn

from system.networks.efficientat_published import STEM, VARIANTS, Name, Row, round_to_multiple_of_8
from system.networks.kaldi_log_mel import KaldiLogMel
from system.networks.segment import SegmentNetwork, count_clip_frames
from system.networks.weights import read_weights

EPS = 1e-3  # of the batch norms
MOMENTUM = 0.01  # of their running statistics, as published
MOMENTUM_FROM_SCRATCH = 0.1

# B inputs, C channels, T columns


def build_conv_norm_activation(
    inputs: int, outputs: int, kernel: int, stride: int, groups: int, activation: nn.Module
) -> nn.Sequential:
    """Build a convolution without bias, a batch norm, and an activation.

    Returns: The three layers in sequence. With stride 1 the output has the size of the input.
    """
    layer = nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs, EPS, MOMENTUM), activation)


class _Gate(nn.Module):
    """Squeeze and excitation of channels: (B, C, F, T) -> the same, with a plain sigmoid."""

    def __init__(self, channels: int) -> None:
        """Build the two linear layers that compute the gates of the channels."""
        super().__init__()
        size = round_to_multiple_of_8(channels // 4)
        self.fc1, self.fc2 = nn.Linear(channels, size), nn.Linear(size, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale every channel by its gate, a factor from 0 to 1."""
        scale = torch.sigmoid(self.fc2(torch.relu(self.fc1(x.mean((2, 3))))))
        return x * scale[..., None, None]


class _Gates(nn.Module):
    """Wraps `_Gate`, so that the keys of its weights are those of the published files."""

    def __init__(self, channels: int) -> None:
        """Build the gate. channels: Number of channels that it scales."""
        super().__init__()
        self.conc_se_layers = nn.ModuleList([_Gate(channels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the gate that scales every channel."""
        result: torch.Tensor = self.conc_se_layers[0](x)
        return result


class _InvertedResidual(nn.Module):
    def __init__(self, row: Row) -> None:
        """Build the layers of an inverted residual block. row: Settings of the block."""
        super().__init__()

        def activation() -> nn.Module:
            """Build the activation of this block: hard swish or ReLU."""
            return nn.Hardswish() if row.swish else nn.ReLU()

        layers: list[nn.Module] = []
        if row.between != row.inputs:
            layers.append(build_conv_norm_activation(row.inputs, row.between, 1, 1, 1, activation()))
        layers.append(
            build_conv_norm_activation(row.between, row.between, row.kernel, row.stride, row.between, activation())
        )
        if row.gated:
            layers.append(_Gates(row.between))
        layers.append(build_conv_norm_activation(row.between, row.outputs, 1, 1, 1, nn.Identity()))
        self.block = nn.Sequential(*layers)
        self.is_residual = row.stride == 1 and row.inputs == row.outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block, and add the input to the output if both have the same size."""
        result: torch.Tensor = self.block(x)
        return x + result if self.is_residual else result


class MobileNet(nn.Module):
    """B log-mels of T columns (B, 128, T) -> maps (B, D, 4, ceil(T / 32)).

    D: 384 (mn04), 960 (mn10), 1,920 (mn20), 3,840 (mn40).
    Source: github.com/fschmid56/EfficientAT, `models/mn`. On the examples in tests/golden, results differ from the
    original's by at most a relative 1e-4 (mn40: 1e-3). Initial weights are as in the source: convolutions by He's
    method (fan-out), scales of batch norms 1, shifts 0. Deviation: `momentum` is 0.1 if no published weights are
    loaded; with 0.01 the running statistics need hundreds of steps to follow a new network.
    """

    def __init__(self, name: Name, momentum: float = MOMENTUM) -> None:
        """Build the network with untrained weights. momentum: Momentum of the running statistics of batch norms."""
        super().__init__()
        variant = VARIANTS[name]
        rows = variant.scaled_rows()
        stem = build_conv_norm_activation(1, variant.scaled_channels(STEM), 3, 2, 1, nn.Hardswish())
        last = build_conv_norm_activation(rows[-1].outputs, variant.dim, 1, 1, 1, nn.Hardswish())
        self.features = nn.Sequential(stem, *(_InvertedResidual(row) for row in rows), last)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = momentum
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Compute the last convolutional maps of log-mel spectrograms."""
        result: torch.Tensor = self.features(columns[:, None])
        return result


class MobileNetOnWaves(SegmentNetwork):
    """Log-mel, then the network. A frame is the output of the last layer, averaged over frequency; the vector of a
    segment is its average over time, too. The silence that pads a segment is included in these averages.
    """

    def __init__(self, front_end: KaldiLogMel, network: MobileNet, dim: int) -> None:
        """Store the log-mel layer and the network. dim: Number of values of a segment's vector."""
        super().__init__()
        self.front_end, self.network, self.dim = front_end, network, dim

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the vector of each segment, the mean of its last map."""
        result: torch.Tensor = self.network(self.front_end(waves)).float().mean((2, 3))
        return result

    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute each segment's frames, and the number of its frames that begin before the end of the clip."""
        frames = self.network(self.front_end(waves)).float().mean(2).transpose(1, 2)
        return frames, count_clip_frames(lengths, waves.shape[1], frames.shape[1])

    def load_published(self, path: Path) -> None:
        """Load a published checkpoint into the network."""
        load_published(self.network, path)


def load_published(network: MobileNet, path: Path) -> None:
    """Load a published checkpoint of EfficientAT. Raises KitError if the file is something else."""
    weights = read_weights(path)
    with torch.no_grad():
        for key, value in network.state_dict().items():
            if not key.endswith("num_batches_tracked"):
                value.copy_(weights.checked_tensor(key, *value.shape))
