"""What a run is made of and was trained on.

The checksums of manifests and weights are compared at resume. Clips show leaks: which of those that a model, its start
models and its teachers were trained on are ranked.

<run or exported model>/trained_on.csv   id, freesound_id (may be empty), quick_sha256 of the audio file
"""

import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from data_tools.errors import KitError
from data_tools.files import write_json
from data_tools.manifest import Clip
from data_tools.tables import read_table, write_table
from system.audio import file_sha256
from system.recipe import schema
from system.recipe.data import Data
from system.recipe.load import Loaded, differing
from system.runs.folder import TRAINED_ON, Provenance, Run, trained_files

log = logging.getLogger(__name__)


def commit() -> str:
    """Return the short hash of the code's commit.

    It ends in "+" if files differ, and is "unversioned" outside a checkout.
    """
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unversioned"


def inputs_of(recipe: schema.Recipe) -> dict[str, str]:
    """Return the checksums of existing files that training reads."""
    files = [Path(one) for source in recipe.data.values() for one in (source.manifest, source.moments) if one]
    files += recipe.model.embedding_files.values()
    changed = [stage.augment.captions for stage in recipe.stages.values() if stage.augment]
    files += [Path(captions.file) for captions in changed if captions]
    found = checksums(recipe.learned_from.values(), files)
    imported = [Path(name) for name in recipe.imports]
    if imported and all(path.exists() for path in imported):  # wherever they lie
        found["imports"] = " ".join(map(file_sha256, imported))
    return found


def checksums(models: Iterable[Path], files: Iterable[Path] = ()) -> dict[str, str]:
    """Return the checksums of models' weights, and of files or folders.

    Those that are not on this machine are left out.
    """
    weights = [one for path in models if path.exists() for one in trained_files(path)]
    return {str(path): file_sha256(path) for path in (*weights, *files) if path.exists()}


def require_models(recipe: schema.Recipe) -> None:
    """Refuse other models that are missing or not trained."""
    for key, path in recipe.other_models.items():
        try:
            trained_files(path)
        except KitError as error:
            raise KitError(f"{key} needs a trained model: {error}") from None


def require_unchanged(run: Run, now: Mapping[str, Any]) -> None:
    """Refuse inputs that changed since the run began."""
    before = run.read_provenance().inputs
    changed = [one for key in before if key in now for one, _, _ in differing(before[key], now[key], key)]
    if changed:
        raise KitError(
            f"{run.folder}: {', '.join(sorted(changed))} changed since this run began; "
            "restore them, or start another run with --name"
        )


def record_provenance(run: Run, loaded: Loaded, text: str | None, gpu: str | None) -> None:
    """Record what a run is made of, or compare it.

    New inputs and another commit are added to the record.

    Args:
        text: Checksum of a pre-trained text encoder.
    """
    audio = loaded.recipe.model.audio
    now: dict[str, Any] = inputs_of(loaded.recipe) | {"text": text}
    now |= {f"experts.{name}": expert.identity() for name, expert in audio.experts.items()}
    now |= {f"audio.{name}": checksum for name, checksum in audio.file_checksums().items()}
    now = json.loads(json.dumps(now))
    if run.provenance.exists():
        require_unchanged(run, now)
        noted = run.read_provenance().document()
    else:
        noted = {
            "commits": [],
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "machine": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": gpu,
            "started_in": os.path.relpath(Path.cwd(), run.folder.resolve()),
            "inputs": {},
        }
    commits = list(dict.fromkeys([*noted["commits"], commit()]))
    noted |= {"commits": commits, "changes": list(loaded.changes), "inputs": noted["inputs"] | now}
    write_json(run.provenance, Provenance.model_validate(noted).document())


class TrainedClip(NamedTuple):
    """A row of trained_on.csv."""

    id: str
    freesound_id: str
    quick_sha256: str


NOT_KNOWN = TrainedClip("(not known)", "", "")  # row for models whose training data are not known


def write_trained_clips(recipe: schema.Recipe, run: Run, data: Data) -> None:
    """Write trained_on.csv.

    It lists the clips of the run's stages, of its start models, and of its teachers.
    """
    if run.provenance.exists():
        return
    clips = [
        TrainedClip(clip.id, clip.freesound_id or "", data.quick_checksum(clip))
        for source in recipe.trained_on
        for clip in data.readable_clips(source)
    ]
    for key, model in recipe.learned_from.items():
        known = read_trained_clips(model)
        if NOT_KNOWN in known:
            log.warning("%s: the training data of %s is unknown; metrics may be too high", key, model)
        clips += known
    if recipe.model.audio.trained_on_captions:
        clips.append(NOT_KNOWN)
    if clips:
        write_table(run.trained_on, TrainedClip._fields, dict.fromkeys(clips))


def read_trained_clips(folder: Path) -> list[TrainedClip]:
    """Read the clips that a model was trained on.

    NOT_KNOWN is among them if not all are known.
    """
    path = folder / TRAINED_ON
    if not path.exists():
        return [NOT_KNOWN]
    return [
        TrainedClip(*(row[name] for name in TrainedClip._fields)) for _, row in read_table(path, TrainedClip._fields)
    ]


def count_trained_clips(run: Run, source: str, data: Data, others: Sequence[str] = ()) -> int:
    """Count a source's clips that the model was trained on.

    Clips of its start models and its teachers count too.

    Args:
        others: Folders of further models.
    """
    trained = [clip for folder in (run.folder, *map(Path, others)) for clip in read_trained_clips(folder)]
    return len(shared_clips(trained, data.readable_clips(source), data))


def shared_clips(trained: Sequence[TrainedClip], clips: Sequence[Clip], data: Data) -> list[Clip]:
    """Return the clips that are among trained ones.

    Clips are compared by their audio and their Freesound recording; without audio, by id.
    """
    contents, recordings = {one.quick_sha256 for one in trained} - {""}, {one.freesound_id for one in trained} - {""}
    ids = {one.id for one in trained if not one.quick_sha256}
    return [
        clip
        for clip in clips
        if clip.id in ids or clip.freesound_id in recordings or data.quick_checksum(clip) in contents
    ]
