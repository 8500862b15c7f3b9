"""Command line of this folder: `lbar submit VERB ...`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from data_tools.cli import add_verb, counted, new_app, run_app
from data_tools.errors import KitError
from data_tools.files import require_file, require_other
from submission.editions import EDITIONS, MOMENTS
from submission.formats.csv_files import write_csv
from submission.formats.score_matrix import read_scores, write_scores
from submission.inputs import check_output, common_edition, read_summaries, read_truth, scores_file
from submission.metrics.blend import How, require_disjoint, search_weights
from submission.metrics.blend import blend as blended
from submission.metrics.summary import bounds_or_none
from submission.metrics.summary import compare as paired_test

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


def check(
    file: Path,
    *,
    edition: Year = None,
    truth: Path | None = None,
    queries: Path | None = None,
    audio: Path | None = None,
) -> None:
    """List every problem of a submission file or a package.

    Args:
        file: A CSV, windows (.jsonl), or a package (.zip).
        truth: Captions (.csv), scores (.npy) or true windows (.jsonl).
        queries: Queries of a blind set: .csv or, for moments, .jsonl.
        audio: Folder of the blind set's audio.
    """
    require_file(file)
    known, is_package = read_truth(truth, queries, audio), file.suffix == ".zip"
    named = [truth, queries] if is_package else [file]
    year = common_edition(edition, [str(path) for path in named if path])
    if is_package:
        from submission.package.archive import check_archive

        found = check_archive(file, year, known)
    else:
        found = check_output(file.read_bytes(), year, known)
    for line in [*(f"note: {note}" for note in found.notes), *found.problems]:
        print(line)
    if found.problems:
        raise KitError(f"{file}: has problems, listed above")
    print(f"ok: {found.size}")
    if known is None:
        print("note: not compared with the queries; add --truth, or --queries and --audio")


def score(
    system: System,
    *,
    edition: Year = None,
    truth: Scored = None,
    annotations: Annotations = None,
    direction: Ranked = "text-to-audio",
    as_json: AsJson = False,
) -> None:
    """Print the metrics of a system."""
    (summary,) = read_summaries([system], edition, truth, annotations, direction == "audio-to-text")
    if as_json:
        of_queries = {name: values.tolist() for name, values in summary.per_query.items()}
        print(json.dumps(summary.document() | {"per_query": {"query": summary.queries.texts} | of_queries}))
    else:
        print("\n".join(summary.lines()))


def compare(
    system: System,
    others: Annotated[list[str], typer.Argument(metavar="OTHER...")],
    *,
    edition: Year = None,
    truth: Scored = None,
    annotations: Annotations = None,
    direction: Ranked = "text-to-audio",
    as_json: AsJson = False,
) -> None:
    """Compare a system with the mean of others.

    The paired test swaps the systems for groups of queries.

    Args:
        others: Several systems are averaged.
    """
    names = [system, *others]
    first, *rest = read_summaries(names, edition, truth, annotations, direction == "audio-to-text")
    found = paired_test(first, rest)
    if as_json:
        systems = [{"system": name} | one.document() for name, one in zip(names, (first, *rest), strict=True)]
        tested = found._asdict() | {"interval": bounds_or_none(found.interval)}
        print(json.dumps({"systems": systems, "primary": first.primary} | tested))
        return
    for name, summary in zip(names, (first, *rest), strict=True):
        print(f"{summary.format(summary.values[first.primary])}  {name}")
    difference, interval, p = first.describe(found)
    print(f"{difference}  {first.primary}; 95 % {interval}")
    print(f"p {p}  paired randomisation test over {found.n_groups} groups of queries")
    print(f"queries better {found.better}, equal {found.equal}, worse {found.worse}")


def write(scores: str, *, out: Path, edition: Year = None) -> None:
    """Write the file that an edition requires.

    Args:
        scores: A score matrix (.npy), windows (.jsonl), or a finished run.
        out: The .csv or, for moments, .jsonl to write.
    """
    source, year = scores_file(scores), common_edition(edition, [scores])
    require_other(out, [source])
    if year.output == "windows":
        from submission.formats.moments import read_answers, write_answers

        write_answers(out, read_answers(source))
    else:
        write_csv(read_scores(source), out, year)
    print(f"wrote {out} of edition {year.name}")


def blend(
    scores: list[str],
    *,
    out: Path,
    how: How = "raw",
    validation: list[str] = [],  # noqa: B006
    edition: Year = None,
) -> None:
    """Combine several systems into one score matrix.

    Args:
        scores: Two or more score matrices (.npy) or finished runs.
        out: The score matrix to write.
        how: Values to average.
        validation: Scores of validation by the same model, for each system, to search the weights.
    """
    count = len(set(scores))
    if count < 2 or count < len(scores) or (validation and len(set(validation)) != count):
        raise KitError("a blend needs two or more systems, none twice, and no or one --validation for each")
    files = {name: scores_file(name) for name in [*scores, *validation]}
    require_other(out, files.values())
    parts, searched = ({name: read_scores(files[name]) for name in names} for names in (scores, validation))
    weights = None
    if validation:
        require_disjoint(parts, searched)
        year = common_edition(edition, files)
        weights, best = search_weights(searched, how, year)
        print(f"searched the weights on the validation split, where {year.metric} is {best:.4f}")
    matrix = blended(parts, how, weights)
    write_scores(out, matrix)
    for name, share in matrix.facts["weights"].items():
        print(f"  {share:.2f}  {name}")
    print(f"wrote {out}: {counted(len(matrix), 'query')} x {counted(len(matrix.clip_ids), 'clip')}")


def rerank(scores: Path, *, judged: Path, validation: tuple[Path, Path], out: Path, edition: Year = None) -> None:
    """Re-rank the best clips by a judge, with the weight that is best on validation.

    Args:
        scores: The score matrix (.npy) to re-rank.
        judged: Its best clips with a judge's scores (.jsonl); see README.md.
        validation: Scores and judged clips of validation.
        out: The score matrix to write.
    """
    from submission.formats.pairs import read_pairs
    from submission.metrics.rerank import judged_rows, reranked, search_weight

    require_other(out, [scores, judged, *validation])
    matrix, searched = read_scores(scores), read_scores(validation[0])
    require_disjoint({str(scores): matrix}, {str(validation[0]): searched})
    year = common_edition(edition, [str(scores), str(validation[0])])
    weight, before, after = search_weight(searched, judged_rows(searched, read_pairs(validation[1])), year)
    gain, interval, _ = after.describe(paired_test(after, [before]))
    print(f"weight {weight:g} is best on validation: gain of {year.metric} {gain}, 95 % {interval}")
    rows = judged_rows(matrix, read_pairs(judged))
    count, figures = sum(map(len, rows.values())), {"without": before, year.metric: after}
    chosen = {name: summary.values[year.metric] for name, summary in figures.items()}
    facts = {"reranked": {"weight": weight, "judged pairs": count, "validation": chosen}}
    write_scores(out, replace(reranked(matrix, rows, weight), facts=matrix.facts | facts))
    print(f"wrote {out}: {counted(count, 'judged pair', ',')} of {counted(len(rows), 'query', ',')}")


def pack(
    systems: Annotated[list[str], typer.Argument(metavar="SYSTEM...")],
    *,
    about: Path,
    out: Path,
    report: Path | None = None,
    edition: Year = None,
) -> None:
    """Pack finished runs into the archive for the challenge.

    Args:
        systems: RUN[:ENTRY], the runs of a blend joined by commas, or SCORES.npy.
        about: Your facts, such as authors; PACKAGE.md has an example.
        out: The archive (.zip) to write.
        report: The technical report (.pdf).
    """
    from submission.package.pack import pack as write_package
    from submission.runs.entry import open_entry

    if out.suffix != ".zip" or "." in out.stem:
        raise KitError(f"{out}: a package is NAME.zip without another dot")
    parts = [part for name in systems for part in name.split(",")]
    year = common_edition(edition, parts)
    ranked = {open_entry(part).blind_edition for part in parts if not part.endswith(".npy")}
    if not edition and not ranked <= {None, year.name}:
        raise KitError(f"the figures are of edition {year.name}, the blind set is not; add the --edition to submit to")
    packed = write_package(systems, about, year, out, report)
    for system in packed:
        print(f"{system.label}: {system.meta['submission']['name']}, {system.source}")
        if system.is_known:
            cure = "rank the blind set by an entry with the same settings, or name its scores as `output`"
            print(f"warning: not ready: the answers are known; {cure}")
    if report is None:
        print("warning: not ready: no technical report; add --report")
    print(f"wrote {out}: a package of edition {year.name}")


def report(
    run: Annotated[str, typer.Argument(metavar="RUN[:ENTRY]")],
    *,
    beside: Annotated[list[str], typer.Option(metavar="RUN[:ENTRY]")] = [],  # noqa: B006
    out: Path | None = None,
) -> None:
    """Write a page on a finished run.

    The page shows metrics, failures, and clips to listen to.

    Args:
        run: A finished run, or one of its ranked entries.
        beside: Another run to compare with.
        out: The page to write; default: RUN/report.html.
    """
    from submission.report.page import write_report
    from submission.runs.entry import open_entry

    entry = open_entry(run)
    page = out or entry.folder / "report.html"
    others = [open_entry(name) for name in beside]
    if any(other.of_moments != entry.of_moments for other in others):
        raise KitError("--beside: a run of another task")
    write_report(page, entry, others)
    print(f"wrote {page}")


app = new_app("lbar submit", "Write, check and score the files of the language-based audio retrieval challenge.")
for verb in (check, score, compare, write, blend, rerank, pack, report):
    add_verb(app, verb)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit status.

    It is 1 after an error, and 2 for wrong usage.
    """
    return run_app(app, "lbar submit", argv)


if __name__ == "__main__":
    sys.exit(main())
