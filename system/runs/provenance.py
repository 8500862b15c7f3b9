"""Versions, machine and checksums of a run.

Provenance is a record of these. The checksums are those of data, experts, teachers and starting models.
"""

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_tools.errors import KitError
from data_tools.files import checksum, replacing, require_file, write_json, write_text
from data_tools.manifest import Clip
from submission.runs.record import Provenance
from system.audio.base import file_sha256
from system.recipe import schema
from system.recipe.load import Loaded, differing, load_recipe
from system.runs.folder import Run
from system.runs.weights import trained_files

log = logging.getLogger(__name__)


def commit() -> str:
    """Return the short hash of the code's commit, with "+" if files differ from the commit.

    The result is "unversioned" outside a git checkout.
    """
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unversioned"


def input_checksums(
    recipe: schema.Recipe, text: str | None, contents: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a dict from kind of input, such as manifests or experts, to the checksums of a run's inputs.

    text: Checksum of a pre-trained text encoder; None for an encoder from scratch. contents: Dict from data source to
    the checksum of its audio. None: the audio has not been read; checksums of audio and of augmentation files are left
    out.
    """
    teachers = teacher_checksums(recipe)
    changed_by = {name for stage in recipe.stages.values() if stage.augment for name in stage.augment.files()}
    augment = {name: file_sha256(Path(name)) for name in sorted(changed_by)} if contents is not None else {}
    starts = [s.start_from.folder for s in recipe.stages.values() if isinstance(s.start_from, schema.FromModel)]
    weights = {folder: _weight_checksums(Path(folder), f"start_from {folder}") for folder in starts}
    return {
        "manifests": {name: file_sha256(path) for name, path in recipe.data_files.items()},
        "experts": {name: expert.identity() for name, expert in recipe.model.audio.experts.items()},
        "text": text,
        "starts": {folder: " ".join(checksums.values()) for folder, checksums in weights.items()},
        **({"teachers": teachers} if teachers else {}),
        **({"audio": audio} if (audio := recipe.model.audio.file_checksums()) else {}),
        **({"augment": augment} if augment else {}),
        **({} if contents is None else {"contents": dict(contents)}),
    }


def teacher_checksums(recipe: schema.Recipe) -> dict[str, dict[str, str]]:
    """Return a dict from each teacher to the checksums of the files that determine its weights.

    Teachers that are stages of the same run are left out. Raises KitError if a teacher's folder has no trained model.
    """
    checksums = {}
    for name, teacher in recipe.teachers.items():
        if isinstance(teacher, schema.StageTeacher):
            continue
        if isinstance(teacher, schema.EmbeddingsTeacher):
            require_file(Path(teacher.file), f"teacher {name}: write the file with lbar embed")
            checksums[name] = {Path(teacher.file).name: file_sha256(Path(teacher.file))}
            continue
        checksums[name] = _weight_checksums(Path(teacher.folder), f"teacher {name}")
    return checksums


def _weight_checksums(folder: Path, part_of_recipe: str) -> dict[str, str]:
    """Return a dict from each file that identifies the weights in a model's folder to its checksum.

    part_of_recipe: Entry of the recipe that uses the model, for error messages.
    """
    try:
        paths = trained_files(folder)
    except KitError as error:
        raise KitError(f"{part_of_recipe} needs a trained model: {error}") from None
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}


def require_unchanged_files(run: Run, current: dict[str, Any], others: Collection[str] = ()) -> None:
    """Raise KitError if a checksum in `current` differs from the run's provenance; data sources `others` may differ.

    current: Present checksums, which are compared with the checksums in the run's provenance. Some checksums are not
    compared: keys that `current` leaves out, data sources that are new or removed, and the data sources `others`.
    """
    before = run.read_provenance().document()
    known = {key: before[key] for key in current if key in before}
    compared = json.loads(json.dumps({key: current[key] for key in known}))
    for key in ("manifests", "contents"):
        if key in known:
            both = (known[key].keys() & compared[key].keys()).difference(others)
            known[key], compared[key] = ({name: part[key][name] for name in both} for part in (known, compared))
    changed = sorted(key for key, _, _ in differing(known, compared))
    if changed:
        inputs = ", ".join(changed) + (" (audio files)" if any(key.startswith("contents") for key in changed) else "")
        raise KitError(f"{run.folder}: {inputs} changed since this run began; start a new run")


def record_provenance(
    run: Run,
    loaded: Loaded,
    text: str | None,
    contents: Mapping[str, str],
    gpu: str | None,
) -> None:
    """Write a run's provenance (versions, machine and checksums), or check and complete that of a resumed run.

    text: Checksum of a pre-trained text encoder; None for an encoder from scratch. contents: Dict from data source to
    the checksum of its audio. gpu: Name of the GPU. If the run is resumed, raise KitError if a checksum has
    changed, and add the code's commit if it is new. The checksum of resolved.json is added if an earlier process was
    killed before writing it.
    """
    import torch

    recipe = loaded.recipe
    current = input_checksums(recipe, text, contents)
    if run.provenance.exists():
        require_unchanged_files(run, current, _changed_sources(run, recipe))
        before = run.read_provenance()
        commits = before.commits if before.commits[-1] == commit() else [*before.commits, commit()]
        sums = {"resolved.json": checksum(run.folder / "resolved.json"), **before.sha256}
        if (commits, sums) != (before.commits, before.sha256):
            write_json(run.provenance, before.document() | {"commits": commits, "sha256": sums})
        return
    noted = Provenance(
        recipe=recipe.name,
        seed=recipe.seed,
        changes=list(loaded.changes),
        commits=[commit()],
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        command=sys.argv,
        python=platform.python_version(),
        torch=str(torch.__version__),
        machine=platform.platform(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        gpu=gpu,
        started_in=os.path.relpath(Path.cwd(), run.folder.resolve()),
        sha256={path.name: checksum(path) for path in (run.folder / "resolved.json", run.vocabulary, run.trained_on)},
        **current,
    )
    write_json(run.provenance, noted.document())


def _changed_sources(run: Run, recipe: schema.Recipe) -> list[str]:
    """Return the names of data files whose data sources have other settings than in the run's resolved.json.

    Only a run that is ranked again may have such sources; its training does not use them.
    """
    if not run.ranks_again:
        return []
    before = load_recipe(run.folder / "resolved.json").recipe.data
    others = {name for name, source in recipe.data.items() if before.get(name) != source}
    return [name for name in recipe.data_files if name.removesuffix(".moments") in others]


def store_new_ranking(run: Run, loaded: Loaded, text: str | None, contents: Mapping[str, str]) -> None:
    """Replace the recipe and the checksums in the folder of a run that is ranked again.

    text: Checksum of a pre-trained text encoder; None for an encoder from scratch. contents: Dict from data source to
    the checksum of its audio.
    The run has no result.json until it is ranked. If the process is killed, the same command ranks the run again.
    """
    resolved, before = loaded.resolved(), run.read_provenance().document()
    noted = before | input_checksums(loaded.recipe, text, contents) | {"changes": list(loaded.changes)}
    sums = {name: value for name, value in noted.get("sha256", {}).items() if name != "resolved.json"}
    write_json(run.provenance, noted | {"sha256": sums})
    with replacing(run.folder / "recipe.yaml") as temporary:
        temporary.write_bytes(loaded.source)
    write_text(run.folder / "resolved.json", resolved)
    write_json(run.provenance, noted | {"sha256": {**sums, "resolved.json": sha256_of_text(resolved)}})


def contents_checksum(clips: Iterable[Clip], keys: Mapping[str, str]) -> str:
    """Return one checksum of the ids and the audio of clips. keys: Dict from clip id to the audio's checksum.

    keys: Clips with broken audio are missing.
    """
    checksum = hashlib.sha256()
    for clip_id in sorted(clip.id for clip in clips):
        checksum.update(f"{clip_id}\0{keys.get(clip_id)}\n".encode())
    return checksum.hexdigest()


def sha256_of_text(text: str) -> str:
    """Return the SHA-256 checksum of a text, as hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
