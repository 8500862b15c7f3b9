"""A finished run, opened for its package and its report."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from data_tools.files import checksum, require_folder, require_unharmed
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
    """One entry under `rank` of a finished run: a ranking of clips, or found moments. entry: Name of the entry."""

    folder: Path
    result: record.RunResult
    recipe: recipes.ResolvedRecipe
    entry: str

    @property
    @abstractmethod
    def members(self) -> Sequence[recipes.RankSettings]:
        """Settings of the entries whose results this entry combines; each of them uses one model."""

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
        """The run's entry that ranks a validation split with the same settings; None if the run has no such entry."""

    @property
    def is_of_validation(self) -> bool:
        """Whether the entry ranks a validation split."""
        return self._is_of_validation(self.ranked.data)

    @property
    @abstractmethod
    def checksum(self) -> str:
        """Checksum of the file with the entry's scores."""

    def _is_of_validation(self, source: str) -> bool:
        """Return whether a data source is a validation split."""
        return source in self.recipe.data and self.recipe.data[source].split == "validation"

    @cached_property
    def provenance(self) -> record.Provenance | None:
        """Content of provenance.json; None if the file is missing."""
        return read_provenance(self.folder) if (self.folder / "provenance.json").is_file() else None

    @cached_property
    def epochs(self) -> list[record.EpochLine]:
        """The lines of metrics.jsonl: one line per epoch, in the order of the training stages."""
        path = self.file("metrics.jsonl")
        return read_metrics(path, repair_hint(self.folder, path))

    def file(self, name: str) -> Path:
        """Return the path of the run's file `name`, after comparing its checksum with that in result.json, if any.

        Raises DataError for a damaged or missing file.
        """
        path, checksum = self.folder / name, self.result.sha256.get(name)
        if checksum is not None:
            require_unharmed(path, checksum, repair_hint(self.folder, path))
        return path


class FinishedRun(Finished):
    """An entry of a finished run that ranks clips."""

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
        """Checksum of the file with the entry's score matrix."""
        return checksum(self.file(f"scores/{self.entry}.npy"))

    @cached_property
    def matrix(self) -> ScoreMatrix:
        """The score matrix of the entry."""
        return read_scores(self.file(f"scores/{self.entry}.npy"))

    @property
    def members(self) -> list[recipes.RankSettings]:
        """Settings of the entries with one model each: this entry itself, or the entries that it combines."""
        return list(self._leaf_entries(self.entry))

    @property
    def blind_scores(self) -> Path | None:
        """Path of the blind set's scores with the same settings as this entry; None if the run has none, or several."""
        same = [
            name for name in self.result.blind if self._ranking_settings(name) == self._ranking_settings(self.entry)
        ]
        return self.file(f"scores/{same[0]}.npy") if len(same) == 1 else None

    @property
    def validation(self) -> "FinishedRun | None":
        """The run's entry that ranks a validation split with the same settings; None if the run has no such entry."""
        for name, result in self.result.rank.items():
            if self._is_of_validation(result.data) and self._ranking_settings(name) == self._ranking_settings(
                self.entry
            ):
                return replace(self, entry=name)
        return None

    def _ranking_settings(self, entry: str) -> tuple[object, ...]:
        """Return the settings that decide how an entry ranks, and such settings of the entries that it combines.

        Settings of its input and output are left out: data, audio, queries, edition and csv. Two entries
        that rank different data by the same models in the same way thus have equal results of this method.
        """
        settings = self.recipe.rank[entry]
        parts = combined_entries(settings)
        left_out = {"data", "audio", "queries", "edition", "csv", *(["of"] if parts else [])}
        common = settings.model_dump(exclude=left_out) | ({"kind": "checkpoint"} if settings.kind == "blind" else {})
        return common, [self._ranking_settings(part) for part in parts]

    def _leaf_entries(self, entry: str) -> Iterator[recipes.RankSettings]:
        """Yield the settings of each entry with one model: the given entry, or the entries that it combines."""
        settings = self.recipe.rank[entry]
        for part in combined_entries(settings):
            yield from self._leaf_entries(part)
        if "stage" in settings.model_fields_set:  # this entry ranks by one model
            yield settings


class FinishedMoments(Finished):
    """An entry of a finished run that finds moments."""

    @property
    def ranked(self) -> record.MomentsResult:
        """Result of this ranked entry in result.json."""
        return self.result.moments[self.entry]

    @property
    def members(self) -> list[recipes.RankSettings]:
        """Settings of this entry, in a list with one item."""
        return [self._settings(self.entry)]

    @property
    def checksum(self) -> str:
        """Checksum of the file with the entry's windows."""
        return checksum(self.file(f"scores/{self.entry}.windows.jsonl"))

    @cached_property
    def blind(self) -> "FinishedMoments | None":
        """The run's entry for the blind list with the same settings; None if the run has no such entry, or several."""
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
        """The run's entry for a validation split with the same settings; None if the run has no such entry."""
        for name, result in self.result.moments.items():
            is_scored = result.figures is not None and self._is_of_validation(result.data)
            if is_scored and self._settings_without_data(name) == self._settings_without_data(self.entry):
                return replace(self, entry=name)
        return None

    def _settings_without_data(self, entry: str) -> recipes.RankSettings:
        """Return the settings of an entry without its data source."""
        return self._settings(entry).model_copy(update={"data": None})

    def _settings(self, entry: str) -> recipes.RankSettings:
        """Return the settings of an entry. Raises SubmissionError if it does not find moments."""
        settings = self.recipe.rank[entry]
        if settings.kind != "moments":
            raise SubmissionError(
                f"{self.folder}: the entry {entry} in resolved.json has another kind than `moments`; make the run again"
            )
        return settings

    @property
    def edition(self) -> MomentsEdition:
        """The challenge edition whose metrics this entry has."""
        return get_moments_edition(self.ranked.edition)

    @cached_property
    def truth(self) -> MomentTruth:
        """The queries of this entry with their true windows, which a blind list lacks.

        Raises SubmissionError as read_moment_truth does.
        """
        return read_moment_truth(self.file(f"scores/{self.entry}.truth.jsonl"), self.edition)

    @cached_property
    def answers(self) -> list[Moments]:
        """Windows found for every query, with scores, best first. Raises SubmissionError for a file with a problem."""
        return read_moments(self.file(f"scores/{self.entry}.windows.jsonl"), self.edition, self.truth)

    @cached_property
    def frames(self) -> dict[str, FrameScores]:
        """Dict from query id to the probability that each frame is in a moment of the query."""
        return read_frame_scores(self.file(f"scores/{self.entry}.frames.npz"))


