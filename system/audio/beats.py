"""BEATs: a transformer whose attention knows distances between patches.

A patch has 16 columns and 16 bands of a Kaldi log-mel.

Source: Chen et al., "BEATs: Audio Pre-Training with Acoustic Tokenizers" (2023); github.com/microsoft/unilm, `beats/`
at 768a3c8. Tokens equal the original's by a relative 1e-4 (tests/golden). Deviations: no dropout, no layer drop and no
decay of gradients in training; the classifier of a fine-tuned file is left out.
"""

import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from system.audio.mel import kaldi_log_mel
from system.audio.network import AudioNetwork, Layers
from system.moments.labellings import length_mask

DIM, HEADS, BLOCKS = 768, 12, 12
PATCH, BANDS = 16, 8  # columns and bands of a patch; patches above each other
BUCKETS, FARTHEST = 320, 800  # of distances; all greater ones share a bucket
ALPHA, GAIN = 24**0.25, 96**-0.25  # DeepNorm: of each sum's input, and of new weights
TABLE = "relative_attention_bias.weight"  # the same tensor in all layers of the file
# Copies: the addresses in github.com/microsoft/unilm are reported dead since 2024.
COPIES = "https://huggingface.co/lpepino/beats_ckpts/resolve/main"


class Beats(AudioNetwork):
    """Frames (L, 768) of 160 ms.

    A frame is the mean of 8 patches. Patches of padding are masked everywhere.
    """

    kind: Literal["beats"]

    rate: ClassVar = 16_000
    dim: ClassVar = DIM
    seconds: ClassVar = (0.175, 120.0)  # memory grows with the square
    licence: ClassVar = "MIT"
    addresses: ClassVar = {
        name: f"{COPIES}/{name}"
        for name in ("BEATs_iter3_plus_AS2M.pt", "BEATs_iter3_plus_AS2M_finetuned_on_AS2M_cpt2.pt")
    }
    sha256: ClassVar = {"BEATs_iter3_plus_AS2M.pt": "d43cbfad4d7b56381c061d7a24774f908d4d94c72961f6eb1d9090ff18cd8d34"}

    @property
    def frame_rate(self) -> float:
        return max(1, ((round(self.longest * 16_000) - 400) // 160 + 1) // PATCH) / self.longest  # of whole patches

    def layers(self) -> Layers:
        return BeatsLayers()


class BeatsLayers(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(1, 512, PATCH, PATCH, bias=False)
        self.layer_norm, self.post_extract_proj = nn.LayerNorm(512), nn.Linear(512, DIM)
        self.encoder = Encoder()

    def load(self, tensors: dict[str, Any]) -> None:
        """Take the tensors and the distance table of any layer.

        Every layer of the file lists the same table.
        """
        table = {f"encoder.{TABLE}": value for key, value in tensors.items() if key.endswith(TABLE)}
        super().load(tensors | table)

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        columns = (kaldi_log_mel(waves * 2**15, 0.85) - 15.41663) / (2 * 6.55582)
        x = self.patch_embedding(columns[:, None]).flatten(2).transpose(1, 2)  # (S, 8 L, 512), in order of time
        counts = (((lengths - 400).clamp(min=0) // 160 + 1) // PATCH).clamp(min=1)
        mask = length_mask(counts * BANDS, x.shape[1])
        tokens = self.encoder(self.post_extract_proj(self.layer_norm(x)), mask)
        return tokens.unflatten(1, (-1, BANDS)).mean(2), counts


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        positions = nn.Conv1d(DIM, DIM, 128, padding=64, groups=16)
        nn.init.normal_(positions.weight, std=math.sqrt(4 / (128 * DIM)))
        positions.bias = nn.Parameter(torch.zeros(DIM))
        self.pos_conv = nn.ModuleList([weight_norm(positions, dim=2)])  # per position of the kernel
        self.layer_norm = nn.LayerNorm(DIM)
        self.relative_attention_bias = nn.Embedding(BUCKETS, HEADS)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x * mask[..., None]
        positions = F.gelu(self.pos_conv[0](x.transpose(1, 2))[..., :-1])
        x = self.layer_norm(x + positions.transpose(1, 2))
        at = torch.arange(x.shape[1], device=x.device)
        bias = self.relative_attention_bias(distance_buckets(at - at[:, None])).permute(2, 0, 1)
        for layer in self.layers:
            x = layer(x, bias, mask)
        return x


def distance_buckets(offsets: Tensor) -> Tensor:
    """Return the bucket of each distance between key and query.

    Each distance below 80 has a bucket of its own; those of greater distances widen logarithmically.
    """
    half, exact = BUCKETS // 2, BUCKETS // 4
    far = (offsets.abs().clamp(min=1).float() / exact).log() / math.log(FARTHEST / exact) * (half - exact)
    far = (exact + far.long()).clamp(max=half - 1)
    return half * (offsets > 0) + torch.where(offsets.abs() < exact, offsets.abs(), far)


class Attention(nn.Module):
    """Self-attention with a bias by distance.

    A gate of each query scales the bias.
    """

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(DIM, DIM) for _ in range(4))
        self.grep_linear, self.grep_a = nn.Linear(64, 8), nn.Parameter(torch.ones(1, HEADS, 1, 1))
        for layer in (self.v_proj, self.out_proj):
            nn.init.xavier_normal_(layer.weight, GAIN)

    def forward(self, x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(2, (HEADS, 64)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        first, second = self.grep_linear(query).unflatten(3, (2, 4)).sum(-1).sigmoid().split(1, 3)
        gate = first * (second * self.grep_a - 1) + 2
        gated = (gate * bias).masked_fill(~mask[:, None, None], -torch.inf).to(query.dtype)
        return self.out_proj(F.scaled_dot_product_attention(query, key, value, gated).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and feed-forward, each followed by a norm (DeepNorm).

    Each is added to its scaled input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = Attention(), nn.LayerNorm(DIM)
        self.fc1, self.fc2, self.final_layer_norm = nn.Linear(DIM, 3072), nn.Linear(3072, DIM), nn.LayerNorm(DIM)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_normal_(layer.weight, GAIN)

    def forward(self, x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        x = self.self_attn_layer_norm(ALPHA * x + self.self_attn(x, bias, mask))
        return self.final_layer_norm(ALPHA * x + self.fc2(F.gelu(self.fc1(x))))
