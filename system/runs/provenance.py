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
from data_tools.files import write_json
from data_tools.manifest import Clip
from system.audio.base import file_sha256
from system.recipe import schema
from system.recipe.load import Loaded, differing
from system.runs.folder import Provenance, Run, trained_files


def commit() -> str:
    """Return the short hash of the code's commit, with "+" if files differ; "unversioned" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unversioned"


def inputs_of(recipe: schema.Recipe) -> dict[str, Any]:
    """Return what identifies manifests, moments, embeddings, teachers and start models, as far as they exist."""
    found: dict[str, Any] = {
        f"manifests.{name}": file_sha256(path) for name, path in recipe.data_files.items() if path.exists()
    }
    models = {key: path for key, path in recipe.other_models.items() if not key.startswith("rank.")}
    found |= {f"imports.{name}": file_sha256(Path(name)) for name in recipe.imports}
    return found | {key: weight_checksums(path) for key, path in models.items() if path.exists()}


def weight_checksums(path: Path) -> dict[str, str]:
    """Return the checksums of the files that identify a model's weights."""
    return {os.path.relpath(one, path.parent if one == path else path): file_sha256(one) for one in trained_files(path)}


def require_models(recipe: schema.Recipe) -> None:
    """Raise KitError for a teacher or another model that is missing or not trained."""
    for key, path in recipe.other_models.items():
        try:
            trained_files(path)
        except KitError as error:
            raise KitError(f"{key} needs a trained model: {error}") from None


def require_unchanged(run: Run, now: Mapping[str, Any], free: Iterable[str] = ()) -> None:
    """Raise KitError if an input is not what it was when the run began.

    Args:
        free: Data sources that may differ.
    """
    before = run.read_provenance().inputs
    may = {f"{kind}.{name}" for name in free for kind in ("manifests", "contents")}
    compared = [key for key in before if key in now and key.removesuffix(".moments") not in may]
    changed = [one for key in compared for one, _, _ in differing(before[key], now[key], key)]
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
    audio, augments = recipe.model.audio, [stage.augment for stage in recipe.stages.values() if stage.augment]
    now = inputs_of(recipe) | {"text": text}
    now |= {f"experts.{name}": expert.identity() for name, expert in audio.experts.items()}
    now |= {f"audio.{name}": checksum for name, checksum in audio.file_checksums().items()}
    now |= {f"augment.{name}": file_sha256(Path(name)) for augment in augments for name in augment.files()}
    now |= {f"contents.{name}": checksum for name, checksum in contents.items()}
    now = json.loads(json.dumps(now))
    if run.provenance.exists():
        require_unchanged(run, now, run.changed_sources(recipe))
        noted = run.read_provenance().document()
    else:
        noted = {
            "recipe": recipe.name,
            "seed": recipe.seed,
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
    commits, code = noted["commits"], commit()
    commits = commits if commits[-1:] == [code] else list(dict.fromkeys([*commits, code]))
    noted |= {"commits": commits, "changes": list(loaded.changes), "inputs": noted["inputs"] | now}
    write_json(run.provenance, Provenance.model_validate(noted).document())


def contents_checksum(clips: Iterable[Clip], keys: Mapping[str, str]) -> str:
    """Return one checksum of the ids and the audio of clips.

    Args:
        keys: Checksum of the audio by id of a readable clip.
    """
    checksum = hashlib.sha256()
    for clip_id in sorted(clip.id for clip in clips):
        checksum.update(f"{clip_id}\0{keys.get(clip_id)}\n".encode())
    return checksum.hexdigest()