def combined_entries(entry: recipes.RankSettings) -> list[str]:
    """Return the names of the entries that an entry averages or corrects for hubs; [] for an entry of another kind."""
    named = [entry.of] if isinstance(entry.of, str) else entry.of
    return named if entry.kind in ("mean", "hub_corrected") else []


def open_finished(text: str) -> FinishedRun:
    """Open an entry that ranks clips. text: RUN:ENTRY, or RUN for the first ranked entry of the run.

    Raises SubmissionError for a folder that is no finished run, for files that contradict each other (one line per
    fault), and for an unknown entry. Raises DataError for damaged files (one line per fault).
    """
    folder, result, recipe, entry = _open_run(text)
    if not result.rank and result.moments:
        raise SubmissionError(
            f"{folder}: the run finds moments and does not rank clips; give a run that ranks clips, or show this run "
            f"with: lbar submit report {folder}"
        )
    if not result.rank:
        raise SubmissionError(f"{folder}: the run has no ranked entry; add an entry under the key rank of its recipe")
    if entry in result.blind:
        raise SubmissionError(
            f"{folder}: {entry!r} ranks a blind set, which has no metrics; use {folder}/scores/{entry}.npy and "
            f"{folder}/submission/{entry}.csv"
        )
    if entry and entry not in result.rank:
        raise SubmissionError(f"{folder}: has no ranked entry {entry!r}; choose one of {', '.join(result.rank)}")
    run = FinishedRun(folder, result, recipe, entry or next(iter(result.rank)))
    run.file("resolved.json")
    return run


def open_finished_moments(text: str) -> FinishedMoments:
    """Open an entry that finds moments. text: RUN:ENTRY, or RUN for the first such entry of the run.

    Raises the same errors as open_finished.
    """
    folder, result, recipe, entry = _open_run(text)
    if not result.moments:
        raise SubmissionError(
            f"{folder}: the run has not searched for moments; add an entry of kind moments under `rank` in its recipe"
        )
    if entry and entry not in result.moments:
        known = ", ".join(result.moments)
        raise SubmissionError(f"{folder}: has no entry {entry!r} that finds moments; choose one of {known}")
    run = FinishedMoments(folder, result, recipe, entry or next(iter(result.moments)))
    run.file("resolved.json")
    return run


def open_any_finished(text: str) -> FinishedRun | FinishedMoments:
    """Open an entry that ranks clips or finds moments. text: RUN:ENTRY, or RUN for the run's first entry.

    For RUN, entries that rank clips come before entries that find moments. Raises the same errors as open_finished.
    """
    return open_finished_moments(text) if has_moments(text) else open_finished(text)


def has_moments(text: str) -> bool:
    """Return whether a run (RUN) or its entry (RUN:ENTRY) finds moments, and ranks no clips.

    Raises the same errors as open_finished.
    """
    _, result, _, entry = _open_run(text)
    return entry in result.moments or (bool(result.moments) and not result.rank)


def _open_run(text: str) -> tuple[Path, record.RunResult, recipes.ResolvedRecipe, str]:
    """Open a finished run named by RUN or RUN:ENTRY; return its folder, its result, its recipe, and ENTRY or ""."""
    name, _, entry = text.rpartition(":") if ":" in text and not Path(text).exists() else (text, "", "")
    folder = Path(name)
    require_folder(folder, "give the folder of a finished run")
    for needed in ("result.json", "resolved.json"):
        if not (folder / needed).is_file():
            raise SubmissionError(f"{folder} is not a finished run, because {needed} is missing; {finish_hint(folder)}")
    result, recipe = read_result(folder), read_recipe(folder)
    if problems := list(broken_references(result, recipe)):
        raise SubmissionError("\n".join(f"{folder}: {problem}; make the run again" for problem in problems))
    return folder, result, recipe, entry


def broken_references(result: record.RunResult, recipe: recipes.ResolvedRecipe) -> Iterator[str]:
    """Yield a message for each name in a run's files that refers to nothing, such as the name of a missing stage."""
    for name in result.parameters.frozen:
        if name not in ("audio", "text") and name.rpartition("/")[2] not in result.experts:
            yield f"parameters.frozen.{name}: the run has no expert {name!r}"
    ranked: set[str] = set()
    for name, entry in recipe.rank.items():
        if entry.stage is not None and entry.stage not in recipe.stages:
            yield f"rank.{name}.stage: the recipe has no stage {entry.stage!r}"
        for part in combined_entries(entry):
            if part not in ranked:
                yield f"rank.{name}.of: the recipe has no earlier entry {part!r}"
        ranked.add(name)
    for name in (*result.rank, *result.blind, *result.moments):
        if name not in ranked:
            yield f"rank.{name}: is in result.json, but not in resolved.json"
