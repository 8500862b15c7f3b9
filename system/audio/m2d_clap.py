"""M2D-CLAP 2025: a transformer over chunks of a log-mel.

One more block makes an embedding in one space with texts.

Source: Niizumi et al., "M2D-CLAP" (2025); github.com/nttcslab/m2d at f0c4128. Results equal the original's by a
relative 2e-5 (tests/golden). Its text encoder is BERT, in the same file. Licence: NTT's, for evaluation only.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from system.audio.blocks import DIM, Block, table
from system.audio.mel import MelSpectrogram
from system.audio.network import AudioNetwork, Layers
from system.moments.labellings import length_mask

BLOCKS, PATCH, BANDS = 12, 16, 5  # blocks; columns and bands of a patch; patches above each other
CHUNK, STEPS = 1001, 62  # columns that the transformer reads together, and patches in time of them
PREFIX = "module.ar.runtime.backbone."
FILE = "m2d_clap_vit_base-80x1001p16x16p16kpBpTI-2025.zip"


class M2dClap(AudioNetwork):
    """Frames (L, 768) of 160 ms, means over 5 bands.

    The vector of a segment is its embedding in one space with texts.
    """

    kind: Literal["m2d_clap"]

    rate: ClassVar = 16_000
    dim: ClassVar = DIM
    trained_on_captions: ClassVar = True
    licence: ClassVar = "NTT evaluation, non-commercial"  # LICENSE.pdf of the repository: internal use, revocable
    addresses: ClassVar = {FILE: f"https://github.com/nttcslab/m2d/releases/download/v0.5.0/{FILE}"}

    @property
    def frame_rate(self) -> float:
        return int(count_steps(torch.tensor(round(self.longest * 16_000)))) / self.longest

    def layers(self) -> Layers:
        return M2dClapLayers()


def count_steps(lengths: Tensor) -> Tensor:
    """Return the number of patches in time of waves.

    Args:
        lengths: Of the waves, in samples.
    """
    columns = lengths // 160 + 1
    return columns // CHUNK * STEPS + ((columns % CHUNK + PATCH - 1) // PATCH).clamp(max=STEPS)


def mirrored(waves: Tensor, lengths: Tensor, size: int) -> Tensor:
    """Reflect each wave at its own end, by `size` samples."""
    at, last = torch.arange(waves.shape[1] + size, device=waves.device), lengths[:, None] - 1
    return F.pad(waves, (0, size)).gather(1, torch.where(at <= last, at, 2 * last - at).clamp(min=0))


class M2dClapLayers(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.mel = MelSpectrogram(16_000, 400, 160, 400, 80, 50.0, 8000.0)
        self.norm_stats = nn.Buffer(torch.tensor([-7.1, 4.2]))  # mean and deviation of the log-mel
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(1, DIM, PATCH, PATCH)})
        self.cls_token = table(1, DIM, init=nn.init.normal_)
        self.pos_embed = table(1 + BANDS * STEPS, DIM, init=nn.init.normal_)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(DIM, 1e-6)
        self.audio_proj = Semantic()

    def load(self, tensors: dict[str, Tensor]) -> None:
        super().load({key.removeprefix(PREFIX).removeprefix("backbone."): value for key, value in tensors.items()})

    def tokens(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the tokens, with padding masked.

        Returns:
            Tokens (S, 5, L, 768), and the steps within each clip, (S,).
        """
        mean, deviation = self.norm_stats
        power = self.mel(mirrored(waves, lengths, 200))[:, : 1 + waves.shape[1] // 160]
        columns = (((power + 2**-23).log().float() - mean) / deviation).transpose(1, 2)
        columns = columns * length_mask(lengths // 160 + 1, columns.shape[2])[:, None]
        counts = count_steps(lengths)
        columns = F.pad(columns, (0, -(columns.shape[2] % CHUNK) % PATCH))
        chunks = [part for part in columns.split(CHUNK, 2) if part.shape[2] >= PATCH]
        return torch.cat([self.encode(part, counts - STEPS * n) for n, part in enumerate(chunks)], 2), counts

    def encode(self, columns: Tensor, steps: Tensor) -> Tensor:
        """Compute the tokens of one chunk, (S, 5, L, 768).

        Args:
            steps: (S,) of the chunk's steps, how many belong to the clip.
        """
        patches = self.patch_embed["proj"](columns[:, None]).permute(0, 2, 3, 1)
        size = patches.shape[2]
        positions = self.pos_embed[:, 1:].unflatten(1, (BANDS, STEPS))[:, :, :size]
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(patches), -1, -1)
        x = torch.cat([first, (patches + positions).flatten(1, 2)], 1)
        mask = length_mask(steps, size).repeat(1, BANDS)
        for block in self.blocks:
            x = block(x, F.pad(mask, (1, 0), value=True))
        return self.norm(x)[:, 1:].unflatten(1, (BANDS, size))

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        tokens, counts = self.tokens(waves, lengths)
        return tokens.mean(1), counts.clamp(1, tokens.shape[2])

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        tokens, counts = self.tokens(waves, lengths)
        return self.audio_proj(tokens.flatten(1, 2), length_mask(counts, tokens.shape[2]).repeat(1, BANDS))


class Semantic(nn.Module):
    """One block with a single head and an additional token.

    The output of this token is the embedding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sem_token = table(1, DIM, init=nn.init.normal_)
        self.sem_blocks = nn.ModuleList([Block(1, DIM, 1e-5)])
        self.norm = nn.LayerNorm(DIM, 1e-5)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = torch.cat([self.sem_token.expand(len(tokens), -1, -1), tokens], 1)
        return self.norm(self.sem_blocks[0](x, F.pad(mask, (1, 0), value=True))[:, 0])
