"""Embeddings of clips that another program computed."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from data_tools.manifest import Text
from data_tools.settings import Size
from system.audio.stored import EmbeddingFile
from system.models.audio.base import AudioEncoder, AudioSettings
from system.models.batch import Series
from system.models.embeddings import Embedded

EXPERT = "embeddings"


class AudioEmbeddings(AudioSettings):
    """Embeddings of clips that another program computed, unchanged. No audio is read. The embedding of a clip is looked
    up by the clip's id, or else by its file name.
    """

    kind: Literal["embeddings"]
    files: Annotated[list[str], Field(min_length=1)]  # .npz
    dim: Size  # values of an embedding
    model: Text  # that computed them, as declared in a package
    model_parameters: Annotated[int, Field(ge=0)] = 0  # of that model; 0: not counted

    file_settings: ClassVar = frozenset({"files"})

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


class AudioEmbeddingsEncoder(AudioEncoder):
    """Clips -> their given embeddings (B, D)."""

    def forward(self, audio: dict[str, Series]) -> Embedded:
        return Embedded(audio[EXPERT].values[:, 0])

    def parts(self) -> dict[str, nn.Module]:
        return {EXPERT: self}
