"""Embeddings of texts that another program computed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from data_tools.cli import counted
from data_tools.embeddings import HINT, Vectors, read_vectors
from data_tools.errors import KitError
from data_tools.frames import read_frames
from data_tools.manifest import Text
from data_tools.moments import read_published
from data_tools.settings import Size
from system.audio.base import Need, file_sha256
from system.compute.device import on_device
from system.models.embeddings import Embedded
from system.models.text.encoder import TextEncoder, TextSettings


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

    file_settings: ClassVar = frozenset({"files", "queries", "blind_files", "blind_queries"})

    @property
    def is_trained(self) -> bool:
        return self.head == "linear"

    @property
    def is_published(self) -> bool:
        return self.head == "none"

    def open(self) -> Vectors:
        """Read the embeddings by text.

        Those of `files` count before those of a blind list.
        """
        found = self._read(self.files, self.queries)
        if not self.blind_files:
            return found
        blind = self._read(self.blind_files, self.blind_queries).require_dim(found.dim, self.blind_files)
        return Vectors(blind | found)

    def _read(self, files: list[str], queries: list[str]) -> Vectors:
        return read_queries(Path(files[0]), queries, self.array) if queries else read_vectors(files, "caption")

    def needs(self) -> list[Need]:
        cure = f"write this file with the program that computes your embeddings; {HINT}"
        list_cure = "fetch the organisers' list, such as by lbar data get castella"
        found = []
        for key in sorted(self.file_settings):
            of_lists = key.endswith("queries")
            names = [name for name in getattr(self, key) if of_lists or not Path(name).is_dir()]
            found += [Need(f"{key}.{i}", name, cure=list_cure if of_lists else cure) for i, name in enumerate(names)]
        return found

    def texts_fault(self, texts: Sequence[str]) -> str | None:
        if not all(Path(path).exists() for path in self.files):
            return None
        try:
            vectors = self.open()
        except KitError as error:
            return str(error)
        return missing(self.files, [text for text in texts if text not in vectors])

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
    found = Vectors()
    for text, number in ids.items():
        files = [one for one in (folder / f"qid{number}.npz", folder / f"{number}.npz") if one.is_file()]
        if files:
            found[text] = read_frames(files[0], array).mean(0)
    if not found:
        raise KitError(f"{folder}: no qid<id>.npz of any query; correct `files` or `queries`")
    return found


class TextEmbeddingsEncoder(TextEncoder):
    """Given embeddings of texts, and perhaps a trained layer."""

    caches_texts = False

    def __init__(self, settings: TextEmbeddings) -> None:
        super().__init__()
        self.settings, self.given = settings, settings.open()
        size = self.given.dim
        if settings.head == "none" and size != settings.dim:
            raise KitError(f"{settings.files[0]} has embeddings of {size} values; set text.dim to {size}")
        self.head = nn.Linear(size, settings.dim) if settings.head == "linear" else nn.Identity()

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        self.prepare(texts)
        values = np.concatenate([self.given.read(text) for text in texts]).astype(np.float32)
        return Embedded(self.head(on_device(torch.from_numpy(values), self.device)))

    def prepare(self, texts: Sequence[str]) -> None:
        """Raise KitError for a text without an embedding."""
        if said := missing(self.settings.files, self.without_known_words(list(dict.fromkeys(texts)))):
            raise KitError(said)

    def identity(self) -> str:
        return hashlib.sha256("".join(file_sha256(Path(name)) for name in self.settings.files).encode()).hexdigest()

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        return [text for text in texts if text not in self.given]

    def unknown_words(self, text: str) -> list[str]:
        return []


def missing(files: Sequence[str], absent: Sequence[str]) -> str | None:
    """Return a message about texts without an embedding.

    It is None if there are none.
    """
    if not absent:
        return None
    named = f"{counted(len(absent), 'text', ',')}, such as {absent[0][:80]!r}"
    return f"{' and '.join(files)}: no embedding of {named}; write embeddings of all captions and queries"
