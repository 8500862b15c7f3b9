"""Published features of queries: encoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from data_tools.errors import KitError
from data_tools.frames import read_frames
from data_tools.moments import read_published
from system.compute.device import on_device
from system.models.embeddings import Embedded
from system.models.text.encoder import TextEncoder
from system.networks.layers import head

# N queries, W tokens, V values of a token, D embedding


class TextFeatureFilesEncoder(TextEncoder):
    """Pools the published features of each query's tokens to (V,), and applies trained layers.

    If two queries have the same text, the features of the first query are used for both.
    """

    def __init__(
        self,
        files: Path,
        queries: Sequence[Path],
        array: str,
        values: int,
        pooling: Literal["mean", "first", "last"],
        hidden: int | None,
        dim: int,
    ) -> None:
        """Build the layers, and read the ids and texts of all queries.

        files: Folder with one array file per query, which is read when the query is embedded. queries: Files with each
        query's id and text. array: Name of the array in a file. values: Values per token. pooling: The mean over the
        tokens, or the first or last token. hidden: Size of a layer with ReLU before the last layer; None for no such
        layer. dim: Number of values per embedding. Raises KitError if two different texts have the same id. The method
        `prepare` raises KitError for an unlisted query, for a missing array file, and for an array of another width.
        """
        super().__init__()
        self.mlp = head(values, hidden, dim)
        self._files, self._array, self._values, self._pooling = files, array, values, pooling
        self._ids: dict[str, str] = {}
        texts: dict[str, str] = {}
        for path in queries:
            for name, text in _read_queries(path):
                if texts.setdefault(name, text) != text:
                    raise KitError(f"{path}: the id {name} belongs to two different texts; give each query its own id")
                self._ids.setdefault(text, name)
        self._vectors: dict[str, np.ndarray] = {}

    def _pooled_features(self, text: str) -> np.ndarray:
        """Return the pooled features (V,) of a query. Raises KitError for an unlisted query or a missing file."""
        if text not in self._vectors:
            if text not in self._ids:
                raise KitError(f"the query {text[:60]!r} has no features; add the file with this query to text.queries")
            self._vectors[text] = self._read_and_pool(self._ids[text])
        return self._vectors[text]

    def _read_and_pool(self, name: str) -> np.ndarray:
        """Read the features of a query from the file that is named by its id, and pool them over tokens."""
        paths = [self._files / f"qid{name}.npz", self._files / f"{name}.npz"]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise KitError(
                f"the feature file {paths[0]} is missing; copy the features of all queries into {self._files}"
            )
        tokens = read_frames(path, self._array)
        if tokens.shape[1] != self._values:
            raise KitError(
                f"{path}: its tokens have {tokens.shape[1]} values, not {self._values}; set text.values to "
                f"{tokens.shape[1]}"
            )
        pooled: np.ndarray = (
            tokens.mean(0) if self._pooling == "mean" else tokens[0 if self._pooling == "first" else -1]
        )
        return pooled

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        """Embed some queries from their pooled features."""
        vectors = torch.from_numpy(np.stack([self._pooled_features(text) for text in texts]))
        return Embedded(self.mlp(on_device(vectors, self.device)))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return 0 for each text, since pooled features are not padded."""
        return [0] * len(texts)

    def prepare(self, texts: Sequence[str]) -> None:
        """Read the features of queries. Raises KitError for a query without a feature file."""
        for text in texts:
            self._pooled_features(text)

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without features."""
        return [text for text in texts if text not in self._ids]


def _read_queries(path: Path) -> list[tuple[str, str]]:
    """Read the id and the text of every query of a file of moments."""
    return [(str(line.qid), line.query) for _, line in read_published(path) if line.qid != ""]
