"""Run all steps of a recipe.

Run all steps of a recipe: data, features, stages, the challenge's CSV, scores. Finished steps are skipped.
"""

import logging
import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import require_unharmed, write_json
from data_tools.manifest import Clip, Query, caption_queries
from submission.editions import get_edition
from submission.formats.csv_files import write_csv
from submission.formats.score_matrix import ScoreMatrix, matrix_from_blocks
from submission.runs.record import FORMAT, BlindResult, MomentsResult, RankedResult, RunResult
from system.audio.base import Device, file_sha256
from system.compute.processes import first_before_others, is_first, on_first, process_count
from system.experiments.blind import (
    BlindSet,
    blind_entries,
    changed_entries,
    open_blind_sets,
)
from system.experiments.ranked_moments import rank_moments, require_rankable_moments
from system.experiments.ranking import RunModels, rank_blind_sets, rank_sources
from system.experiments.summary import describe_data, describe_experts, format_result, parameters_of, weight_licences_of
from system.ranking.base import matrix_labels, refuse_unknown_queries
from system.ranking.checkpoint import ByOneModel, RankBlind
from system.recipe import schema
from system.recipe.load import Loaded, load_recipe
from system.runs.find import open_run
from system.runs.folder import Run
from system.runs.log_file import log_errors
from system.runs.provenance import commit, contents_checksum, store_new_ranking, teacher_checksums

if TYPE_CHECKING:
    from system.models.retrieval import RetrievalModel
    from system.recipe.data import Data
    from system.training.tracking import Tracker

Until = Literal["training", "results"]
log = logging.getLogger(__name__)


def run_recipe(
    loaded: Loaded,
    runs: Path,
    out: Path | None = None,
    device: "Device | None" = None,
    track: "Tracker | None" = None,
    until: Until = "results",
) -> Run:
    """Run the remaining steps of a recipe, from data to ranking; return the run.

    The last step writes the run's result.json. runs: Folder of all runs. out: Folder of this run. None: the folder in
    `runs` of an earlier run with the same settings, or else a new folder.
    device: Device of all computations; None for this machine's default. track: Tracker that receives the metrics of
    every epoch. until: The last step.
    """
    run = on_first(lambda: open_run(loaded, runs, out))
    if on_first(lambda: _has_nothing_to_do(loaded, run)):
        return run
    from system.recipe.data import load_data  # imports torch, which a finished run does not need
    from system.recipe.manifests import make_missing

    began = time.monotonic()
    with ExitStack() as stack:
        if is_first():
            stack.enter_context(run.lock())
        stack.enter_context(log_errors(run.folder))
        with first_before_others():
            make_missing(loaded.recipe)
            data = load_data(loaded.recipe, device=device)
        _train_and_rank(loaded, run, data, began, device, track, until)
    return run


def compute_features(recipe: schema.Recipe, device: "Device | None" = None) -> None:
    """Make the missing manifests and frames of a recipe, and print what there is."""
    from system.recipe.data import load_data
    from system.recipe.manifests import make_missing

    with first_before_others():
        make_missing(recipe)
        features = load_data(recipe, device=device).features
    if is_first():
        print(*features.summary_lines(), sep="\n")
        print(f"clips: {len(features.keys)} with frames, {len(features.broken)} broken and skipped")


def _has_nothing_to_do(loaded: Loaded, run: Run) -> bool:
    """Return whether a run has nothing left to train or rank; log its state."""
    log.info("run folder: %s", run.folder)
    if run.ranks_again:
        log.info("only the rank entries of the recipe have changed: ranking again, without training")
        return False
    if not run.result.exists():
        return False
    _require_unchanged_inputs(loaded.recipe, run)
    result = run.read_result()
    for name, noted in result.sha256.items():
        require_unharmed(run.folder / name, noted, run.repair_hint(run.folder / name))
    made_by, current = result.commits[-1], commit()
    if made_by == current:
        log.info("the run is finished already: %s", run.folder)
    else:
        log.warning(
            "the run is finished already: %s; it was made by the code of commit %s, but the code now has commit %s; "
            "to make a new run with this code, add --out FOLDER", run.folder, made_by, current,
        )  # fmt: skip
    if new := changed_entries(loaded.recipe, result.blind):
        log.info("ranking the new or changed rank entries %s, without training", ", ".join(new))
        return False
    return True


def _require_unchanged_inputs(recipe: schema.Recipe, run: Run) -> None:
    """Raise KitError if a manifest, moments file, embeddings file or teacher of a finished run has changed.

    Deleted manifests and teachers are not compared.
    """
    before, files = run.read_provenance().manifests, recipe.data_files.items()
    changed = [name for name, path in files if path.exists() and before.get(name) != file_sha256(path)]
    if changed:
        sources = ", ".join(changed)
        raise KitError(
            f"{run.folder} is a finished run, but these manifests, moments or embeddings have changed since: "
            f"{sources}; start a new run with --out FOLDER"
        )
    if changed := _changed_teachers(recipe, run):
        teachers = ", ".join(changed)
        raise KitError(
            f"{run.folder} is a finished run, but these teachers have changed since: {teachers}; "
            "start a new run with --out FOLDER"
        )


