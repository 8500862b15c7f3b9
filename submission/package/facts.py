"""What a finished run says of itself: the facts that a package's meta.yaml and the report are filled from."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from submission.errors import SubmissionError
from submission.scores import ScoreMatrix, read_scores

NEEDED = ("rank", "parameters", "experts", "data", "commits", "hardware")  # of result.json


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
        return read_scores(self.folder / "scores" / f"{self.entry}.npy")

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


def open_finished(text: str) -> FinishedRun:
    """RUN, or RUN:ENTRY for one of several ranked entries (default: the first).

    Raises SubmissionError for a folder that is no finished run, and for an entry it does not have.
    """
    name, _, entry = text.rpartition(":") if ":" in text and not Path(text).exists() else (text, "", "")
    folder = Path(name)
    result, recipe = (_read(folder, file) for file in ("result.json", "resolved.json"))
    if missing := [key for key in NEEDED if key not in result]:
        raise SubmissionError(
            f"{folder / 'result.json'}: lacks {', '.join(missing)}; it is of an older version, make the run again"
        )
    if not result["rank"]:
        raise SubmissionError(f"{folder}: the run ranked nothing; give its recipe a rank entry")
    if entry and entry not in result["rank"]:
        raise SubmissionError(f"{folder}: no ranked entry {entry!r}; there are {', '.join(result['rank'])}")
    return FinishedRun(folder, result, recipe, entry or next(iter(result["rank"])))


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise SubmissionError(f"{folder}: not a finished run (no {name}); finish it with python -m system run")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SubmissionError(f"{path}: damaged ({error}); make the run again") from None
    if not isinstance(content, dict):
        raise SubmissionError(f"{path}: damaged (not an object); make the run again")
    return content
