"""Given embeddings of clips.

Embeddings of clips that another program computed. Never imports torch.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from data_tools.manifest import Text
from data_tools.settings import Size
from system.experts.embedding_file import EmbeddingFile
from system.models.audio.base import AudioSettings, Encoder

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

    file_settings: ClassVar[frozenset[str]] = frozenset({"files"})

    @property
    def experts(self) -> dict[str, EmbeddingFile]:
        """Dict with one entry: an expert that reads the embeddings of clips from the files in the setting `files`."""
        expert = EmbeddingFile(
            kind="embedding_file",
            files=self.files,
            values=self.dim,
            model=self.model,
            model_parameters=self.model_parameters,
        )
        return {EXPERT: expert}

    @property
    def is_published(self) -> bool:
        """Always True: the encoder has no weights, so that it is useful before any training."""
        return True

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Dict from the name of each part of the encoder to whether the part has trainable parameters."""
        return {EXPERT: False}

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        """Yield an error message if embeddings of texts and of clips have different sizes."""
        if out != self.dim:
            yield (
                "dim",
                f"clip embeddings have {self.dim} values, but text embeddings have {out}; name files of one model",
            )

    def build(self, out: int) -> Encoder:
        """Build the encoder, which has no weights."""
        from torch import nn

        from system.models.audio.encoder import AudioEncoder
        from system.models.batch import Series
        from system.models.embeddings import Embedded

        class AudioEmbeddingsEncoder(AudioEncoder):
            def forward(self, audio: dict[str, Series]) -> Embedded:
                """Return the embeddings of the clips of a batch."""
                return Embedded(audio[EXPERT].values[:, 0])

            def parts(self) -> dict[str, nn.Module]:
                """Return a dict with one entry: the encoder itself, which has no parameters."""
                return {EXPERT: self}

        return AudioEmbeddingsEncoder()