def _changed_teachers(recipe: schema.Recipe, run: Run) -> list[str]:
    """Return the names of the teachers that have changed since the run began. Deleted teachers are not compared."""
    before = run.read_provenance().teachers
    there = {name: one for name, one in recipe.teachers.items() if (path := schema.teacher_path(one)) and path.exists()}
    now = teacher_checksums(recipe.model_copy(update={"teachers": there}))
    return [name for name, found in now.items() if before.get(name, found) != found]


def _rank_zeros(
    recipe: schema.Recipe, run: Run, data: "Data", model: "RetrievalModel", blind: Mapping[str, BlindSet]
) -> None:
    """Rank all rank entries with scores of zero before the training, so that errors of the ranking are found early."""
    for name, (clips, queries, _, _) in blind.items():
        matrix = _zero_matrix(clips, queries)
        with tempfile.TemporaryDirectory(dir=run.folder) as folder:
            write_csv(matrix, Path(folder) / f"{name}.csv", get_edition(recipe.rank[name].edition))
    reads_clips = recipe.model.audio.reads_clips
    for name, entry in recipe.scored.items():
        source, edition = recipe.ranked_source(name), get_edition(entry.edition)
        clips = data.clips[source]
        if broken := [clip.id for clip in clips if clip.id in data.features.broken]:
            cure = f"; repair these clips, or remove them from {recipe.data[source].manifest}" if reads_clips else ""
            raise KitError(
                f"rank entry {name}: {counted(len(broken), 'clip')} of data source {source} cannot be read, first "
                f"{data.features.broken[broken[0]]}{cure}"
            )
        queries = caption_queries(clips)
        if isinstance(recipe.ranked(name), ByOneModel):
            refuse_unknown_queries(queries, model.text.without_known_words([query.text for query in queries]))
        if entry.csv:
            with tempfile.TemporaryDirectory(dir=run.folder) as folder:
                write_csv(_zero_matrix(clips, queries), Path(folder) / f"{name}.csv", edition)
    if recipe.rank_moments:
        require_rankable_moments(recipe, data)
    for source in dict.fromkeys(map(recipe.ranked_source, recipe.scored)):
        if shared := data.count_shared_clips(recipe.trained_on, [source]):
            shared_size = counted(shared, "recording")
            log.warning(
                "training uses %s of data source %s, which is also ranked, so the metrics of this source are too "
                "high; remove these recordings from the training data",
                shared_size,
                source,
            )


def _zero_matrix(clips: Sequence[Clip], queries: Sequence[Query]) -> ScoreMatrix:
    """Return a score matrix of zeros for the given clips and queries."""
    return matrix_from_blocks(matrix_labels(clips, queries, {}), [np.zeros((len(queries), len(clips)), np.float32)])


def _train_and_rank(
    loaded: Loaded,
    run: Run,
    data: "Data",
    began: float,
    device: "Device | None",
    track: "Tracker | None",
    until: Until,
) -> None:
    """Train all stages, rank all entries, and write a run's results. began: Start time."""
    from system.training.prepare import build_initial_model, prepare, training_relevance
    from system.training.tracking import Tracking
    from system.training.train import train

    recipe = loaded.recipe
    model = prepare(loaded, run, data, device)
    blind = {}
    if is_first() and any(isinstance(entry, RankBlind) for entry in recipe.rank.values()):
        blind = open_blind_sets(recipe, blind_entries(recipe), model.device)
    on_first(lambda: _rank_zeros(recipe, run, data, model, blind))
    with first_before_others():
        relevance = training_relevance(recipe, data, run.figures / "relevance.svg")
    train(recipe, run, data, model, relevance, Tracking(track if is_first() else None, run))
    if not is_first() or until == "training":
        return
    kept, kept_blind = _results_to_keep(recipe, run, blind)
    run.result.unlink(missing_ok=True)  # its scores are now replaced
    untrained = build_initial_model(recipe, run, model.device)
    models = RunModels(recipe, run, data, model, untrained, data.features)
    ranked = rank_sources(models, kept)
    new = {name: opened for name, opened in blind.items() if name not in kept_blind}
    found_blind = kept_blind | rank_blind_sets(models, new)
    ranked_blind = {name: found_blind[name] for name in recipe.rank if name in found_blind}
    moments = rank_moments(models)
    seconds = round(time.monotonic() - began, 1)
    _write_result(loaded, run, data, model, seconds, ranked, ranked_blind, moments)


