"""Command line of this folder: `lbar submit VERB ...`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from data_tools.cli import counted, run_app
from data_tools.files import require_file, require_other, writing
from submission.editions import EDITIONS, MOMENTS
from submission.errors import SubmissionError
from submission.formats.csv_files import csv_bytes, write_csv
from submission.formats.moments import MomentTruth, read_moment_truth, read_moments, write_moments
from submission.formats.pairs import read_pairs
from submission.formats.score_matrix import read_scores, write_scores
from submission.metrics.blend import How, require_disjoint, search_weights
from submission.metrics.blend import blend as blended
from submission.metrics.rerank import judged_rows, reranked, search_weight
from submission.metrics.summary import bounds_or_none
from submission.metrics.summary import compare as paired_test
from submission.package.archive import check_archive
from submission.package.pack import pack as write_package
from submission.report.page import write_report
from submission.runs.entry import open_entry
from submission.systems import (
    Findings,
    check_output,
    common_edition,
    read_summaries,
    read_truth,
    require_kind,
    scores_file,
)

app = typer.Typer(
    name="lbar submit",
    help="Write, check and score the files of the language-based audio retrieval challenge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


Direction = Literal["text-to-audio", "audio-to-text"]
Year = Annotated[
    str | None,
    typer.Option(
        "--edition", metavar="YEAR", help=f"One of {', '.join([*EDITIONS, *MOMENTS])}; default: that of the files."
    ),
]
A_SYSTEM = "A CSV of an edition, windows (.jsonl), a score matrix (.npy), or a finished run, RUN or RUN:ENTRY."
System = Annotated[str, typer.Argument(metavar="SYSTEM", help=A_SYSTEM)]
Scored = Annotated[
    Path | None,
    typer.Option("--truth", help="Captions (.csv), or true windows (.jsonl); runs and score matrices have their own."),
]
Annotations = Annotated[
    Path | None, typer.Option("--annotations", help="Score only these queries: the 2025 metadata_eval.csv.")
]
Ranked = Annotated[Direction, typer.Option("--direction", help="audio-to-text: clips are queries for captions.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A CSV, windows (.jsonl), or a package (.zip).")],
    edition: Year = None,
    truth: Annotated[Path | None, typer.Option(help="Captions (.csv), scores (.npy) or true windows (.jsonl).")] = None,
    queries: Annotated[Path | None, typer.Option(help="Queries of a blind set: .csv or, for moments, .jsonl.")] = None,
    audio: Annotated[Path | None, typer.Option(help="Folder of the blind set's audio.")] = None,
) -> None:
    """List every problem of a submission file or a package."""
    require_file(file)
    known = read_truth(truth, queries, audio)
    option = edition or (next(iter(MOMENTS)) if isinstance(known, MomentTruth) else None)
    year = common_edition(option, [] if file.suffix == ".zip" else [str(file)])
    require_kind(year, known)
    if file.suffix == ".zip":
        found = check_archive(file, year, known)
    elif year.output == "windows" and b'"relevant_windows"' in file.read_bytes().partition(b"\n")[0]:
        true = read_moment_truth(file)
        found = Findings([], [*map(str, true.notes)], f"true windows of {counted(len(true.queries), 'query')}")
    else:
        found = check_output(file.read_bytes(), year, known)
    for line in [*(f"note: {note}" for note in found.notes), *found.problems]:
        print(line)
    if found.problems:
        raise SubmissionError(f"{file}: has problems, listed above")
    print(f"ok: {found.size}")
    if known is None:
        print("note: not compared with the queries; add --truth, or --queries and --audio")


@app.command()
def score(
    system: System,
    edition: Year = None,
    truth: Scored = None,
    annotations: Annotations = None,
    direction: Ranked = "text-to-audio",
    per_query: Annotated[Path | None, typer.Option(help="Also write the metrics of each query as CSV.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the metrics of a system."""
    if per_query:
        require_other(per_query, [Path(system), truth, annotations])
    (summary,) = read_summaries([system], edition, truth, annotations, direction == "audio-to-text")
    print(json.dumps(summary.document(), indent=1) if as_json else "\n".join(summary.lines()))
    if per_query:
        with writing(per_query) as file:
            file.write(csv_bytes(summary.rows()))


