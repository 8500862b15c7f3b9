"""Encoders on the frames of frozen networks.

They are the heads of "Take it easy", a transformer over frames, a pooled MLP, and embeddings of clips that another
program computed, which are one frame each.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from data_tools.manifest import Text
from data_tools.settings import Depth, Name, Size
from system.audio import ExpertSettings
from system.audio.network import pooled_over_time
from system.audio.stored import EmbeddingFile
from system.devices import on_device, suited_to
from system.models import Dropout, Heads, SeriesEncoder, mlp
from system.models.audio import AudioEncoder, AudioSettings, OneExpert
from system.models.batch import Embedded, Series
from system.moments.labellings import length_mask

EXPERT = "embeddings"  # name of the source of given embeddings

# B clips, T frames, D values in a frame, E embedding

CLIPS_AT_ONCE = {"cpu": 64, "cuda": 256}  # a GPU needs more at once to be busy


class SeriesSettings(AudioSettings):
    """Sizes of a BART-type encoder of frames."""

    width: Size  # of the encoder
    layers: Depth  # of the encoder
    heads: Heads  # of attention, in a layer
    ffn_dim: Size  # of the feed-forward part of a layer
    max_positions: Size  # frames in a window; longer series are cut into windows
    dropout: Dropout  # share of values that are dropped in training

    def encoder(self) -> SeriesEncoder:
        """Build the encoder of frames."""
        return SeriesEncoder(self.width, self.layers, self.heads, self.ffn_dim, self.max_positions, self.dropout)


class ExpertHeads(SeriesSettings):
    """Layers per expert, whose embeddings are averaged.

    The layers of an expert are a linear one to `width`, a BART-type encoder, the mean over time, and a linear one to
    the size of text embeddings. The embedding is the mean over experts, without scaling, so that larger ones weigh
    more.

    Source: "Take it easy" (2022), section 3.
    """

    kind: Literal["expert_heads"]
    experts: Annotated[dict[Name, ExpertSettings], Field(min_length=1)]  # whose frames are the input, by any names

    def build(self, out: int) -> AudioEncoder:
        return ExpertHeadsEncoder(self, out)

    @property
    def trained_parts(self) -> dict[str, bool]:
        return dict.fromkeys(self.experts, True)


class FrameTransformer(SeriesSettings):
    """A transformer over frames, for finding moments.

    A linear layer to `width`, a BART-type encoder, and a linear layer to the size of text embeddings give one output
    per frame.

    Source: designed here, after a small trial with two layers of attention on the frames of YAMNet.
    """

    kind: Literal["frame_transformer"]
    experts: OneExpert  # one expert, by any name
    embedding: Literal["frames"]  # one vector per frame

    part_names: ClassVar = ("transformer",)

    def build(self, out: int) -> AudioEncoder:
        return FrameTransformerEncoder(self, out)


class PooledMlp(AudioSettings):
    """Two linear layers on an expert's frames, pooled over time.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2, with its encoder frozen.
    """

    kind: Literal["pooled_mlp"]
    experts: OneExpert  # one expert, by any name
    pooling: Literal["mean", "max", "max_mean"]  # max_mean: their sum, as PANNs do
    hidden: Size  # size of the middle layer
    dropout: Dropout  # of the pooled frames

    part_names: ClassVar = ("mlp",)

    def build(self, out: int) -> AudioEncoder:
        return PooledMlpEncoder(self, out)


class AudioEmbeddings(AudioSettings):
    """Embeddings of clips that another program computed, unchanged.

    No audio is read. The embedding of a clip is looked up by the clip's id, or else by its file name.
    """

    kind: Literal["embeddings"]
    files: Annotated[list[str], Field(min_length=1)]  # .npz
    dim: Size  # values of an embedding
    model: Text  # that computed them, as declared in a package
    model_parameters: Annotated[int, Field(ge=0)] = 0  # of that model; 0: not counted

    @property
    def experts(self) -> dict[str, EmbeddingFile]:
        facts = self.model_dump(include={"files", "model", "model_parameters"})
        return {EXPERT: EmbeddingFile(kind="embedding_file", values=self.dim, **facts)}

    @property
    def is_published(self) -> bool:
        return True

    @property
    def trained_parts(self) -> dict[str, bool]:
        return {EXPERT: False}

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        if out != self.dim:
            yield "dim", f"clip embeddings have {self.dim} values, text embeddings {out}; name files of one model"

    def build(self, out: int) -> AudioEncoder:
        return AudioEmbeddingsEncoder()


class FrameLayers(nn.Module):
    """The layers of one expert.

    A linear layer, the encoder, the mean over time, and another linear layer turn frames (B, T, D) into embeddings
    (B, E).
    """

    def __init__(self, settings: SeriesSettings, dim: int, out: int, encoder: SeriesEncoder | None = None) -> None:
        super().__init__()
        self.window = settings.max_positions
        self.project = nn.Linear(dim, settings.width)
        self.encoder = encoder or settings.encoder()
        self.out = nn.Linear(settings.width, out)

    def forward(self, series: Series) -> Tensor:
        order, device = series.lengths.argsort(stable=True), series.values.device  # so that little is padding
        some = [series.rows(rows) for rows in order.split(suited_to(device, CLIPS_AT_ONCE))]
        pooled = torch.cat([pooled_over_time(*self.encode(part), "mean") for part in some])
        result: Tensor = self.out(pooled[on_device(order.argsort(), device)])
        return result

    def encode(self, series: Series) -> tuple[Tensor, Tensor]:
        """Encode frames in independent windows.

        Returns:
            The encoded frames (B, T, width), of which padding must not be used, and their lengths (B,).
        """
        values, lengths = series.values, on_device(series.lengths, series.values.device)
        windows = []
        for start in range(0, values.shape[1], self.window):
            part = values[:, start : start + self.window].float()
            here = (lengths - start).clamp(min=1)  # attention needs one frame
            windows.append(self.encoder(self.project(part), length_mask(here, part.shape[1])))
        return torch.cat(windows, 1), lengths


class ExpertHeadsEncoder(AudioEncoder):
    """Embeds clips by the mean of the experts' embeddings."""

    def __init__(self, settings: ExpertHeads, out: int) -> None:
        super().__init__()
        experts = settings.experts.items()
        self.heads = nn.ModuleDict({f"expert_{name}": FrameLayers(settings, one.dim, out) for name, one in experts})

    def forward(self, audio: dict[str, Series]) -> Embedded:
        return Embedded(torch.stack([head(audio[name]) for name, head in self.parts().items()]).mean(0))

    def parts(self) -> dict[str, nn.Module]:
        return {name.removeprefix("expert_"): head for name, head in self.heads.items()}


