"""Published features of queries: settings.

Settings of frozen features of queries. The array of a query is in a file that is named by the query's id.
"""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from data_tools.settings import Size
from system.models.base import Facts
from system.models.text.base import Encoder, TextSettings


class TextFeatureFiles(TextSettings):
    """Published features of queries: an array (W, V) per query, one vector per token, in qid<id>.npz or <id>.npz. They
    are pooled over tokens. Then follows one linear layer to `dim`, or two with ReLU: to `hidden`, then to `dim`. Only
    queries in the files of `queries` can be embedded.

    Source: the features of the DCASE 2026 baseline for language-based moment retrieval: `clap_text` of MS-CLAP, 768
    values per token in the array last_hidden_state (Zenodo 18358706).
    """

    kind: Literal["feature_files"]
    files: str  # the folder with the arrays
    queries: Annotated[list[str], Field(min_length=1)]  # files of moments or queries (.jsonl), which state the texts
    array: str = "last_hidden_state"  # name of the array in each file
    values: Size  # V, checked when the arrays are read
    pooling: Literal["mean", "first", "last"]  # of a query's tokens
    hidden: Size | None  # of a layer with ReLU; null: one linear layer to `dim`
    dim: Size  # D, of an embedding

    file_settings: ClassVar[frozenset[str]] = frozenset({"files", "queries"})

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder. Its layers after the features are untrained."""
        from system.models.text.feature_files_encoder import TextFeatureFilesEncoder

        paths = [Path(path) for path in self.queries]
        return TextFeatureFilesEncoder(
            Path(self.files), paths, self.array, self.values, self.pooling, self.hidden, self.dim
        )

    def plan_facts(self) -> Facts:
        """Return a description of the encoder for the verb `check`, and a list of its missing files."""
        cure = "correct this path under model.text in the recipe"
        absent = [(path, cure) for path in [self.files, *self.queries] if not Path(path).exists()]
        return f"features of queries in {self.files}", absent
