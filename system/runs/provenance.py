"""What a run is made of: code, machine, and checksums of manifests and weights, which are compared at resume."""

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


def inputs_of(recipe: schema.Recipe) -> dict[str, str]:
    """Return the checksums of manifests, moments, embeddings, teachers, start models and imports that exist."""
    models = [path for key, path in recipe.other_models.items() if not key.startswith("rank.")]
    return checksums([*recipe.data_files.values(), *models, *map(Path, recipe.imports)])


def checksums(paths: Iterable[Path]) -> dict[str, str]:
    """Return the checksums of the files, and of models' weights, that exist, by their paths."""
    return {str(one): file_sha256(one) for path in paths if path.exists() for one in trained_files(path)}


def require_models(recipe: schema.Recipe) -> None:
    """Raise KitError for a teacher or another model that is missing or not trained."""
    for key, path in recipe.other_models.items():
        try:
            trained_files(path)
        except KitError as error:
            raise KitError(f"{key} needs a trained model: {error}") from None


def require_unchanged(run: Run, now: Mapping[str, Any]) -> None:
    """Raise KitError if an input is not what it was when the run began."""
    before = run.read_provenance().inputs
    changed = [one for key in before if key in now for one, _, _ in differing(before[key], now[key], key)]
    if changed:
        said = f"{', '.join(sorted(changed))} changed since this run began"
        raise KitError(f"{run.folder}: {said}; restore them, or start another run with --name")


def record_provenance(run: Run, loaded: Loaded, text: str | None, gpu: str | None) -> None:
    """Write what a new run is made of; for an older one, compare it, and note new inputs and another commit.

    Args:
        text: Checksum of a pre-trained text encoder.
    """
    recipe = loaded.recipe
    audio, augments = recipe.model.audio, [stage.augment for stage in recipe.stages.values() if stage.augment]
    now: dict[str, Any] = inputs_of(recipe) | {"text": text}
    now |= {f"experts.{name}": expert.identity() for name, expert in audio.experts.items()}
    now |= {f"audio.{name}": checksum for name, checksum in audio.file_checksums().items()}
    now |= {name: file_sha256(Path(name)) for augment in augments for name in augment.files()}
    now = json.loads(json.dumps(now))
    if run.provenance.exists():
        require_unchanged(run, now)
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
    commits = list(dict.fromkeys([*noted["commits"], commit()]))
    noted |= {"commits": commits, "changes": list(loaded.changes), "inputs": noted["inputs"] | now}
    write_json(run.provenance, Provenance.model_validate(noted).document())