class FrameTransformerEncoder(AudioEncoder):
    """Frames (B, T, D) -> embeddings (B, T, E)."""

    def __init__(self, settings: FrameTransformer, out: int) -> None:
        super().__init__()
        ((self.expert, expert),) = settings.experts.items()
        self.transformer = FrameLayers(settings, expert.dim, out, settings.encoder())  # its weights are drawn first

    def forward(self, audio: dict[str, Series]) -> Embedded:
        encoded, lengths = self.transformer.encode(audio[self.expert])
        padding = ~length_mask(lengths, encoded.shape[1])
        return Embedded(self.transformer.out(encoded).masked_fill(padding[..., None], 0.0), lengths)


class PooledMlpEncoder(AudioEncoder):
    """Frames (B, T, D) -> embeddings (B, E)."""

    def __init__(self, settings: PooledMlp, out: int) -> None:
        super().__init__()
        ((self.expert, expert),) = settings.experts.items()
        self.pooling, self.dropout = settings.pooling, nn.Dropout(settings.dropout)
        self.mlp = mlp(expert.dim, settings.hidden, out)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        values, lengths = audio[self.expert]
        pooled = pooled_over_time(values, on_device(lengths, values.device), self.pooling)
        return Embedded(self.mlp(self.dropout(pooled)))


class AudioEmbeddingsEncoder(AudioEncoder):
    """Clips -> their given embeddings (B, D)."""

    def forward(self, audio: dict[str, Series]) -> Embedded:
        return Embedded(audio[EXPERT].values[:, 0])
