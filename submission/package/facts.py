"""What a finished run says of itself: the facts that a package's meta.yaml and the report are filled from."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from data_tools.documents import read_json, require_unharmed
from data_tools.errors import DataError
from submission.errors import SubmissionError
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.package.shapes import Recipe, Result, broken_links, faults


@dataclass(frozen=True)
class FinishedRun:
    """One ranked entry of a finished run. result: result.json. recipe: resolved.json. entry: its name in `rank`."""

    folder: Path
    result: dict[str, Any]
    recipe: dict[str, Any]
    entry: str

    @property
    def ranked(self) -> dict[str, Any]:
        """What result.json says of the entry: figures, chance, ceiling, checkpoint, ..."""
        found: dict[str, Any] = self.result["rank"][self.entry]
        return found

    @cached_property
    def matrix(self) -> ScoreMatrix:
        return read_scores(self.file(f"scores/{self.entry}.npy"))

    def file(self, name: str) -> Path:
        """A file of the run by its name in the folder, unharmed as far as result.json has its checksum (an earlier
        release noted none). DataError for a damaged or missing one; one without a checksum need not be there."""
        path, noted = self.folder / name, self.result.get("sha256", {}).get(name)
        if noted is not None:
            require_unharmed(path, noted, made_again(self.folder, path))
        return path

    @property
    def members(self) -> list[str]:
        """The entries ranked by one checkpoint that this one is made of: itself, or those of a mean."""
        return self._leaves(self.entry)

    def _leaves(self, entry: str) -> list[str]:
        settings = self.recipe["rank"][entry]
        return [leaf for part in settings.get("of", []) for leaf in self._leaves(part)] or [entry]

    def stage_of(self, entry: str) -> dict[str, Any]:
        """Settings of the stage whose checkpoint ranked a leaf."""
        found: dict[str, Any] = self.recipe["stages"][self.recipe["rank"][entry]["stage"]]
        return found


def made_again(folder: Path, *damaged: Path) -> str:
    """The end of a sentence on damaged files of a run: what to delete, and the command that then makes them again."""
    files = dict.fromkeys([*damaged, *(path for path in [folder / "result.json"] if path.exists())])
    recipe = folder / "resolved.json"
    if recipe in damaged:  # recipe.yaml is the recipe without what --set changed
        changes = "".join(f" --set {shlex.quote(change)}" for change in _changes(folder))
        command = f"{folder / 'recipe.yaml'}{changes}"
    else:
        command = str(recipe)
    deleted = " and ".join(map(str, files))
    return f"delete {deleted}, then what is lost is made again by: python -m system run {command} --out {folder}"


def _changes(folder: Path) -> list[str]:
    """What --set changed, as the run's provenance notes it; none where that is damaged too."""
    try:
        found = read_json(folder / "provenance.json", "")
    except DataError:
        return []
    changes = found.get("changes") if isinstance(found, dict) else None
    return [change for change in changes if isinstance(change, str)] if isinstance(changes, list) else []


def open_finished(text: str) -> FinishedRun:
    """RUN, or RUN:ENTRY for one of several ranked entries (default: the first).

    Raises SubmissionError for a folder that is no finished run, for files that lack what is needed of them (a line a
    fault), and for an entry it does not have.
    """
    name, _, entry = text.rpartition(":") if ":" in text and not Path(text).exists() else (text, "", "")
    folder = Path(name)
    result, recipe = _read(folder / "result.json", Result), _read(folder / "resolved.json", Recipe)
    _refuse(folder, broken_links(result, recipe))
    if not result["rank"]:
        raise SubmissionError(f"{folder}: the run ranked nothing; give its recipe a rank entry")
    if entry and entry not in result["rank"]:
        raise SubmissionError(f"{folder}: no ranked entry {entry!r}; there are {', '.join(result['rank'])}")
    run = FinishedRun(folder, result, recipe, entry or next(iter(result["rank"])))
    run.file("resolved.json")
    return run


def _read(path: Path, shape: type[Result] | type[Recipe]) -> dict[str, Any]:
    if not path.is_file():
        raise SubmissionError(
            f"{path.parent}: not a finished run (no {path.name}); finish it with python -m system run"
        )
    content: dict[str, Any] = read_json(path, "delete it, then it is made again by the command that made the run")
    _refuse(path, faults(path.read_bytes(), shape))
    return content


def _refuse(path: Path, problems: Iterable[str]) -> None:
    """Raises SubmissionError with a line a problem, if there is any."""
    lines = [f"{path}: {problem}; it is damaged, or of an older version: make the run again" for problem in problems]
    if lines:
        raise SubmissionError("\n".join(lines))
