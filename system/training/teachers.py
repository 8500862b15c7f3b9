"""Teachers' embeddings of a stage's clips and captions.

They are computed once, before the training.

Source: SALSA (2024). Deviations: float32 instead of 16 bits; a long clip is embedded as a whole, instead of a random
part of it.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.batches.items import caption_key
from system.batches.loader import Taught, Teachers
from system.ranking.embedding import embed_texts, vectors
from system.recipe import schema
from system.recipe.data import Data
from system.retriever import Retriever
from system.runs.folder import Run
from system.runs.open import open_trained

log = logging.getLogger(__name__)


def embed_by_teachers(
    recipe: schema.Recipe, stage: schema.Stage, run: Run, data: Data, device: torch.device
) -> Teachers:
    """Embed a stage's clips and captions by its teachers."""
    clips = [clip for source in stage.sources for clip in data.readable_clips(source)]
    names = dict.fromkeys(teacher for term in stage.losses for teacher in term.taught_by)
    return {name: teacher_embeddings(name, recipe, run, clips, data, device) for name in names}


def teacher_embeddings(
    name: str, recipe: schema.Recipe, run: Run, clips: Sequence[Clip], data: Data, device: torch.device
) -> Taught:
    """Return a teacher's embeddings of clips and their captions."""
    teacher, banks = recipe.teachers[name], Path(recipe.banks)
    folder = Path(teacher.folder) if isinstance(teacher, schema.FromModel) else run.folder
    retriever = Retriever(open_trained(folder, teacher.stage, teacher.checkpoint, device=device, banks=banks), banks)
    if retriever.recipe.model.score.of_series:  # before hours of embedding
        raise KitError(f"teacher {name}: {folder} has no single vector per clip; use another model")
    log.info("teacher %s: embedding with %s, checkpoint %s", name, folder, retriever.facts.checkpoint)
    pool = retriever.open(clips, strict=True)
    keys = [data.features.keys[clip.id] for clip in pool.clips]
    captions = {caption_key(clip, number): text for clip in pool.clips for number, text in enumerate(clip.captions)}
    texts = vectors(embed_texts(retriever.model, list(captions.values())))
    return Taught(dict(zip(keys, vectors(pool.embedded), strict=True)), dict(zip(captions, texts, strict=True)))