def _write_result(
    loaded: Loaded,
    run: Run,
    data: "Data",
    model: "RetrievalModel",
    seconds: float,
    ranked: dict[str, RankedResult],
    ranked_blind: dict[str, BlindResult],
    moments: dict[str, MomentsResult],
) -> None:
    """Write plots of metrics, and result.json, which marks the run as finished. seconds: Duration of the run."""
    from system.runs.plots import draw_run

    recipe = loaded.recipe
    _remove_stale_files(run, ranked, ranked_blind, moments)
    draw_run(run)
    if run.ranks_again:
        contents = {name: contents_checksum(clips, data.features.keys) for name, clips in data.clips.items()}
        store_new_ranking(run, loaded, model.text.identity(), contents)
    result = RunResult(
        format=FORMAT,
        recipe=recipe.name,
        seed=recipe.seed,
        commits=run.read_provenance().commits,
        hardware=describe_hardware(model.device),
        parameters=parameters_of(recipe, model),
        experts=describe_experts(recipe),
        weight_licences=weight_licences_of(recipe),
        data=describe_data(recipe, data),
        seconds=seconds,
        training_seconds=round(sum(line.seconds for line in run.read_metrics()), 1),
        broken=data.features.broken,
        rank=ranked,
        blind=ranked_blind,
        moments=moments,
        sha256=_result_checksums(run),
    )
    with (run.folder / "log.txt").open("a", encoding="utf-8") as file:  # the verb prints the same
        file.write(format_result(run, result) + "\n")
    write_json(run.result, result.document())


def describe_hardware(device: "Device") -> str:
    """Describe the hardware of this process, and the number of processes."""
    from system.compute.device import gpu_of

    several = f", {process_count()} processes" if process_count() > 1 else ""
    return f"{os.cpu_count()} cores {platform.machine()}, {gpu_of(device) or 'no GPU'}{several}"


def _result_checksums(run: Run) -> dict[str, str]:
    """Return a dict from the path of each result file, relative to the run's folder, to its sha256.

    The result files are the files that `report` and `package` of submission read.
    """
    kept = (path for name in ("scores", "submission") for path in (run.folder / name).glob("*") if path.is_file())
    files = [run.folder / "resolved.json", run.metrics, *kept]  # provenance.json has a checksum of its own
    return {path.relative_to(run.folder).as_posix(): file_sha256(path) for path in sorted(files)}


def _remove_stale_files(
    run: Run, ranked: Mapping[str, RankedResult], blind: Mapping[str, BlindResult], moments: Mapping[str, MomentsResult]
) -> None:
    """Delete scores and CSVs of rank entries that the recipe no longer has.

    The CSV of an existing rank entry is also deleted if the entry no longer writes a CSV.
    """
    written = {name for name, result in ranked.items() if result.csv} | blind.keys() | moments.keys()
    for folder, names in (("scores", ranked.keys() | blind.keys() | moments.keys()), ("submission", written)):
        for path in (run.folder / folder).glob("*"):
            if path.is_file() and path.name.partition(".")[0] not in names:
                path.unlink()


def _results_to_keep(
    recipe: schema.Recipe, run: Run, blind: Mapping[str, BlindSet]
) -> tuple[dict[str, RankedResult], dict[str, BlindResult]]:
    """Return the results of rank entries that need not be ranked again, by entry.

    The first dict has the entries with metrics, the second dict the entries of blind sets. The result of a blind set is
    also kept if the set's files were deleted.
    blind: Dict from rank entry to its blind set, for sets whose files exist. Raises KitError if files of a kept result
    are damaged.
    """
    kept: dict[str, RankedResult] = {}
    kept_blind: dict[str, BlindResult] = {}
    if not run.result.exists():
        return kept, kept_blind
    result, recorded = run.read_result(), load_recipe(run.folder / "resolved.json").recipe
    for name, entry in recipe.rank.items():
        if recorded.rank.get(name) != entry or not all(
            other in kept or other in kept_blind for other in entry.combined_entries
        ):
            continue
        if name in recipe.scored:
            sources = [recipe.ranked_source(name), *entry.other_sources]
            if name in result.rank and all(recorded.data.get(one) == recipe.data[one] for one in sources):
                kept[name] = result.rank[name]
        elif name in result.blind and (name not in blind or result.blind[name].sha256 == blind[name].sha256):
            kept_blind[name] = result.blind[name]
    names = kept.keys() | kept_blind.keys()
    for name, noted in result.sha256.items():
        if Path(name).name.partition(".")[0] in names:
            require_unharmed(run.folder / name, noted, run.repair_hint(run.folder / name))
    names |= {name for name in result.moments if recorded.rank.get(name) == recipe.rank.get(name)}
    if replaced := [name for name in (*result.rank, *result.blind, *result.moments) if name not in names]:
        log.warning(
            "the earlier scores of rank entries %s are replaced or removed; a new run (--out FOLDER) keeps the "
            "earlier scores, but is trained again", ", ".join(replaced),
        )  # fmt: skip
    return kept, kept_blind
