"""A finished run, opened for its package and its report."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from data_tools.documents.json_text import require_unharmed, sha256_of
from data_tools.files import require_folder
from submission.editions import MomentsEdition, get_moments_edition
from submission.errors import SubmissionError
from submission.formats.frame_scores import FrameScores, read_frame_scores
from submission.formats.moments_jsonl import Moments, read_moments
from submission.formats.moments_truth import MomentTruth, read_moment_truth
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.runs import recipe as recipes
from submission.runs import record
from submission.runs.reading import finish_hint, read_metrics, read_provenance, read_recipe, read_result, repair_hint


@dataclass(frozen=True)
class Finished(ABC):
    """One ranked entry of a finished run. entry: Its name in `rank`."""

    folder: Path
    result: record.RunResult
    recipe: recipes.ResolvedRecipe
    entry: str

    @property
    @abstractmethod
    def members(self) -> Sequence[recipes.RankSettings]:
        """Settings of the entries with one checkpoint each that this entry consists of."""

    @property
    @abstractmethod
    def ranked(self) -> record.RankedResult | record.MomentsResult:
        """Result of this ranked entry in result.json."""

    @property
    @abstractmethod
    def ranks_blind(self) -> bool:
        """Whether the blind set was ranked with the checkpoints of this entry."""

    @property
    @abstractmethod
    def validation(self) -> "Self | None":
        """The entry that ranks a validation split like this entry; None if the run has none."""

    @property
    def is_of_validation(self) -> bool:
        """Whether the entry ranks a validation split."""
        return self._is_of_validation(self.ranked.data)

    @property
    @abstractmethod
    def checksum(self) -> str:
        """Checksum of the entry's scores."""

    def _is_of_validation(self, source: str) -> bool:
        """Whether a data source is a validation split."""
        return source in self.recipe.data and self.recipe.data[source].split == "validation"

    @cached_property
    def provenance(self) -> record.Provenance | None:
        """Content of provenance.json; None if the file is missing."""
        return read_provenance(self.folder) if (self.folder / "provenance.json").is_file() else None

    @cached_property
    def epochs(self) -> list[record.EpochLine]:
        """The lines of metrics.jsonl: one per epoch, first those of the first stage, then of the next ones."""
        path = self.file("metrics.jsonl")
        return read_metrics(path, repair_hint(self.folder, path))

    def file(self, name: str) -> Path:
        """Return the path of the run's file `name`; its checksum is verified if result.json has one.

        Raises DataError for a damaged or missing file.
        """
        path, checksum = self.folder / name, self.result.sha256.get(name)
        if checksum is not None:
            require_unharmed(path, checksum, repair_hint(self.folder, path))
        return path


class FinishedRun(Finished):
    """An entry that ranks clips."""

    @property
    def ranked(self) -> record.RankedResult:
        """Result of this ranked entry in result.json."""
        return self.result.rank[self.entry]

    @property
    def ranks_blind(self) -> bool:
        """Whether the blind set was ranked with the checkpoints of this entry."""
        return self.blind_scores is not None

    @property
    def checksum(self) -> str:
        """Checksum of the entry's score matrix."""
        return sha256_of(self.file(f"scores/{self.entry}.npy"))

    @cached_property
    def matrix(self) -> ScoreMatrix:
        """The score matrix of the entry."""
        return read_scores(self.file(f"scores/{self.entry}.npy"))

    @property
    def members(self) -> list[recipes.RankSettings]:
        """Settings of the entries with one checkpoint each: this entry, or the parts that it combines."""
        return list(self._leaf_entries(self.entry))

    @property
    def blind_scores(self) -> Path | None:
        """The score matrix of the blind set, ranked with the checkpoints of this entry.

        None if the run has no blind set for them, or several.
        """
        same = [name for name in self.result.blind if self._how(name) == self._how(self.entry)]
        return self.file(f"scores/{same[0]}.npy") if len(same) == 1 else None

    @property
    def validation(self) -> "FinishedRun | None":
        """The entry that ranks a validation split like this entry; None if the run has none."""
        for name, result in self.result.rank.items():
            if self._is_of_validation(result.data) and self._how(name) == self._how(self.entry):
                return replace(self, entry=name)
        return None

    def _how(self, entry: str) -> tuple[object, ...]:
        """Return all settings of an entry, and of those that it combines, except the ranked source and the edition.

        A blind set is thus ranked like a data source by the same checkpoint.
        """
        settings = self.recipe.rank[entry]
        parts = combined(settings)
        left_out = {"data", "audio", "queries", "edition", "csv", *(["of"] if parts else [])}
        common = settings.model_dump(exclude=left_out) | ({"kind": "checkpoint"} if settings.kind == "blind" else {})
        return common, [self._how(part) for part in parts]

    def _leaf_entries(self, entry: str) -> Iterator[recipes.RankSettings]:
        """Yield the settings of every entry that ranks by one model: the entry itself, or those that it combines."""
        settings = self.recipe.rank[entry]
        for part in combined(settings):
            yield from self._leaf_entries(part)
        if "stage" in settings.model_fields_set:  # this entry ranks by one model
            yield settings


