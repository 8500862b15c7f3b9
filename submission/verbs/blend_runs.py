"""Blend finished runs.

Functions of the verb `blend` for finished runs: find their files and validation scores, and write the blend as a run.
"""

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from submission.editions import format_metric
from submission.errors import SubmissionError
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.metrics.blend import require_disjoint, search_weights, weight_factors
from submission.verbs.moments import is_run, is_run_of_moments, require_scale
from submission.verbs.options import chosen_edition, edition_in_facts

if TYPE_CHECKING:
    from submission.runs.finished import Finished, FinishedMoments, FinishedRun
    from submission.runs.record import MomentsResult, RankedResult


def refuse_truth(arguments: argparse.Namespace) -> None:
    """Raise SubmissionError if --truth is given, because runs and score matrices contain their truth."""
    if arguments.truth:
        raise SubmissionError(
            "--truth only works with files of moments (.jsonl); leave it out, because runs and score matrices contain "
            "their truth"
        )


def choose_weights(
    arguments: argparse.Namespace, parts: Mapping[str, ScoreMatrix], validation: Mapping[str, ScoreMatrix]
) -> list[float] | None:
    """Return the weights of --weights, or those that are best on the validation matrices; None for equal weights.

    parts: Score matrices to blend, by name. validation: Score matrices for the search, by name; empty without a search.
    """
    if not validation:
        given: list[float] | None = arguments.weights
        return given
    require_disjoint(parts, validation)
    editions = {name: edition_in_facts(matrix) for name, matrix in {**parts, **validation}.items()}
    edition = chosen_edition(arguments, editions)
    weights, best_score = search_weights(validation, arguments.how, edition)
    print(f"searched the weights on the validation split, where {edition.metric} is {best_score:.4f}")
    return weights


def scores_file(name: str) -> Path:
    """Return the file with a system's scores: that of a run's entry if `name` is a run, else the file `name`.

    For a run that finds moments, it is the file with windows and scores.
    """
    if not is_run(name):
        return Path(name)
    if is_run_of_moments(name):
        from submission.runs.finished import open_finished_moments

        of_moments = open_finished_moments(name)
        return of_moments.file(f"scores/{of_moments.entry}.windows.jsonl")
    from submission.runs.finished import open_finished  # pydantic, not needed for a file

    run = open_finished(name)
    return run.file(f"scores/{run.entry}.npy")


def validation_entry(name: str) -> str:
    """Return RUN:ENTRY of the entry that ranks a validation split with the same settings as the entry `name`.

    name: RUN:ENTRY or RUN. Raises SubmissionError if the run has no such entry of a validation split, or if `name` is
    no run.
    """
    if not is_run(name):
        raise SubmissionError(
            f"{name} is not the folder of a run, so its validation scores are unknown; give them after --validation"
        )
    from submission.runs.finished import open_any_finished

    run = open_any_finished(name)
    if run.validation is None:
        raise SubmissionError(
            f"{run.folder}: has no scores of a validation split with the settings of {run.entry!r}; "
            f"{_validation_command(run)}"
        )
    return f"{run.folder}:{run.validation.entry}"


def _validation_command(run: "Finished") -> str:
    """Return a hint with the command that ranks a run's validation split with the settings of its entry.

    The command trains nothing. If the recipe has no validation split, the hint reports this instead.
    """
    from submission.runs.finished import combined_entries
    from submission.runs.reading import recorded_changes

    source = next((name for name, one in run.recipe.data.items() if one.split == "validation"), None)
    if source is None:
        return "the recipe has no validation split; leave out --validation, or add a validation split to the recipe"
    changes: list[str] = []
    names = [run.entry]
    while names:
        settings = run.recipe.rank[name := names.pop()]
        of = combined_entries(settings)
        renamed = [f"{one}_validation" for one in of]
        changed = {"of": renamed[0] if isinstance(settings.of, str) else renamed} if of else {"data": source}
        csv = {"csv": False} if "csv" in settings.document() else {}
        changes.insert(0, f"rank.{name}_validation={json.dumps(settings.document() | changed | csv)}")
        names += of
    changes = [*recorded_changes(run.folder), *changes]  # those of the run too, since they are not in its recipe.yaml
    folder, options = shlex.quote(str(run.folder)), " ".join(f"--set {shlex.quote(change)}" for change in changes)
    return f"rank this split, without training, with: lbar run {folder}/recipe.yaml --out {folder} {options}"


