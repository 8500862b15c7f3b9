"""Embeddings of texts that another program computed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from data_tools.arrays import HINT, Vectors, read_frames, read_vectors
from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Text
from data_tools.moments import read_published
from data_tools.settings import Size
from system.audio import Need, file_sha256
from system.devices import on_device
from system.models import head
from system.models.batch import Embedded
from system.models.text import TextEncoder, TextSettings


class TextEmbeddings(TextSettings):
    """Embeddings of captions and queries that another program computed.

    They are found by the text as the manifest or the list of queries spells it. In a folder with qid<id>.npz per query
    (tokens x values), the mean of the tokens is taken.

    Source of the folder: the features of the DCASE 2026 baseline, `clap_text` of MS-CLAP (Zenodo 18358706).
    """

    kind: Literal["embeddings"]
    files: Annotated[list[str], Field(min_length=1)]  # .npz of embeddings; or one folder with qid<id>.npz per query
    queries: list[str] = Field(default_factory=list)  # files of moments or queries (.jsonl) with the ids of a folder
    array: str = "last_hidden_state"  # of the files of a folder
    blind_files: list[str] = Field(default_factory=list)  # as `files`, of a blind list; may be added after training
    blind_queries: list[str] = Field(default_factory=list)  # as `queries`, of a blind list
    dim: Size  # values of an embedding
    head: Literal["none", "linear"] = "none"  # linear: a trained layer to `dim`
    model: Text  # that computed them, as declared in a package

    @property
    def is_trained(self) -> bool:
        return self.head == "linear"

    def open(self) -> Vectors:
        """Read the embeddings by text.

        Those of `files` count before those of a blind list.
        """
        found = self._read(self.files, self.queries)
        if self.blind_files:
            blind = self._read(self.blind_files, self.blind_queries).require_dim(found.dim, self.blind_files)
            found = Vectors(blind | found)
        return found

    def _read(self, files: list[str], queries: list[str]) -> Vectors:
        return read_queries(Path(files[0]), queries, self.array) if queries else read_vectors(files, "caption")

    def needs(self) -> list[Need]:
        cure = f"write this file with the program that computes your embeddings; {HINT}"
        list_cure = "fetch the organisers' list, such as by lbar data get castella"
        return [
            Need(f"{key}.{number}", name, cure=list_cure if key.endswith("queries") else cure)
            for key in ("blind_files", "blind_queries", "files", "queries")
            for number, name in enumerate(getattr(self, key))
            if not Path(name).is_dir()
        ]

    def texts_fault(self, texts: Sequence[str]) -> str | None:
        if not all(Path(path).exists() for path in self.files):
            return None
        try:
            return self.missing(texts, self.open())
        except KitError as error:
            return str(error)

    def missing(self, texts: Sequence[str], given: Vectors) -> str | None:
        """Return a message about texts without an embedding, if any."""
        absent = [text for text in dict.fromkeys(texts) if text not in given]
        if not absent:
            return None
        named = f"{counted(len(absent), 'text', ',')}, such as {absent[0][:80]!r}"
        return f"{' and '.join(self.files)}: no embedding of {named}; write embeddings of all captions and queries"

    def build(self, vocabulary: list[str], banks: Path) -> TextEncoder:
        return TextEmbeddingsEncoder(self)


def read_queries(folder: Path, queries: Sequence[str], array: str) -> Vectors:
    """Read each query's mean token from its file.

    Queries without a file are left out; the first of equal texts counts.
    """
    lines = [line for path in queries for _, line in read_published(Path(path))]
    ids = {line.query: str(line.qid) for line in reversed(lines)}
    if len({*ids.values()}) < len(ids):
        raise KitError(f"{' and '.join(queries)}: an id belongs to two texts; give each query its own id")
    files = {text: folder / f"qid{number}.npz" for text, number in ids.items()}
    found = Vectors({text: read_frames(file, array).mean(0) for text, file in files.items() if file.is_file()})
    if not found:
        raise KitError(f"{folder}: no qid<id>.npz of any query; correct `files` or `queries`")
    return found


class TextEmbeddingsEncoder(TextEncoder):
    """Given embeddings of texts, and perhaps a trained layer."""

    caches_texts = False

    def __init__(self, settings: TextEmbeddings) -> None:
        super().__init__()
        self.settings, self.given = settings, settings.open()
        self.head = head(self.given.dim, settings, settings.dim, settings.files[0])

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        self.prepare(texts)
        values = np.concatenate([self.given.read(text) for text in texts]).astype(np.float32)
        return Embedded(self.head(on_device(torch.from_numpy(values), self.device)))

    def prepare(self, texts: Sequence[str]) -> None:
        """Raise KitError for a text without an embedding."""
        if said := self.settings.missing(texts, self.given):
            raise KitError(said)

    def identity(self) -> str:
        return hashlib.sha256("".join(file_sha256(Path(name)) for name in self.settings.files).encode()).hexdigest()

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        return [text for text in texts if text not in self.given]

    def unknown_words(self, text: str) -> list[str]:
        return []
