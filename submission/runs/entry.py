"""One ranked entry of a finished run."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from data_tools.errors import KitError
from data_tools.files import read_json
from submission.editions import Edition, get_any_edition
from submission.formats.moments import Answer, MomentTruth, read_answers, read_moment_truth, windows_by_query
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.metrics.summary import Summary, bounds_or_none, summarise_matrix, summarise_moments
from submission.runs.record import MomentsResult, RankedResult, RunResult, finish_hint, read_result

# Settings of an entry that do not decide how it scores: what is ranked, and names of other entries.
ELSEWHERE = {"kind", "of", "data", "audio", "queries", "edition", "csv"}


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
    def edition(self) -> Edition:
        """The edition of the entry."""
        return get_any_edition(self.ranked.edition)

    @property
    def members(self) -> list[dict[str, Any]]:
        """Settings of this entry, or of those that it combines."""
        return [settings for settings in self._settings(self.name) if "stage" in settings]

    @property
    def other_models(self) -> list[str]:
        """Folders of other runs or models that the entry averages."""
        return [settings["model"] for settings in self._settings(self.name) if settings["kind"] == "other"]

    def _settings(self, name: str) -> list[dict[str, Any]]:
        """Return the settings of an entry, and of those that it combines."""
        if (own := self.recipe["rank"].get(name)) is None:
            return [{"kind": "other", "model": name}]
        of = own.get("of", []) if own["kind"] in ("mean", "hub_corrected") else []
        parts = [of] if isinstance(of, str) else of
        return [own, *(settings for part in parts for settings in self._settings(part))]

    @property
    def scores(self) -> Path:
        """File of the scores, or of windows with scores."""
        return self.folder / f"scores/{self.name}{'.windows.jsonl' if self.of_moments else '.npy'}"

    @cached_property
    def matrix(self) -> ScoreMatrix:
        """The score matrix."""
        return read_scores(self.scores)

    @property
    def blind(self) -> "Entry | None":
        """The only blind entry with the same settings, or None."""
        names = [*self.result.blind, *(name for name, one in self.result.moments.items() if one.figures is None)]
        same = [name for name in names if self._how(name) == self._how(self.name)]
        return replace(self, name=same[0]) if len(same) == 1 else None

    @property
    def blind_edition(self) -> str | None:
        """Edition of the blind entry, if there is one."""
        return str(self.recipe["rank"][blind.name]["edition"]) if (blind := self.blind) else None

    def _how(self, name: str) -> list[dict[str, Any]]:
        """Return the settings that decide how an entry scores."""
        return [{key: own[key] for key in own.keys() - ELSEWHERE} for own in self._settings(name)]

    @property
    def is_of_validation(self) -> bool:
        """Whether the entry ranks a validation split."""
        return bool(self.recipe["data"].get(self.ranked.data, {}).get("split") == "validation")

    @cached_property
    def truth(self) -> MomentTruth:
        """The queries of moments."""
        return read_moment_truth(self.folder / f"scores/{self.name}.truth.jsonl")

    @cached_property
    def answers(self) -> list[Answer]:
        """The found windows, with scores."""
        return read_answers(self.scores, self.truth)

    @cached_property
    def summary(self) -> Summary:
        """The metrics of the entry."""
        if self.of_moments:
            return summarise_moments(windows_by_query(self.answers), self.truth, self.edition)
        return summarise_matrix(self.matrix, self.edition)


def open_entry(text: str) -> Entry:
    """Open RUN:ENTRY, or the first ranked entry of RUN."""
    before, _, entry = text.rpartition(":")
    folder, entry = (Path(text), "") if not before or Path(text).exists() else (Path(before), entry)
    if not (folder / "result.json").is_file():
        raise KitError(f"{folder} is not a finished run, because result.json is missing; {finish_hint(folder)}")
    result = read_result(folder)
    known = [*result.rank, *result.moments]
    entry = entry or next(iter(known), "")
    if entry not in known:
        raise KitError(f"{folder}: no entry {entry!r} with metrics; choose one of {', '.join(known) or 'none'}")
    return Entry(folder, result, read_json(folder / "resolved.json"), entry)


def ranked_result(
    matrix: ScoreMatrix, edition: Edition, untrained: ScoreMatrix | None, **facts: object
) -> RankedResult:
    """Return the metrics of a score matrix.

    Args:
        facts: The fields of RankedResult that the matrix does not have.
    """
    summary = summarise_matrix(matrix, edition)
    result = {
        **summary.values,
        "metric": edition.metric,
        "interval": bounds_or_none(summary.interval),
        "bootstrap": bounds_or_none(summary.bootstrap),
        "median_rank": summary.median_rank,
        "queries": len(matrix),
        "clips": len(matrix.clip_ids),
        "edition": edition.name,
        "chance": summary.chance,
        "untrained": None if untrained is None else summarise_matrix(untrained, edition).values[edition.metric],
    }
    return RankedResult.model_validate(result | facts)
