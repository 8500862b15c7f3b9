"""Embed a stage's data by teachers.

Embed every clip and caption of a stage once by its teachers, which are opened and closed for that.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from data_tools.errors import KitError
from data_tools.manifest import Clip, caption_queries
from system.batches.teachers import Taught, Teachers, caption_key
from system.features.bank import Bank, open_bank
from system.features.texts import store_vectors
from system.networks.weights import weights_sha256
from system.ranking.cache import CachedEmbeddings
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
    """Embed all clips and captions of a stage by its teachers, or read stored embeddings.

    The clips are those for training and validation. The embeddings are cached in `teachers` of the recipe's banks.
    device: Device that computes the embeddings. Raises KitError for a teacher without a single vector per clip.

    Source: SALSA (2024), which computes the teachers' embeddings once, before stage 2. Deviations: float32, not 16
    bits; all of a clip is used, not a random part of a long one.
    """
    stage = recipe.stages[stage_name]
    sources = dict.fromkeys((*stage.train.data, *stage.monitor.data))
    clips = [clip for source in sources for clip in data.readable_clips(source)]
    return Teachers({teacher: taught(teacher, recipe, run, clips, data, device) for teacher in names})


class _Table:
    """Embeddings in memory, by key."""

    def __init__(self, rows: Mapping[str, np.ndarray]) -> None:
        self.rows = rows

    def read(self, key: str) -> np.ndarray:
        """Return the embedding, (1, D), that is stored under a key."""
        return self.rows[key][None]


def _read_embeddings(name: str, path: Path, clips: Sequence[Clip], data: Data) -> Taught:
    """Read a teacher's embeddings of clips and captions from a file (.npz).

    Raises KitError if any embedding is missing, and for another file format.
    """
    hint = "write such a file with python -m system embeddings"
    if path.suffix != ".npz":
        raise KitError(f"teacher {name}: {path} is not an .npz file of embeddings; {hint}")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            kinds, ids, values = (content[key] for key in ("kind", "id", "embedding"))
            by_id = {(str(kind), str(id)): row for kind, id, row in zip(kinds, ids, values, strict=True)}
        if values.ndim != 2 or not np.isfinite(values.astype(np.float32)).all():
            raise ValueError("the embeddings are not a matrix of finite numbers")
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged header or member
        raise KitError(f"teacher {name}: {path} cannot be read as embeddings ({error}); {hint}") from error

    def row(kind: str, id: str) -> np.ndarray:
        """Return the embedding of a clip or caption. Raises KitError if it is missing."""
        if (kind, id) not in by_id:
            raise KitError(
                f"teacher {name}: {path} has no embedding of the {kind} {id}; "
                "write it again with all clips and captions of the recipe"
            )
        found: np.ndarray = by_id[kind, id].astype(np.float32)
        return found

    sounds = {data.features.keys[clip.id]: row("clip", clip.id) for clip in clips}
    captions = {
        caption_key(clip, number): row("caption", query.id)
        for clip in clips
        for number, query in enumerate(caption_queries([clip]))
    }
    return Taught(_Table(sounds), _Table(captions))


def taught(
    name: str, recipe: schema.Recipe, run: Run, clips: Sequence[Clip], data: Data, device: torch.device
) -> Taught:
    """Return a teacher's embeddings of clips and their captions, stored or computed."""
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
    found = CachedEmbeddings(trained.recipe.model, Path(trained.recipe.banks), cache).fill(trained.model, clips, True)
    captions = _captions_bank(trained, cache)
    texts = {caption_key(clip, i): text for clip in clips for i, text in enumerate(clip.captions)}
    store_vectors(captions, texts, lambda part: embed_texts(trained.model, part).values, f"by teacher {name}")
    return Taught(found.bank, captions)


def _captions_bank(trained: Trained, cache: Path) -> Bank:
    """Open the bank of a teacher's caption embeddings.

    Its name is a checksum of everything that changes an embedding.
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
    return open_bank(cache / f"captions-{name}", text.dim, "float32", identity)