class FinishedMoments(Finished):
    """An entry that finds moments."""

    @property
    def ranked(self) -> record.MomentsResult:
        """Result of this ranked entry in result.json."""
        return self.result.moments[self.entry]

    @property
    def members(self) -> list[recipes.RankSettings]:
        """Settings of this entry, as a list of one."""
        return [self._settings(self.entry)]

    @property
    def checksum(self) -> str:
        """Checksum of the entry's windows."""
        return sha256_of(self.file(f"scores/{self.entry}.windows.jsonl"))

    @cached_property
    def blind(self) -> "FinishedMoments | None":
        """The run's blind-list entry with the same settings as this entry; None unless there is exactly one."""
        mine = self._settings_without_data(self.entry)
        same = [
            name
            for name, entry in self.result.moments.items()
            if entry.figures is None and self._settings_without_data(name) == mine
        ]
        return replace(self, entry=same[0]) if len(same) == 1 else None

    @property
    def ranks_blind(self) -> bool:
        """Whether the run has also found the windows of the blind list."""
        return self.blind is not None

    @property
    def validation(self) -> "FinishedMoments | None":
        """The entry that finds moments in a validation split like this entry; None if the run has none."""
        for name, result in self.result.moments.items():
            is_scored = result.figures is not None and self._is_of_validation(result.data)
            if is_scored and self._settings_without_data(name) == self._settings_without_data(self.entry):
                return replace(self, entry=name)
        return None

    def _settings_without_data(self, entry: str) -> recipes.RankSettings:
        """Return the settings of an entry, without the source it ranks."""
        return self._settings(entry).model_copy(update={"data": None})

    def _settings(self, entry: str) -> recipes.RankSettings:
        """Return the settings of an entry. Raises SubmissionError if it does not find moments."""
        settings = self.recipe.rank[entry]
        if settings.kind != "moments":
            problem = f"the entry {entry} in resolved.json is not of kind moments"
            raise SubmissionError(f"{self.folder}: {problem}; make the run again")
        return settings

    @property
    def edition(self) -> MomentsEdition:
        """The challenge edition whose metrics this entry has."""
        return get_moments_edition(self.ranked.edition)

    @cached_property
    def truth(self) -> MomentTruth:
        """The queries, with their true windows except for a blind list.

        Raises SubmissionError as read_moment_truth does.
        """
        return read_moment_truth(self.file(f"scores/{self.entry}.truth.jsonl"), self.edition)

    @cached_property
    def answers(self) -> list[Moments]:
        """The windows of every query with their scores, best first. Raises SubmissionError as read_moments does."""
        return read_moments(self.file(f"scores/{self.entry}.windows.jsonl"), self.edition, self.truth)

    @cached_property
    def frames(self) -> dict[str, FrameScores]:
        """Frame probabilities of every query, by query id."""
        return read_frame_scores(self.file(f"scores/{self.entry}.frames.npz"))


def combined(entry: recipes.RankSettings) -> list[str]:
    """Return the names of the entries that a mean combines, or that are corrected for hubs; [] for other kinds."""
    named = [entry.of] if isinstance(entry.of, str) else entry.of
    return named if entry.kind in ("mean", "hub_corrected") else []


