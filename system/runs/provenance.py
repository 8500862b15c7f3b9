"""What a run is made of: code, machine, and checksums of manifests and weights, which are compared at resume."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from data_tools.errors import KitError
from data_tools.files import require_file, write_json
from data_tools.manifest import Clip
from system.audio.base import file_sha256
from system.recipe import schema
from system.recipe.load import Loaded, differing
from system.runs.folder import Run
from system.runs.names import trained_files
from system.runs.records import Provenance

BY_SOURCE = ("manifests", "contents")  # kinds of inputs whose keys are data sources


def commit() -> str:
    """Return the short hash of the code's commit, with "+" if files differ; "unversioned" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unversioned"


def file_checksums(recipe: schema.Recipe) -> dict[str, Any]:
    """Return the checksums of manifests, moments, embeddings, teachers and start models, as far as they exist."""
    starts = [s.start_from.folder for s in recipe.stages.values() if isinstance(s.start_from, schema.FromModel)]
    weights = {name: path for name, one in recipe.teachers.items() if (path := schema.teacher_path(one))}
    return {
        "manifests": {name: file_sha256(path) for name, path in recipe.data_files.items() if path.exists()},
        "teachers": {name: weight_checksums(path) for name, path in weights.items() if path.exists()},
        "starts": {one: " ".join(weight_checksums(Path(one)).values()) for one in starts if Path(one).exists()},
    }


def weight_checksums(path: Path) -> dict[str, str]:
    """Return the checksums of the files that identify a model's weights."""
    if path.is_file():  # of embeddings
        return {path.name: file_sha256(path)}
    return {one.relative_to(path).as_posix(): file_sha256(one) for one in trained_files(path)}


def require_models(recipe: schema.Recipe) -> None:
    """Raise KitError for a teacher or another model that is missing or not trained."""
    for name, teacher in recipe.teachers.items():
        if isinstance(teacher, schema.EmbeddingsTeacher):
            require_file(Path(teacher.file), f"teacher {name}: write the file with lbar embed")
        elif isinstance(teacher, schema.ModelTeacher):
            _require_trained(f"teacher {name}", Path(teacher.folder))
    for name, stage in recipe.stages.items():
        if isinstance(stage.start_from, schema.FromModel):
            _require_trained(f"start_from of stage {name}", Path(stage.start_from.folder))
    for name, entry in recipe.rank.items():
        for folder in entry.other_models:
            _require_trained(f"rank entry {name}", Path(folder))


def _require_trained(part: str, folder: Path) -> None:
    try:
        trained_files(folder)
    except KitError as error:
        raise KitError(f"{part} needs a trained model: {error}") from None


def require_unchanged(run: Run, now: Mapping[str, Any], free: Iterable[str] = ()) -> None:
    """Raise KitError if something has another checksum than when the run began. free: Sources that may differ."""
    before, changed = run.read_provenance().document(), []
    for kind, found in json.loads(json.dumps(now)).items():
        noted, named = before.get(kind), f"{kind}"
        if isinstance(noted, dict) and isinstance(found, dict):
            may = {name for name in found if kind in BY_SOURCE and name.removesuffix(".moments") in set(free)}
            both = (noted.keys() & found.keys()) - may
            noted, found = ({name: part[name] for name in both} for part in (noted, found))
        elif kind not in before:
            continue
        changed += [key for key, _, _ in differing(noted, found, named)]
    if changed:
        raise KitError(
            f"{run.folder}: {', '.join(sorted(changed))} changed since this run began (contents are audio files); "
            "restore them, or start another run with --name"
        )


def record_provenance(run: Run, loaded: Loaded, text: str | None, contents: Mapping[str, str], gpu: str | None) -> None:
    """Write what a new run is made of; for an older one, compare it, and note new sources and another commit.

    Args:
        text: Checksum of a pre-trained text encoder.
        contents: Checksum of the audio of each data source.
    """
    recipe = loaded.recipe
    augments = {name for stage in recipe.stages.values() if stage.augment for name in stage.augment.files()}
    now = file_checksums(recipe) | {
        "experts": {name: expert.identity() for name, expert in recipe.model.audio.experts.items()},
        "text": text,
        "audio": recipe.model.audio.file_checksums(),
        "augment": {name: file_sha256(Path(name)) for name in sorted(augments)},
        "contents": dict(contents),
    }
    if not run.provenance.exists():
        machine = {
            "recipe": recipe.name,
            "seed": recipe.seed,
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "machine": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": gpu,
            "started_in": os.path.relpath(Path.cwd(), run.folder.resolve()),
        }
        noted = Provenance.model_validate({**machine, "changes": list(loaded.changes), "commits": [commit()], **now})
        write_json(run.provenance, noted.document())
        return
    require_unchanged(run, now, run.changed_sources(recipe))
    before = run.read_provenance().document()
    commits = dict.fromkeys([*before["commits"], commit()]) if before["commits"][-1] != commit() else before["commits"]
    noted_now = before | {"commits": list(commits), "changes": list(loaded.changes)}
    noted_now |= {kind: before.get(kind, {}) | now[kind] for kind in BY_SOURCE}
    if noted_now != before:
        write_json(run.provenance, noted_now)


def contents_checksum(clips: Iterable[Clip], keys: Mapping[str, str]) -> str:
    """Return one checksum of the ids and the audio of clips.

    Args:
        keys: Checksum of the audio by id of a readable clip.
    """
    checksum = hashlib.sha256()
    for clip_id in sorted(clip.id for clip in clips):
        checksum.update(f"{clip_id}\0{keys.get(clip_id)}\n".encode())
    return checksum.hexdigest()
