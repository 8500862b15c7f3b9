"""Read a run's files."""

import shlex
from pathlib import Path

from data_tools.files import is_locked, parse_json, require_file
from data_tools.settings import read_shaped, require_shape
from submission.runs.record import EpochLine, RunResult


def read_result(folder: Path) -> RunResult:
    """Read result.json of a run."""
    path = folder / "result.json"
    return read_shaped(path, RunResult, repair_hint(folder, path))


def read_metrics(path: Path, hint: str) -> list[EpochLine]:
    """Read metrics.jsonl of a run, a line per epoch.

    Args:
        hint: End of an error message, with the repair.

    Returns: The lines in the order of training, without a cut last one, which a killed process may have left.
    """
    require_file(path, hint)
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [
        require_shape(parse_json(line, f"{path}, line {number}"), EpochLine, f"{path}, line {number},", hint)
        for number, line in enumerate(lines, 1)
    ]


def repair_hint(folder: Path, *damaged: Path) -> str:
    """Return the cure for damaged files of a run."""
    files = " and ".join(map(str, dict.fromkeys([*damaged, folder / "result.json"])))
    return f"delete {files}, then make the run again in its folder {folder}"


def finish_hint(folder: Path) -> str:
    """Return the cure for a run that is not finished.

    It is to wait, to continue the run or, for another folder, to name a run.
    """
    if not (folder / "resolved.json").is_file():
        return "give the folder of a run, which lbar run makes"
    if is_locked(folder / "lock"):
        return "the run is in progress now; wait until it ends"
    run = shlex.quote(str(folder))
    return f"continue the run with: lbar run {run}/resolved.json --out {run}"
