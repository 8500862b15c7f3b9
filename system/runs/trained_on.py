"""Leaks: the clips that a model, its start models and its teachers were trained on, and which of them are ranked.

<run or exported model>/trained_on.csv   id, freesound_id (may be empty), quick_sha256 of the audio file
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.tables import read_table, write_table
from system.recipe import schema
from system.recipe.data import Data
from system.runs.folder import TRAINED_ON, Run

log = logging.getLogger(__name__)


class TrainedClip(NamedTuple):
    """A row of trained_on.csv."""

    id: str
    freesound_id: str
    quick_sha256: str


NOT_KNOWN = TrainedClip("(not known)", "", "")  # row for models whose training data are not known


def write_trained_clips(recipe: schema.Recipe, run: Run, data: Data) -> None:
    """Write trained_on.csv: the clips of the run's stages, of its start models, and of its teachers."""
    if run.trained_on.exists():
        return
    clips = [
        TrainedClip(clip.id, clip.freesound_id or "", data.quick_checksum(clip))
        for source in recipe.trained_on
        for clip in data.readable_clips(source)
    ]
    for _, model in _models_of(recipe):
        clips += (read_trained_clips(Path(model.folder)) if hasattr(model, "folder") else None) or [NOT_KNOWN]
    if recipe.model.audio.trained_on_captions:
        clips.append(NOT_KNOWN)
    if clips:
        write_table(run.trained_on, TrainedClip._fields, dict.fromkeys(clips))


Model = schema.ModelTeacher | schema.EmbeddingsTeacher | schema.FromModel


def _models_of(recipe: schema.Recipe) -> Iterator[tuple[str, Model]]:
    """Yield the keys and the settings of the teachers and start models that are not of this run."""
    for name, stage in recipe.stages.items():
        if isinstance(stage.start_from, schema.FromModel):
            yield f"stages.{name}.start_from", stage.start_from
    for name, teacher in recipe.teachers.items():
        if not isinstance(teacher, schema.StageTeacher):
            yield f"teachers.{name}", teacher


def read_trained_clips(folder: Path) -> list[TrainedClip] | None:
    """Read the clips that a run or an exported model was trained on; None if not all are known."""
    path = folder / TRAINED_ON
    if not path.exists():
        return None
    found = _read(path)
    return None if NOT_KNOWN in found else found


def _read(path: Path) -> list[TrainedClip]:
    rows = read_table(path, TrainedClip._fields)
    return [TrainedClip(*(row[name] for name in TrainedClip._fields)) for _, row in rows]


def refuse_leaks(recipe: schema.Recipe, data: Data) -> None:
    """Raise KitError for a teacher or a start model that was trained on ranked clips, unless that is acknowledged.

    A teacher whose training clips are not known is refused, too; a start model is warned about.
    """
    ranked = [
        clip
        for source in dict.fromkeys(map(recipe.ranked_source, recipe.scored))
        for clip in data.readable_clips(source)
    ]
    for key, model in _models_of(recipe):
        if isinstance(model, schema.EmbeddingsTeacher) or model.trained_on_test == "acknowledged":
            continue
        permit = f"use another model, or set {key}.trained_on_test to acknowledged"
        clips = read_trained_clips(Path(model.folder))
        if clips is None and isinstance(model, schema.ModelTeacher):
            raise KitError(f"{key}: the training data of {model.folder} is unknown; {permit}")
        if clips is None:
            log.warning("%s: the training data of %s is unknown; metrics may be too high", key, model.folder)
        if found := shared_clips(clips or [], ranked, data):
            some = f"{counted(len(found), 'ranked clip')}, such as {found[0].id}"
            raise KitError(f"{key}: {model.folder} was trained on {some}; {permit}")


def count_trained_clips(run: Run, source: str, data: Data, others: Sequence[str] = ()) -> int:
    """Count the clips of a data source that the run's model, its start models or its teachers were trained on.

    Args:
        others: Folders of further models.
    """
    files = [run.trained_on, *(Path(folder) / TRAINED_ON for folder in others)]
    trained = [clip for path in files if path.exists() for clip in _read(path)]
    return len(shared_clips(trained, data.readable_clips(source), data))


def shared_clips(trained: Sequence[TrainedClip], clips: Sequence[Clip], data: Data) -> list[Clip]:
    """Return the clips with the audio, or of the Freesound recording, of a trained one; without audio, by id."""
    contents, recordings = {one.quick_sha256 for one in trained} - {""}, {one.freesound_id for one in trained} - {""}
    ids = {one.id for one in trained if not one.quick_sha256}
    return [
        clip
        for clip in clips
        if clip.id in ids or clip.freesound_id in recordings or data.quick_checksum(clip) in contents
    ]