def open_finished(text: str) -> FinishedRun:
    """Open RUN, or RUN:ENTRY for one of several ranked entries (default: the first).

    Raises SubmissionError for a folder that is no finished run, for files that do not fit each other (one line per
    fault), and for an unknown entry. Raises DataError for damaged files (one line per fault).
    """
    folder, result, recipe, entry = _open_run(text)
    if not result.rank and result.moments:
        cure = f"give a run that ranks clips; python -m submission report {folder} shows this one"
        raise SubmissionError(f"{folder}: the run ranks moments, not clips; {cure}")
    if not result.rank:
        raise SubmissionError(f"{folder}: the run ranked nothing; add an entry under the key rank of its recipe")
    if entry in result.blind:
        hint = f"use {folder}/scores/{entry}.npy and {folder}/submission/{entry}.csv"
        raise SubmissionError(f"{folder}: {entry!r} ranks a blind set, which has no figures; {hint}")
    if entry and entry not in result.rank:
        raise SubmissionError(f"{folder}: no ranked entry {entry!r}; choose one of {', '.join(result.rank)}")
    run = FinishedRun(folder, result, recipe, entry or next(iter(result.rank)))
    run.file("resolved.json")
    return run


def open_finished_moments(text: str) -> FinishedMoments:
    """Open RUN, or RUN:ENTRY for one of several entries of moments (default: the first).

    Raises as open_finished does.
    """
    folder, result, recipe, entry = _open_run(text)
    if not result.moments:
        raise SubmissionError(f"{folder}: the run ranks no moments; add a rank entry of kind moments to its recipe")
    if entry and entry not in result.moments:
        raise SubmissionError(f"{folder}: no entry of moments {entry!r}; choose one of {', '.join(result.moments)}")
    run = FinishedMoments(folder, result, recipe, entry or next(iter(result.moments)))
    run.file("resolved.json")
    return run


def open_any_finished(text: str) -> FinishedRun | FinishedMoments:
    """Open the entry that `text` names; if it only names a run, one that ranks clips, else one that finds moments."""
    return open_finished_moments(text) if has_moments(text) else open_finished(text)


def has_moments(text: str) -> bool:
    """Whether RUN, or RUN:ENTRY, finds moments; in a run that also ranks clips, the entry must be named.

    Raises as open_finished does.
    """
    _, result, _, entry = _open_run(text)
    return entry in result.moments or (bool(result.moments) and not result.rank)


def _open_run(text: str) -> tuple[Path, record.RunResult, recipes.ResolvedRecipe, str]:
    """Open a finished run, RUN or RUN:ENTRY; return its folder, result, recipe, and the name ENTRY ("" for RUN)."""
    name, _, entry = text.rpartition(":") if ":" in text and not Path(text).exists() else (text, "", "")
    folder = Path(name)
    require_folder(folder, "give the folder of a finished run")
    for needed in ("result.json", "resolved.json"):
        if not (folder / needed).is_file():
            raise SubmissionError(f"{folder}: not a finished run (no {needed}); {finish_hint(folder)}")
    result, recipe = read_result(folder), read_recipe(folder)
    if problems := list(broken_references(result, recipe)):
        raise SubmissionError("\n".join(f"{folder}: {problem}; make the run again" for problem in problems))
    return folder, result, recipe, entry


def broken_references(result: record.RunResult, recipe: recipes.ResolvedRecipe) -> Iterator[str]:
    """Yield a message for each name that a file of a run mentions, such as a rank entry, and that does not exist."""
    for name in result.parameters.frozen:
        if name not in ("audio", "text") and name.rpartition("/")[2] not in result.experts:
            yield f"parameters.frozen.{name}: no such expert"
    ranked: set[str] = set()
    for name, entry in recipe.rank.items():
        if entry.stage is not None and entry.stage not in recipe.stages:
            yield f"rank.{name}.stage: no stage {entry.stage!r}"
        for part in combined(entry):
            if part not in ranked:
                yield f"rank.{name}.of: no earlier entry {part!r}"
        ranked.add(name)
    for name in (*result.rank, *result.blind, *result.moments):
        if name not in ranked:
            yield f"rank.{name}: is in result.json only"
