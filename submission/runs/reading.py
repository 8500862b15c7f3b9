"""Read a run's files.

Read the files of a run, and describe how to repair damaged ones.
"""

import shlex
from pathlib import Path

from data_tools.errors import DataError
from data_tools.files import is_locked, parse_json, read_json, require_file
from data_tools.settings import read_shaped, require_shape
from submission.runs.record import FORMAT, EpochLine, Provenance, RunResult


def read_result(folder: Path) -> RunResult:
    """Read result.json of a run. Raises DataError for a missing or damaged file, or a file of a later release."""
    path = folder / "result.json"
    hint = repair_hint(folder, path)
    content = read_json(path)
    written = content.get("format") if isinstance(content, dict) else None
    if isinstance(written, int) and written > FORMAT:
        raise DataError(
            f"{path} has format {written}, but this release only reads formats up to {FORMAT}; use the release that "
            "wrote the file"
        )
    return require_shape(content, RunResult, str(path), hint)


def read_provenance(folder: Path) -> Provenance:
    """Read provenance.json of a run. Raises DataError for a missing or damaged file."""
    path = folder / "provenance.json"
    return read_shaped(path, Provenance, repair_hint(folder, path))


def read_metrics(path: Path, hint: str) -> list[EpochLine]:
    """Read metrics.jsonl of a run, which has one line per epoch, in the order of the training stages.

    hint: End of an error message, with the repair. A last line without a line end is skipped, because a killed process
    may have left it. Raises DataError, with the line, for a missing or damaged file.
    """
    require_file(path, hint)
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [
        require_shape(parse_json(line, f"{path}, line {number}"), EpochLine, f"{path}, line {number},", hint)
        for number, line in enumerate(lines, 1)
    ]


def repair_hint(folder: Path, *damaged: Path) -> str:
    """Return the end of an error message on damaged files of a run: which files to delete and which command to run."""
    files = dict.fromkeys([*damaged, *(path for path in [folder / "result.json"] if path.exists())])
    recipe = folder / "resolved.json"
    if recipe in damaged:  # recipe.yaml is the recipe without the changes of --set
        changes = "".join(f" --set {shlex.quote(change)}" for change in recorded_changes(folder))
        command = f"{folder / 'recipe.yaml'}{changes}"
    else:
        command = str(recipe)
    deleted = " and ".join(map(str, files))
    return f"delete {deleted}, then make the missing files again with: lbar run {command} --out {folder}"


def finish_hint(folder: Path) -> str:
    """Return the end of an error message on an unfinished run: the command that continues the run.

    If a process is training the run now, the text asks to wait. For a folder that is no run, it names the command that
    makes a run.
    """
    if not (folder / "resolved.json").is_file():
        return "give the folder of a run, which lbar run makes"
    if is_locked(folder / "lock"):
        return "the run is in progress now; wait until it ends"
    run = shlex.quote(str(folder))
    return f"continue the run with: lbar run {run}/resolved.json --out {run}"


def recorded_changes(folder: Path) -> list[str]:
    """Return the settings of a run that --set changed, from its provenance.json; [] if that file is damaged."""
    try:
        return read_provenance(folder).changes
    except DataError:
        return []
