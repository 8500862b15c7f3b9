"""Given embeddings of texts: settings.

Embeddings of texts that another program computed. Never imports torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from data_tools.cli import counted
from data_tools.embeddings import HINT, read_vectors
from data_tools.errors import KitError
from data_tools.manifest import Text
from data_tools.settings import Size
from system.models.base import Facts
from system.models.text.base import Encoder, TextSettings


class TextEmbeddings(TextSettings):
    """Embeddings of captions and queries that another program computed, unchanged. A text is looked up with the
    spelling of the manifest or the list of queries.
    """

    kind: Literal["embeddings"]
    files: Annotated[list[str], Field(min_length=1)]  # .npz
    dim: Size  # values of an embedding
    model: Text  # that computed them, as declared in a package

    file_settings: ClassVar[frozenset[str]] = frozenset({"files"})

    @property
    def is_trained(self) -> bool:
        """Always False: the embeddings in the files are fixed."""
        return False

    @property
    def is_published(self) -> bool:
        """Always True: the encoder has no weights, so that it is useful before any training."""
        return True

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder, which has no weights. Raises KitError for files without embeddings of texts."""
        from system.models.text.embeddings_encoder import TextEmbeddingsEncoder

        return TextEmbeddingsEncoder(self.files, self.dim)

    def texts_fault(self, texts: Sequence[str]) -> str | None:
        """Return an error message if a text has no embedding; None if all texts have one, or if a file is missing."""
        if not all(Path(path).is_file() for path in self.files):
            return None
        try:
            vectors = read_vectors(self.files, "caption").require_dim(self.dim, self.files)
        except KitError as error:
            return str(error)
        absent = [text for text in texts if text not in vectors]
        missing = f"no embedding of {counted(len(absent), 'text', ',')}, such as {absent[0][:80]!r}" if absent else ""
        return f"{' and '.join(self.files)}: {missing}; write the embeddings of all captions" if absent else None

    def plan_facts(self) -> Facts:
        """Return a description of the encoder for the verb `check`, and a list of its missing files."""
        absent = [path for path in self.files if not Path(path).is_file()]
        cure = f"write this file with the program that computes your embeddings; {HINT}"
        described = f"embeddings of {self.dim} values, read from {' and '.join(self.files)}"
        return described, [(file, cure) for file in absent]