@app.command()
def compare(
    system: System,
    others: Annotated[list[str], typer.Argument(metavar="OTHER...", help="Several systems are averaged.")],
    edition: Year = None,
    truth: Scored = None,
    annotations: Annotations = None,
    direction: Ranked = "text-to-audio",
    as_json: AsJson = False,
) -> None:
    """Compare a system with the mean of others.

    The paired test swaps the systems for groups of queries.
    """
    names = [system, *others]
    first, *rest = read_summaries(names, edition, truth, annotations, direction == "audio-to-text")
    found = paired_test(first, rest)
    if as_json:
        systems = [{"system": name} | one.document() for name, one in zip(names, (first, *rest), strict=True)]
        tested = found._asdict() | {"difference": found.mean, "interval": bounds_or_none(found.interval)}
        print(json.dumps({"systems": systems, "primary": first.primary} | tested))
        return
    for name, summary in zip(names, (first, *rest), strict=True):
        print(f"{summary.format(summary.values[first.primary])}  {name}")
    difference, interval, p = first.describe(found)
    print(f"{difference}  {first.primary}; 95 % {interval}")
    print(f"p {p}  paired randomisation test over {found.n_groups} groups of queries")
    print(f"queries better {found.better}, equal {found.equal}, worse {found.worse}")


@app.command()
def write(
    scores: Annotated[str, typer.Argument(help="A score matrix (.npy), windows (.jsonl), or a finished run.")],
    out: Annotated[Path, typer.Option(help="The .csv or, for moments, .jsonl to write.")],
    edition: Year = None,
) -> None:
    """Write the file that an edition requires."""
    source = scores_file(scores)
    require_other(out, [source])
    year = common_edition(edition, [scores])
    if source.suffix not in (".npy", ".jsonl") or (source.suffix == ".jsonl") != (year.output == "windows"):
        raise SubmissionError(f"{scores}: no scores for edition {year.name}; give a .npy or, for moments, a .jsonl")
    if out.suffix != year.suffix:
        raise SubmissionError(f"{out}: edition {year.name} needs a name ending in {year.suffix}")
    if year.output == "windows":
        write_moments(out, read_moments(source, year), year)
    else:
        write_csv(read_scores(source), out, year)
    print(f"wrote {out} of edition {year.name}")


@app.command()
def blend(
    scores: Annotated[list[str], typer.Argument(help="Two or more score matrices (.npy) or finished runs.")],
    out: Annotated[Path, typer.Option(help="The score matrix to write.")],
    how: Annotated[How, typer.Option(help="Values to average.")] = "raw",
    weight: Annotated[list[float], typer.Option(help="Weight of each system, in order; default: equal ones.")] = [],  # noqa: B006
    validation: Annotated[
        list[str], typer.Option(help="Scores of validation by the same model, for each system, to search the weights.")
    ] = [],  # noqa: B006
    edition: Year = None,
) -> None:
    """Combine several systems into one score matrix."""
    count = len(scores)
    if count < 2 or len({*scores}) < count or (validation and (weight or len({*validation}) != count)):
        hint = "and one --validation or --weight for each, not both"
        raise SubmissionError(f"a blend needs two or more systems, none twice, {hint}")
    files = {name: scores_file(name) for name in [*scores, *validation]}
    require_other(out, files.values())
    read = {name: read_scores(path) for name, path in files.items()}
    parts, weights = {name: read[name] for name in scores}, list(weight) or None
    if validation:
        searched = {name: read[name] for name in validation}
        require_disjoint(parts, searched)
        year = common_edition(edition, files)
        weights, best = search_weights(searched, how, year)
        print(f"searched the weights on the validation split, where {year.metric} is {best:.4f}")
    matrix = blended(parts, how, weights)
    write_scores(out, matrix)
    for name, share in matrix.facts["weights"].items():
        print(f"  {share:.2f}  {name}")
    print(f"wrote {out}: {counted(len(matrix), 'query')} x {counted(len(matrix.clip_ids), 'clip')}")


