"""Find the run of a recipe.

Find the run of a recipe: an unfinished run to resume, a run to rank again, or a new folder.
"""

import json
import logging
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

from data_tools.errors import DataError, KitError
from data_tools.files import checksum, read_json, replacing, write_text
from submission.runs.reading import read_provenance, repair_hint
from submission.runs.record import Provenance
from system.recipe import schema
from system.recipe.load import Loaded, RecipeError, differing, load_recipe
from system.runs.folder import Run
from system.runs.provenance import commit, sha256_of_text, teacher_checksums

log = logging.getLogger(__name__)


def open_run(loaded: Loaded, runs: Path, out: Path | None = None) -> Run:
    """Find the run with the settings of a recipe, or begin a new one: write its recipe.yaml and resolved.json.

    If only the setting `rank` differs, the run is ranked again.
    runs: Folder of all runs. out: Folder of the run, instead of searching; None: search in `runs`. Raises KitError if
    `out` contains the run of another recipe, or other files.
    """
    resolved = loaded.resolved()
    if out is None:
        candidates = sorted(runs.glob("*/resolved.json"))
        same = [path.parent for path in candidates if path.read_bytes() == resolved.encode()]
        for path in candidates:
            noted = None if path.parent in same else _provenance_or_none(path.parent)
            if noted and (noted.recipe, noted.seed) == (loaded.recipe.name, loaded.recipe.seed):
                _refuse_damaged(path.parent, noted)
        if same:
            out = ([folder for folder in same if not (folder / "result.json").exists()] or same)[-1]
        else:
            same_training = [path.parent for path in candidates if _has_training_settings(path, loaded.recipe)]
            finished = [folder for folder in same_training if (folder / "result.json").exists()]
            out = (finished or same_training or [_new_folder_path(loaded, runs)])[-1]
    if not (out / "result.json").exists():
        teacher_checksums(loaded.recipe)  # raises for a missing one, before anything is written
    made = tuple(folder for folder in (out, *out.parents) if not folder.exists())
    fresh = _can_hold_new_run(out, loaded.source)
    ranks_again = False
    if (out / "resolved.json").exists():
        ranks_again = _differs_in_ranking(out, loaded, resolved)
    elif not fresh and not _had_settings(out, loaded):
        raise KitError(f"{out} is neither a run nor empty; name another folder")
    if not (out / "recipe.yaml").exists():
        with replacing(out / "recipe.yaml") as temporary:
            temporary.write_bytes(loaded.source)
    if not (out / "resolved.json").exists():
        write_text(out / "resolved.json", resolved)  # after the recipe, since open_run finds runs by this file
    return Run(out, made, ranks_again)


def _has_training_settings(path: Path, recipe: schema.Recipe) -> bool:
    """Return whether a run's resolved.json, at `path`, has the settings of a recipe, except for the setting `rank`.

    If the file is damaged, the result is False.
    """
    found, noted = _read_recipe(path, recipe.name, recipe.seed), _provenance_or_none(path.parent)
    if found is None or _trained_settings(found.recipe) != _trained_settings(recipe):
        return False
    return noted is None or noted.sha256.get("resolved.json") in (None, checksum(path))


def _read_recipe(path: Path, name: str, seed: int) -> Loaded | None:
    """Read a run's resolved.json; None if the file is damaged, or if its recipe has another name or seed."""
    try:
        found = read_json(path)
        same = isinstance(found, dict) and (found.get("name"), found.get("seed")) == (name, seed)
        return load_recipe(path) if same else None
    except (DataError, RecipeError):
        return None


def _trained_settings(recipe: schema.Recipe) -> str:
    """Return the settings of a recipe that affect training, as a JSON text to compare.

    `rank` and the data sources that only `rank` uses are left out.
    Stages and experts are in the recipe's order, since random draws depend on it. Data sources are sorted, since their
    order has no effect.
    """
    settings = recipe.model_dump(mode="json", exclude={"rank"})
    used = {name for stage in recipe.stages.values() for name in (*stage.train.data, *stage.monitor.data)}
    used |= set(recipe.relevance.corpus if recipe.relevance else ())
    return json.dumps(settings | {"data": {name: settings["data"][name] for name in sorted(used)}})


_PART = re.compile(r"\.(?:recipe\.yaml|resolved\.json)\.[0-9]+\.part")


def _can_hold_new_run(folder: Path, recipe: bytes) -> bool:
    """Return whether a folder can be used for a new run: it is missing or empty, or only has a copy of the recipe.

    recipe: Bytes of the recipe file. A process that was killed at the start of a run leaves a complete or partial copy
    of it.
    """
    return not folder.exists() or all(
        (path.name == "recipe.yaml" and path.read_bytes() == recipe) or _PART.fullmatch(path.name)
        for path in folder.iterdir()
    )


def _had_settings(folder: Path, loaded: Loaded) -> bool:
    """Return whether a run that lost its resolved.json had a recipe's settings, by the checksum in provenance.json."""
    noted = _provenance_or_none(folder)
    return noted is not None and noted.sha256.get("resolved.json") == sha256_of_text(loaded.resolved())


def _provenance_or_none(folder: Path) -> Provenance | None:
    """Read a run's provenance.json; None if it is missing or damaged.

    The checksums of files are not verified.
    """
    try:
        return read_provenance(folder)
    except DataError:
        return None


def _refuse_damaged(folder: Path, noted: Provenance | None) -> None:
    """Raise KitError if a run's resolved.json is damaged: `noted`, its provenance, has another checksum."""
    path = folder / "resolved.json"
    if noted and noted.sha256.get("resolved.json") not in (None, checksum(path)):
        raise KitError(
            f"{path} is damaged: its checksum is not the checksum in provenance.json; {repair_hint(folder, path)}"
        )


def _new_folder_path(loaded: Loaded, runs: Path) -> Path:
    """Return the path of a new run folder, whose name no other run has. The folder is not created."""
    recipe = loaded.recipe
    name = f"{datetime.now(UTC):%Y-%m-%d}_{recipe.name}_s{recipe.seed}_{commit()}"
    taken = {folder.name for folder in runs.glob(name + "*") if not _can_hold_new_run(folder, loaded.source)}
    candidates = [name, *(f"{name}-{n}" for n in range(2, len(taken) + 3))]
    return runs / next(candidate for candidate in candidates if candidate not in taken)


def _differs_in_ranking(out: Path, loaded: Loaded, resolved: str) -> bool:
    """Return whether a run differs from a recipe in `rank`; raise KitError if training settings differ.

    The data for `rank` may differ, too. out: Folder of the run. resolved: All settings of the recipe, as JSON.
    """
    path = out / "resolved.json"
    if path.read_bytes() == resolved.encode():
        return False
    if _has_training_settings(path, loaded.recipe):
        return True
    _refuse_damaged(out, _provenance_or_none(out))
    found = differing(read_json(path), json.loads(resolved))
    keys = ", ".join(sorted(key for key, _, _ in found)[:5]) or "the order of stages or experts"
    noted = _provenance_or_none(out)
    earlier_changes = "".join(f" --set {shlex.quote(change)}" for change in noted.changes) if noted else ""
    if earlier_changes and not loaded.changes:
        raise KitError(
            f"{out} is a run with other settings ({keys}); to resume this run, add{earlier_changes}, or name another "
            "folder"
        )
    raise KitError(f"{out} is a run with other settings ({keys}); name another folder")
