"""Given embeddings of clips, as frames.

Embeddings of clips that another program computed. They replace an expert's frames. Never imports torch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from data_tools.embeddings import HINT, Vectors, read_vectors
from data_tools.errors import KitError
from data_tools.files import require_file
from data_tools.manifest import Clip, Text
from data_tools.settings import Size
from system.experts.base import ExpertSettings, Frames, file_sha256

if TYPE_CHECKING:
    import torch


class EmbeddingFile(ExpertSettings):
    """Embeddings of clips, read from files instead of audio. An embedding is found by its clip's id, or file name."""

    computed: ClassVar[bool] = False
    reads_clips: ClassVar[bool] = False
    dtype: ClassVar[str] = "float32"

    kind: Literal["embedding_file"]
    files: Annotated[list[str], Field(exclude=True)]  # .npz; their checksums identify them
    values: Size  # of an embedding
    model: Text  # that computed them, as declared in a package
    model_parameters: int = 0  # of that model; 0: not counted

    rate: ClassVar[int] = 0  # no audio is read
    frames_per_second: ClassVar[float] = 1 / 30  # one embedding per clip; plans take clips of 30 s

    @property
    def dim(self) -> int:
        """Number of values in an embedding."""
        return self.values

    @property
    def frame_description(self) -> str:
        """Text for plans: the size of the embeddings, and their files."""
        return f"{self.dim}-d, one per clip, read from {' and '.join(self.files)}"

    @property
    def parameters(self) -> int:
        """Number of parameters of the model that computed the embeddings."""
        return self.model_parameters

    @property
    def pretrained(self) -> str | None:
        """Name of the model that computed the embeddings."""
        return self.model

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from "files.0", "files.1", ... to the paths of the files with embeddings."""
        return {f"files.{number}": path for number, path in enumerate(map(Path, self.files))}

    def weight_source(self) -> str:
        """Return a text for error messages: how to make a missing file of embeddings."""
        return f"write the file with the program that computes your embeddings; {HINT}"

    def checksums(self) -> dict[str, str]:
        """Return a dict from "files.0", "files.1", ... to the file's sha256. Raises KitError for a missing file."""
        for path in self.weight_files().values():
            require_file(
                path, f"save the file at this path, or set its path with --set 'model.audio.files=[PATH]'; {HINT}"
            )
        return {name: file_sha256(path) for name, path in self.weight_files().items()}

    def file_fault(self, clip: Clip) -> tuple[bool, str] | None:
        """Return (True: unusable, message) if a clip has no embedding; None if it has one, or if a file is missing."""
        if not all(path.is_file() for path in self.weight_files().values()):
            return None
        try:
            vectors = self.read_embeddings()
        except KitError as error:
            return True, str(error)
        return None if vectors.name_of(clip) else (True, self.missing_embedding(clip))

    def read_embeddings(self) -> Vectors:
        """Read the embeddings. Raises KitError for unreadable files, and for embeddings of the wrong size."""
        return read_vectors(self.files, "clip").require_dim(self.values, self.files)

    def missing_embedding(self, clip: Clip) -> str:
        """Return the error message for a clip without an embedding."""
        files = " and ".join(self.files)
        return (
            f"{files}: no embedding has the id or file name of clip {clip.id}; write the file again with the "
            "embeddings of all clips"
        )

    def load(self, device: "torch.device") -> Frames:
        """Return a function that returns its input unchanged, since embeddings are read from files."""
        return lambda waves: waves
