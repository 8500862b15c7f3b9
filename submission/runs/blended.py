"""Write a blend of runs.

Write a blend of finished runs as the folder of a run, so that every verb can read it like a run.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from data_tools.files import checksum, write_json
from data_tools.tables import read_table, write_table
from submission.editions import Edition
from submission.errors import SubmissionError
from submission.formats.edition_csv import write_csv
from submission.formats.frame_scores import FrameScores, write_frame_scores
from submission.formats.moments_jsonl import Moments, windows_by_query, write_moments, write_scored_moments
from submission.formats.score_matrix import read_scores, write_blocks
from submission.metrics.blend import How, blend_in_blocks
from submission.metrics.moments_blend import How as MomentsHow
from submission.metrics.moments_blend import blend_moments
from submission.metrics.moments_summary import summarise_moments
from submission.runs.finished import FinishedMoments, FinishedRun
from submission.runs.merged import Part, describe_blend, merged_recipe, merged_result
from submission.runs.record import FORMAT, BlindResult, Member, MomentsResult, RankedResult, RunResult
from submission.runs.results import ranked_result


def require_new(out: Path) -> None:
    """Raise SubmissionError if the folder `out` exists or is inside a run; otherwise create its parent folder."""
    if out.exists():
        raise SubmissionError(f"{out} already exists; delete it, or choose another folder")
    if inside := next((one for one in out.absolute().parents if (one / "resolved.json").is_file()), None):
        raise SubmissionError(f"{out} is inside the run {inside}; choose another folder")
    out.absolute().parent.mkdir(parents=True, exist_ok=True)


def _blind_entry(first: str) -> str:
    """Return a name for the second entry of a blend, which ranks the blind set; `first` is already in use."""
    return "blind" if first != "blind" else "blind_set"


def blend_runs(out: Path, parts: Sequence[Part[FinishedRun]], how: How, edition: Edition) -> RunResult:
    """Write a blend of runs that rank clips as the folder `out`, and return the content of its result.json.

    If all runs have ranked the blind set, their scores for it are blended too.
    parts: The runs and their weights. how: Scaling of the scores before the mean: `raw` (unchanged), `standardised` (by
    mean and standard deviation of each query), or `rank`.
    Raises the same errors as blend.
    """
    first = parts[0].run
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary, out.name)
        ranked = _blend_entry(folder, out, parts, how, edition)
        blind = _blend_blind(folder, out, parts, how, edition) if all(part.run.ranks_blind for part in parts) else {}
        mean = {"kind": "mean", "of": [f"{part.label}/{part.run.entry}" for part in parts]}
        rank = {first.entry: mean, **dict.fromkeys(blind, mean)}
        result = _write_records(
            folder, out, parts, rank, {"rank": {first.entry: ranked}, "blind": blind, "moments": {}}
        )
        folder.rename(out)
    return result


def _blend_entry(
    temporary: Path, out: Path, parts: Sequence[Part[FinishedRun]], how: How, edition: Edition
) -> RankedResult:
    """Write the blended scores of the runs' ranked entries, and a CSV if the first run has one; return the result.

    temporary: Folder to write to. out: Final folder, for the paths in the result.
    """
    first = parts[0].run
    scores, csv = f"scores/{first.entry}.npy", f"submission/{first.entry}.csv"
    for name in ("scores", "submission"):
        (temporary / name).mkdir(parents=True)
    write_blocks(
        temporary / scores, *blend_in_blocks({p.label: p.run.matrix for p in parts}, how, [p.weight for p in parts])
    )
    matrix = read_scores(temporary / scores)
    if first.ranked.csv is not None:
        write_csv(matrix, temporary / csv, edition)
    table = first.file(f"scores/{first.entry}.clips.csv")
    columns = ["clip", "path", "seconds"]  # norms of embeddings are those of one model
    rows = [[row[column] for column in columns] for _, row in read_table(table, columns)]
    write_table(temporary / f"scores/{first.entry}.clips.csv", columns, rows)
    return ranked_result(
        matrix,
        edition,
        None,
        data=first.ranked.data,
        checkpoint=describe_blend(parts),
        ceiling=first.ranked.ceiling,
        also_trained_on=max(part.run.ranked.also_trained_on for part in parts),
        scores=str(out / scores),
        csv=None if first.ranked.csv is None else str(out / csv),
    )


def _blend_blind(
    temporary: Path, out: Path, parts: Sequence[Part[FinishedRun]], how: How, edition: Edition
) -> dict[str, BlindResult]:
    """Write the blended scores of the blind set and a CSV; return a dict from the entry's name to its result.

    temporary: Folder to write to. out: Final folder, for the paths in the result.
    """
    name = _blind_entry(parts[0].run.entry)
    scores, csv = f"scores/{name}.npy", f"submission/{name}.csv"
    matrices = {part.label: read_scores(path) for part in parts if (path := part.run.blind_scores)}
    write_blocks(temporary / scores, *blend_in_blocks(matrices, how, [part.weight for part in parts]))
    matrix = read_scores(temporary / scores)
    write_csv(matrix, temporary / csv, edition)
    result = BlindResult(
        queries=len(matrix.query_ids),
        clips=len(matrix.clip_ids),
        checkpoint=describe_blend(parts),
        edition=edition.name,
        scores=str(out / scores),
        csv=str(out / csv),
        sha256=next(iter(parts[0].run.result.blind.values())).sha256,
    )
    return {name: result}


def blend_runs_of_moments(out: Path, parts: Sequence[Part[FinishedMoments]], how: MomentsHow) -> RunResult:
    """Write a blend of runs that find moments as the folder `out`, and return the content of its result.json.

    If all runs have windows for the blind list, these are blended too.
    parts: The runs and their weights. how: Scores that are blended: `raw` (those of the runs), or `rank` (1 for a run's
    best window, 1/2 for its second window and so on).
    Raises the same errors as blend_moments.
    """
    first = parts[0].run
    lists = {first.entry: parts}
    if all(part.run.ranks_blind for part in parts):
        lists[_blind_entry(first.entry)] = [part._replace(run=part.run.blind) for part in parts if part.run.blind]
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary, out.name)
        for name in ("scores", "submission"):
            (folder / name).mkdir(parents=True)
        moments = {name: _blend_moments(folder, out, name, of_list, how) for name, of_list in lists.items()}
        rank = {}
        for name, of_list in lists.items():
            settings = of_list[0].run.recipe.rank[of_list[0].run.entry]
            stage = {} if settings.stage is None else {"stage": f"{of_list[0].label}/{settings.stage}"}
            rank[name] = settings.document() | stage
        result = _write_records(folder, out, parts, rank, {"rank": {}, "blind": {}, "moments": moments})
        folder.rename(out)
    return result


def _blend_moments(
    temporary: Path, out: Path, name: str, parts: Sequence[Part[FinishedMoments]], how: MomentsHow
) -> MomentsResult:
    """Write the files with the blended windows of an entry, and return the result of the entry.

    Args:
        temporary: Folder to write to.
        out: Final folder, for the paths in the result.
        name: Name of the entry.
    """
    first = parts[0].run
    answers = blend_moments({p.label: p.run.answers for p in parts}, how, first.edition, [p.weight for p in parts])
    files = {
        "windows": f"scores/{name}.windows.jsonl",
        "answers": f"submission/{name}.jsonl",
        "truth": f"scores/{name}.truth.jsonl",
        "frames": f"scores/{name}.frames.npz",
    }
    write_scored_moments(temporary / files["windows"], answers, first.edition)
    write_moments(temporary / files["answers"], answers, first.edition)
    (temporary / files["truth"]).write_bytes(first.file(f"scores/{first.entry}.truth.jsonl").read_bytes())
    write_frame_scores(temporary / files["frames"], _mean_frames(parts))
    facts = {
        "checkpoint": describe_blend(parts),
        "fitted": None,
        "new_texts": None,
        "figures_of_new_texts": None,
        "also_trained_on": max(part.run.ranked.also_trained_on for part in parts),
        **_blended_figures(first, answers),
        **{kind: str(out / path) for kind, path in files.items()},
    }
    return first.ranked.model_copy(update=facts)


def _blended_figures(first: FinishedMoments, answers: Sequence[Moments]) -> dict[str, Any]:
    """Return the metrics of blended windows and their bootstrap intervals; {} for queries without true windows.

    first: First run of the blend, which has the truth. answers: The blended windows of each query.
    """
    if first.ranked.figures is None:
        return {}
    summary = summarise_moments(windows_by_query(answers), first.truth, first.edition)
    bootstrap = {metric: list(interval) for metric, interval in summary.bootstraps.items()}
    return {"figures": summary.values, "bootstrap": bootstrap}


def _mean_frames(parts: Sequence[Part[FinishedMoments]]) -> dict[str, FrameScores]:
    """Return for each query the weighted mean, over the runs, of the probability that a frame is in a moment.

    In the result, a new frame begins wherever a frame of any run begins. If the runs' frames end at different times,
    the result ends at the earliest of these.
    """
    found = {}
    for qid in parts[0].run.frames:
        each = [part.run.frames[qid] for part in parts]
        end = min(one.edges[-1] for one in each)
        edges = np.unique(np.concatenate([one.edges[one.edges <= end] for one in each]))
        total = np.zeros(len(edges) - 1)
        for part, one in zip(parts, each, strict=True):
            total += part.weight * one.frames[np.searchsorted(one.edges, edges[:-1], side="right") - 1]
        found[qid] = FrameScores(edges, total)
    return found


def _write_records(
    temporary: Path, out: Path, parts: Sequence[Part[Any]], rank: Mapping[str, Any], entries: Mapping[str, Any]
) -> RunResult:
    """Write a blend's resolved.json and result.json; return the content of the latter.

    An empty metrics.jsonl is written too.

    Args:
        temporary: Folder to write to.
        out: Final folder.
        rank: Settings of the blend's own entries, by name.
        entries: Results of these entries, by the keys `rank`, `blind` and `moments`.
    """
    recipe = merged_recipe(out.name, parts)
    write_json(temporary / "resolved.json", recipe | {"rank": recipe["rank"] | rank})
    (temporary / "metrics.jsonl").write_text("")
    files = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
    members = [
        Member(
            run=os.path.relpath(part.run.folder.resolve(), out.resolve()),
            sha256=part.run.checksum,
            entry=part.run.entry,
            weight=part.weight,
        )
        for part in parts
    ]
    result = RunResult(
        format=FORMAT,
        **merged_result(out.name, parts),
        **entries,
        blend=members,
        sha256={path.relative_to(temporary).as_posix(): checksum(path) for path in files},
    )
    write_json(temporary / "result.json", result.document())
    return result
