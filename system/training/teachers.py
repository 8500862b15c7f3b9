"""Embed a stage's data by teachers.

Embed every clip and caption of a stage by its teachers, once before training. The teachers are closed afterwards.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from data_tools.embeddings import Kind, Vectors, read_vectors
from data_tools.errors import KitError
from data_tools.manifest import Clip, caption_queries
from system.audio.checkpoint import weights_sha256
from system.batches.items import caption_key
from system.batches.loader import Taught, Teachers
from system.features.bank import Bank
from system.models.text.published import store_vectors
from system.ranking.cache import embed_cached
from system.ranking.embedding import embed_texts
from system.recipe import schema
from system.recipe.data import Data
from system.runs.folder import Run
from system.runs.open import Trained, open_trained

VERSION = 1  # of captions' embeddings: increased when encoders compute other values with the same weights

log = logging.getLogger(__name__)


def open_teachers(
    names: Sequence[str], recipe: schema.Recipe, stage_name: str, run: Run, data: Data, device: torch.device
) -> Teachers:
    """Return the teachers of a stage, with their embeddings of all its clips and captions, computed or read from files.

    A teacher is a trained model from whose scores the stage learns. All clips for training and validation are embedded.
    The embeddings are cached in the folder `teachers` of the recipe's `banks`. names: Names of the teachers. device:
    Device that computes the embeddings. Raises KitError for a teacher without a single vector per clip.

    Source: SALSA (2024), which computes the teachers' embeddings once, before stage 2. Deviations: float32 instead of
    16 bits; a long clip is embedded as a whole, instead of a random part of it.
    """
    stage = recipe.stages[stage_name]
    sources = dict.fromkeys((*stage.train.data, *stage.monitor.data))
    clips = [clip for source in sources for clip in data.readable_clips(source)]
    return Teachers({teacher: teacher_embeddings(teacher, recipe, run, clips, data, device) for teacher in names})


class _Table:
    """Reads a teacher's embeddings of clips or captions from a file, by the keys of clips or captions."""

    def __init__(self, vectors: Vectors | Bank, names: Mapping[str, str]) -> None:
        """Store a teacher's embeddings. names: Dict from the key of a clip or caption to its id in the file."""
        self._vectors, self._names = vectors, names

    def read(self, key: str) -> np.ndarray:
        """Return the embedding (1, D) of the clip or caption with the key `key`."""
        return self._vectors.read(self._names[key])


def _read_embeddings(name: str, path: Path, clips: Sequence[Clip], data: Data) -> Taught:
    """Read a teacher's embeddings of clips and captions from a file.

    name: Name of the teacher, for messages. Raises KitError if any embedding is missing, or if the file has another
    format.
    """
    names: dict[Kind, dict[str, str]] = {
        "clip": {data.features.keys[clip.id]: clip.id for clip in clips},
        "caption": {
            caption_key(clip, number): query.id
            for clip in clips
            for number, query in enumerate(caption_queries([clip]))
        },
    }
    tables = []
    for kind, named in names.items():
        try:
            vectors = read_vectors([path], kind, "id")
        except KitError as error:
            raise KitError(f"teacher {name}: {error}") from error
        if absent := next((one for one in named.values() if one not in vectors), None):
            raise KitError(
                f"teacher {name}: {path} has no embedding of the {kind} {absent}; write the file again with all "
                "clips and captions of the recipe"
            )
        tables.append(_Table(vectors, named))
    return Taught(*tables)


def teacher_embeddings(
    name: str, recipe: schema.Recipe, run: Run, clips: Sequence[Clip], data: Data, device: torch.device
) -> Taught:
    """Return the embeddings of clips and their captions by the teacher `name`: read from a file, or computed."""
    teacher = recipe.teachers[name]
    if isinstance(teacher, schema.EmbeddingsTeacher):
        log.info("teacher %s: reading its embeddings from %s", name, teacher.file)
        return _read_embeddings(name, Path(teacher.file), clips, data)
    folder = Path(teacher.folder) if isinstance(teacher, schema.ModelTeacher) else run.folder
    banks = Path(recipe.banks)
    trained = open_trained(folder, teacher.stage, teacher.checkpoint, device=device, banks=banks)
    if trained.recipe.model.score.of_series:
        raise KitError(
            f"teacher {name}: {folder} compares frames with words and has no single vector per clip; use another model"
        )
    log.info("teacher %s: embedding clips and captions with %s, checkpoint %s", name, folder, trained.facts.checkpoint)
    cache = banks / "teachers"
    found = embed_cached(trained.model, trained.recipe.model, clips, Path(trained.recipe.banks), cache, strict=True)
    captions = _open_captions_bank(trained, cache)
    texts = {caption_key(clip, i): text for clip in clips for i, text in enumerate(clip.captions)}
    store_vectors(captions, texts, lambda part: embed_texts(trained.model, part).values, f"by teacher {name}")
    names = {data.features.keys[clip.id]: found.keys[clip.id] for clip in clips}
    return Taught(_Table(found.bank, names), captions)


def _open_captions_bank(trained: Trained, cache: Path) -> Bank:
    """Open the bank, a folder on disk, that caches a teacher's embeddings of captions.

    The bank's name is a checksum of everything that changes an embedding.
    """
    text = trained.recipe.model.text
    identity = {
        "version": VERSION,
        "settings": text.model_dump(mode="json", exclude=set(text.file_settings)),
        "text": trained.model.text.identity(),
        "vocabulary": hashlib.sha256(json.dumps(trained.model.text.vocabulary).encode()).hexdigest(),
        "weights": weights_sha256(trained.model.text),
    }
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return Bank(cache / f"captions-{name}", text.dim, "float32", identity)
