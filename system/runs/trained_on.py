"""Clips that a model was trained on.

Record the clips that a model, its starting model and its teachers were trained on. Refuse teachers and starting models
that were trained on ranked clips.

<run or exported model>/trained_on.csv   id, freesound_id (may be empty), quick_sha256 of the audio file
"""

import logging
from collections.abc import Iterator
from itertools import chain
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
    """A row of trained_on.csv. freesound_id: "" if unknown. quick_sha256: Checksum of the audio; see json_text.py."""

    id: str
    freesound_id: str
    quick_sha256: str


NOT_KNOWN = TrainedClip("(not known)", "", "")  # row for models whose training data are not known


def write_trained_clips(recipe: schema.Recipe, run: Run, data: Data) -> None:
    """Write trained_on.csv, the table of the clips that a run is trained on, unless it exists.

    If the training clips of a starting model or a teacher are not known, the row NOT_KNOWN is added.
    """
    if run.trained_on.exists():
        return
    starts = [stage.start_from for stage in recipe.stages.values()]
    models = [part for part in (*starts, *recipe.teachers.values()) if not isinstance(part, _OF_THIS_RUN)]
    tables = [read_trained_clips(Path(model.folder)) for model in models]
    inherited = [clip for table in tables for clip in table or [NOT_KNOWN]]
    embeddings = any(isinstance(teacher, schema.EmbeddingsTeacher) for teacher in recipe.teachers.values())
    if embeddings or recipe.model.audio.trained_on_captions:
        inherited.append(NOT_KNOWN)
    clips = (
        TrainedClip(clip.id, clip.freesound_id or "", data.quick_checksum(clip))
        for source in recipe.trained_on
        for clip in data.readable_clips(source)
    )
    write_table(run.trained_on, TrainedClip._fields, dict.fromkeys(chain(clips, inherited)))


_OF_THIS_RUN = (schema.FromScratch, schema.FromStage, schema.StageTeacher, schema.EmbeddingsTeacher)


def read_trained_clips(folder: Path) -> list[TrainedClip] | None:
    """Read the clips that a model was trained on; None if they are not known.

    The clips are not known for models of other authors, and for models that learned from such models.
    folder: Folder of a run or an exported model. Raises DataError for a damaged table.
    """
    path = folder / TRAINED_ON
    if not path.exists():
        return None
    rows = read_table(path, TrainedClip._fields)
    found = [TrainedClip(*(row[name] for name in TrainedClip._fields)) for _, row in rows]
    return None if NOT_KNOWN in found else found


def refuse_leaks(recipe: schema.Recipe, data: Data) -> None:
    """Raise KitError if a teacher, or a model that a stage starts from, was trained on a clip that the recipe ranks.

    Two clips count as the same if they have the same audio, or are of the same Freesound recording. Teachers with
    unknown training clips are refused too. A model is accepted if `trained_on_test: acknowledged` is set in the recipe.
    """
    for name, teacher in recipe.teachers.items():
        if not isinstance(teacher, schema.ModelTeacher) or teacher.trained_on_test == "acknowledged":
            continue
        permit = f"set `trained_on_test: acknowledged` in teachers.{name}"
        clips = read_trained_clips(Path(teacher.folder))
        if clips is None:
            raise KitError(
                f"teacher {name}: the training data of {teacher.folder} is unknown ({TRAINED_ON} is missing or "
                f"incomplete), so it may include ranked clips; use another teacher, or {permit}"
            )
        _refuse_ranked_clips(f"teacher {name}: {teacher.folder}", clips, recipe, data, permit)
    for name, stage in recipe.stages.items():
        start = stage.start_from
        if isinstance(start, schema.FromModel) and start.trained_on_test != "acknowledged":
            permit = f"set `trained_on_test: acknowledged` in stages.{name}.start_from"
            clips = read_trained_clips(Path(start.folder))
            if clips is None:
                log.warning(
                    "stage %s starts from %s, whose training data is unknown and may include ranked clips, so "
                    "the metrics may be too high",
                    name,
                    start.folder,
                )
            _refuse_ranked_clips(f"stage {name}: {start.folder}", clips or [], recipe, data, permit)


def _refuse_ranked_clips(model: str, clips: list[TrainedClip], recipe: schema.Recipe, data: Data, permit: str) -> None:
    """Raise KitError if a clip that the recipe ranks is among the training clips of a model.

    clips: The training clips. model: Description of the model, for the message. permit: Setting that permits the model
    all the same, for the message.
    """
    found = list(_ranked_training_clips(clips, recipe, data))
    if found:
        source, clip = found[0]
        raise KitError(
            f"{model} was trained on {counted(len(found), 'ranked clip')}, such as {clip.id} of {source}; "
            f"use another model, or {permit}"
        )


def _ranked_training_clips(trained: list[TrainedClip], recipe: schema.Recipe, data: Data) -> Iterator[tuple[str, Clip]]:
    """Yield (data source, clip) for every clip that the recipe ranks and that is one of a model's training clips."""
    contents, recordings = {one.quick_sha256 for one in trained}, {one.freesound_id for one in trained} - {""}
    for source in dict.fromkeys(map(recipe.ranked_source, recipe.scored)):
        for clip in data.readable_clips(source):
            if data.quick_checksum(clip) in contents or (clip.freesound_id or "") in recordings:
                yield source, clip