def blend_into_folder(arguments: argparse.Namespace) -> int:
    """Write a blend of finished runs as a new run folder, print its metrics, and return the exit status."""
    if others := [name for name in arguments.scores if not is_run(name)]:
        raise SubmissionError(
            f"{others[0]} is not the folder of a run; correct it, or, to blend files, give --out a name that ends in "
            ".npy or .jsonl"
        )
    refuse_truth(arguments)
    from submission.runs.blended import blend_runs, blend_runs_of_moments, require_new
    from submission.runs.finished import FinishedMoments, open_any_finished
    from submission.runs.merged import parts_of

    require_new(arguments.out)
    runs = {name: open_any_finished(name) for name in arguments.scores}
    for name, run in runs.items():
        if run.result.blend:
            raise SubmissionError(f"{name} is a blend; give the runs that it blends instead")
        if isinstance(run, FinishedMoments) and run.ranked.figures is None:
            raise SubmissionError(f"{name} has windows of a blind list; give an entry that has metrics")
    of_moments = {name: run for name, run in runs.items() if isinstance(run, FinishedMoments)}
    of_clips = {name: run for name, run in runs.items() if not isinstance(run, FinishedMoments)}
    if of_moments and of_clips:
        raise SubmissionError(
            f"{next(iter(of_clips))} ranks clips, but {next(iter(of_moments))} finds moments; blend runs of one kind"
        )
    if of_moments:
        require_scale(arguments)
        weights = _weights_of_moments(arguments, of_moments)
        parts = parts_of(list(of_moments.values()), weight_factors(weights, len(runs)).tolist())
        result = blend_runs_of_moments(arguments.out, parts, arguments.how)
    else:
        weights = _weights_of_runs(arguments, of_clips)
        editions = {name: run.ranked.edition for name, run in of_clips.items()}
        clips = parts_of(list(of_clips.values()), weight_factors(weights, len(runs)).tolist())
        result = blend_runs(arguments.out, clips, arguments.how, chosen_edition(arguments, editions))
    for member in result.blend:
        print(f"  {member.weight:.2f}  {member.run}:{member.entry}")
    entries: dict[str, RankedResult | MomentsResult] = {**result.rank, **result.moments}
    for name, ranked in entries.items():
        if ranked.figures is not None:
            print(f"{name}: {ranked.metric} {format_metric(ranked.metric, ranked.figures[ranked.metric])}")
    for name, run in runs.items():
        if not run.ranks_blind:
            print(
                f"note: the blend has no scores of a blind set, because {name} has not ranked a blind set with the "
                f"checkpoints of its entry {run.entry!r}"
            )
    print(f"wrote {arguments.out}; score, compare, report and pack read it like a run")
    return 0


def _weights_of_runs(arguments: argparse.Namespace, runs: Mapping[str, "FinishedRun"]) -> Sequence[float] | None:
    """Return the given or searched weights of runs that rank clips; None for equal weights."""
    validation = {name: read_scores(scores_file(name)) for name in arguments.validation or ()}
    return choose_weights(arguments, {name: run.matrix for name, run in runs.items()}, validation)


def _weights_of_moments(arguments: argparse.Namespace, runs: Mapping[str, "FinishedMoments"]) -> Sequence[float] | None:
    """Return the given or searched weights of runs that find moments; None for equal weights."""
    if not arguments.validation:
        given: list[float] | None = arguments.weights
        return given
    from submission.metrics.moments_blend import require_disjoint as require_disjoint_moments
    from submission.metrics.moments_blend import search_moment_weights
    from submission.runs.finished import open_finished_moments

    opened = {name: open_finished_moments(name) for name in arguments.validation}
    answers, first = {name: one.answers for name, one in opened.items()}, next(iter(opened.values()))
    require_disjoint_moments({name: run.answers for name, run in runs.items()}, answers, first.truth)
    weights, best_score = search_moment_weights(answers, arguments.how, first.truth, first.edition)
    figure = format_metric(first.edition.metric, best_score)
    print(f"searched the weights on the validation split, where {first.edition.metric} is {figure}")
    return weights