@app.command()
def rerank(
    scores: Annotated[Path, typer.Argument(help="The score matrix (.npy) to re-rank.")],
    judged: Annotated[Path, typer.Option(help="Its best clips with a judge's scores (.jsonl); see RERANKING.md.")],
    out: Annotated[Path, typer.Option(help="The score matrix to write.")],
    validation: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Scores and judged clips of validation, to choose the weight.")
    ] = None,
    weight: Annotated[float | None, typer.Option(min=0, max=1, help="The judge's weight.")] = None,
    edition: Year = None,
) -> None:
    """Re-rank the best clips by the scores of a judge."""
    if (validation is None) == (weight is None):
        raise SubmissionError("--validation or --weight: give one of them")
    require_other(out, [scores, judged, *(validation or ())])
    matrix, chosen = read_scores(scores), dict[str, Any]()
    if validation:
        searched = read_scores(validation[0])
        require_disjoint({str(scores): matrix}, {str(validation[0]): searched})
        year = common_edition(edition, [str(scores), str(validation[0])])
        rows = judged_rows(searched, read_pairs(validation[1]))
        if not rows:
            raise SubmissionError(f"{validation[1]}: no pair has a judge's score")
        weight, before, after = search_weight(searched, rows, year)
        chosen = {"validation": {year.metric: after.values[year.metric], "without": before.values[year.metric]}}
        gain, interval, _ = after.describe(paired_test(after, [before]))
        print(f"weight {weight:g} is best on validation: gain of {year.metric} {gain}, 95 % {interval}")
    own = judged_rows(matrix, read_pairs(judged))
    count = sum(map(len, own.values()))
    if own:
        facts = matrix.facts | {"reranked": {"weight": weight, "judged pairs": count} | chosen}
        matrix = replace(reranked(matrix, own, weight or 0.0), facts=facts)
    write_scores(out, matrix)
    print(f"wrote {out}: {counted(count, 'judged pair', ',')} of {counted(len(own), 'query', ',')}")


@app.command()
def pack(
    systems: Annotated[
        list[str],
        typer.Argument(metavar="SYSTEM...", help="RUN[:ENTRY], the runs of a blend joined by commas, or SCORES.npy."),
    ],
    about: Annotated[Path, typer.Option(help="Your facts, such as authors; PACKAGE.md has an example.")],
    out: Annotated[Path, typer.Option(help="The archive (.zip) to write.")],
    report: Annotated[Path | None, typer.Option(help="The technical report (.pdf).")] = None,
    edition: Year = None,
) -> None:
    """Pack finished runs into the archive for the challenge."""
    if out.suffix != ".zip" or "." in out.stem:
        raise SubmissionError(f"{out}: a package is NAME.zip without another dot")
    year = common_edition(edition, [part for name in systems for part in name.split(",")])
    packed = write_package(systems, about, year, out, report)
    for system in packed:
        print(f"{system.label}: {system.meta['submission']['name']}, {system.source}")
        if system.is_known:
            print("warning: not ready: the answers are known; rank the blind set, or name its scores as `output`")
    if report is None:
        print("warning: not ready: no technical report; add --report")
    print(f"wrote {out}")


@app.command()
def report(
    run: Annotated[str, typer.Argument(metavar="RUN[:ENTRY]", help="A finished run, or one of its ranked entries.")],
    beside: Annotated[list[str], typer.Option(metavar="RUN[:ENTRY]", help="Another run to compare with.")] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="The page to write; default: RUN/report.html.")] = None,
) -> None:
    """Write a page on a finished run.

    Metrics, failures, and clips to listen to.
    """
    entry = open_entry(run)
    page = out or entry.folder / "report.html"
    others = [open_entry(name) for name in beside]
    if any(other.of_moments != entry.of_moments for other in others):
        raise SubmissionError("--beside: a run of another task")
    write_report(page, entry, others)
    print(f"wrote {page}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit status.

    It is 1 after an error, and 2 for wrong usage.
    """
    return run_app(app, "lbar submit", argv)


if __name__ == "__main__":
    sys.exit(main())
