"""One ranked entry of a finished run."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from data_tools.files import read_json
from submission.editions import Edition, get_any_edition
from submission.errors import SubmissionError
from submission.formats.moments import Moments, MomentTruth, read_moment_truth, read_moments
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.runs.files import FrameScores, read_frame_scores
from submission.runs.reading import finish_hint, read_metrics, read_provenance, read_result
from submission.runs.record import EpochLine, MomentsResult, Provenance, RankedResult, RunResult


@dataclass(frozen=True)
class Entry:
    """A ranked entry of a run.

    Attributes:
        recipe: Content of resolved.json.
    """

    folder: Path
    result: RunResult
    recipe: dict[str, Any]
    name: str

    @property
    def of_moments(self) -> bool:
        """Whether the entry finds moments."""
        return self.name in self.result.moments

    @property
    def ranked(self) -> RankedResult | MomentsResult:
        """Result of the entry in result.json."""
        return self.result.moments[self.name] if self.of_moments else self.result.rank[self.name]

    @property
    def figures(self) -> dict[str, float]:
        """Metrics of the entry.

        Raises SubmissionError for a blind list, which has none.
        """
        if self.ranked.figures is None:
            raise SubmissionError(f"{self.folder}: {self.name!r} has no metrics, as a blind list; name another entry")
        return self.ranked.figures

    @property
    def edition(self) -> Edition:
        """The edition of the entry."""
        return get_any_edition(self.ranked.edition)

    @property
    def members(self) -> list[dict[str, Any]]:
        """Settings of the entries with one model each.

        This entry, or those that it combines.
        """
        return list(self._members(self.name))

    def _members(self, name: str) -> Iterator[dict[str, Any]]:
        settings = self.recipe["rank"][name]
        for part in combined(settings):
            yield from self._members(part)
        if "stage" in settings:
            yield settings

    @property
    def scores(self) -> Path:
        """File of the scores, or of windows with scores."""
        return self.folder / f"scores/{self.name}{'.windows.jsonl' if self.of_moments else '.npy'}"

    @cached_property
    def matrix(self) -> ScoreMatrix:
        """The score matrix."""
        return read_scores(self.scores)

    @property
    def blind_scores(self) -> Path | None:
        """File of the blind set's scores by the same settings.

        None if there is none, or several.
        """
        same = [name for name in self.result.blind if self._settings(name) == self._settings(self.name)]
        return self.folder / f"scores/{same[0]}.npy" if len(same) == 1 else None

    @property
    def blind(self) -> "Entry | None":
        """Entry of the blind list with the same settings.

        None if there is none, or several.
        """
        same = [
            name
            for name, entry in self.result.moments.items()
            if entry.figures is None and self._settings(name) == self._settings(self.name)
        ]
        return replace(self, name=same[0]) if len(same) == 1 else None

    def _settings(self, name: str) -> tuple[object, ...]:
        """Return the settings that decide how an entry ranks."""
        settings = self.recipe["rank"][name]
        left_out = {"data", "audio", "queries", "edition", "csv", *(["of"] if combined(settings) else [])}
        own = {key: value for key, value in settings.items() if key not in left_out}
        own |= {"kind": "checkpoint"} if own["kind"] == "blind" else {}
        return own, [self._settings(part) for part in combined(settings)]

    @property
    def is_of_validation(self) -> bool:
        """Whether the entry ranks a validation split."""
        return bool(self.recipe["data"].get(self.ranked.data, {}).get("split") == "validation")

    @cached_property
    def truth(self) -> MomentTruth:
        """The queries of moments."""
        return read_moment_truth(self.folder / f"scores/{self.name}.truth.jsonl")

    @cached_property
    def answers(self) -> list[Moments]:
        """The found windows, with scores."""
        return read_moments(self.scores, self.edition, self.truth)

    @cached_property
    def frames(self) -> dict[str, FrameScores]:
        """Probabilities of frames, by query id."""
        return read_frame_scores(self.folder / f"scores/{self.name}.frames.npz")

    @cached_property
    def provenance(self) -> Provenance | None:
        """Content of provenance.json, if any."""
        return read_provenance(self.folder) if (self.folder / "provenance.json").is_file() else None

    @cached_property
    def epochs(self) -> list[EpochLine]:
        """The lines of metrics.jsonl."""
        return read_metrics(self.folder / "metrics.jsonl", "make the run again")


def combined(settings: dict[str, Any]) -> list[str]:
    """Return the entries that an entry averages or corrects."""
    of = settings.get("of", [])
    return ([of] if isinstance(of, str) else of) if settings["kind"] in ("mean", "hub_corrected") else []


def is_run(text: str) -> bool:
    """Return whether a text is RUN or RUN:ENTRY."""
    return Path(text).is_dir() or (not Path(text).exists() and Path(text.rpartition(":")[0] or text).is_dir())


def open_entry(text: str) -> Entry:
    """Open RUN:ENTRY, or the first ranked entry of RUN."""
    name, _, entry = text.rpartition(":") if ":" in text and not Path(text).exists() else (text, "", "")
    folder = Path(name)
    for needed in ("result.json", "resolved.json"):
        if not (folder / needed).is_file():
            raise SubmissionError(f"{folder} is not a finished run, because {needed} is missing; {finish_hint(folder)}")
    result = read_result(folder)
    recipe = read_json(folder / "resolved.json")
    known = [*result.rank, *result.moments]
    if entry in result.blind or (entry and entry not in known) or not known:
        raise SubmissionError(f"{folder}: no entry {entry!r} with metrics; choose one of {', '.join(known) or 'none'}")
    return Entry(folder, result, recipe, entry or known[0])
