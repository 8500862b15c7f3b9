"""The verb score: figures of a ranked CSV, a matrix CSV, or a score matrix."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from submission.editions import Edition, get_edition
from submission.errors import SubmissionError
from submission.files import require_other, writing
from submission.scores import ScoreMatrix, read_scores
from submission.scoring import annotated, figures_of, found_from_audio, found_in_csv
from submission.summary import Summary, summarise, summarise_audio_to_text
from submission.table import format_table
from submission.truth import Truth, matrix_truth, read_annotations, read_clotho_truth

CAPTIONS = "clotho_captions_evaluation.csv"
ANNOTATED = "2025"  # the edition whose figures several relevant clips a query are told in


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the edition's CSV, or a score matrix ending in .npy")
    add_truth_arguments(parser)
    parser.add_argument("--per-query", metavar="FILE.csv", type=Path, help="write a line a query with its own figures")


def add_truth_arguments(parser: argparse.ArgumentParser) -> None:
    """What read_summaries needs to know beside files."""
    parser.add_argument(
        "--truth",
        metavar="CAPTIONS.csv",
        type=Path,
        help=f"for CSVs: captions file in Clotho's format, e.g. {CAPTIONS}",
    )
    parser.add_argument(
        "--annotations",
        metavar="ANNOTATIONS.csv",
        type=Path,
        help="score only these queries, by several relevant clips each: metadata_eval.csv of the 2025 baseline",
    )
    parser.add_argument(
        "--direction",
        choices=("text-to-audio", "audio-to-text"),
        default="text-to-audio",
        help="what looks for what; audio-to-text needs a score matrix (default %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.per_query:
        require_other(arguments.per_query, [arguments.file, arguments.truth, arguments.annotations])
    (summary,) = read_summaries([arguments.file], get_edition(arguments.edition), arguments)
    print("\n".join(summary.lines()))
    if arguments.per_query:
        with writing(arguments.per_query) as file:
            file.write(format_table(per_query_rows(summary)))
        print(f"wrote {arguments.per_query}: {len(summary.found.texts)} queries")
    return 0


def per_query_rows(summary: Summary) -> list[list[str]]:
    """A table of every query: its text, relevant ones, ranks of those that are found, and values."""
    found = summary.found
    depth = found.depth or found.n_pool
    header = ["query", "relevant", "ranks", *(name.removeprefix("m") for name in summary.per_query)]
    rows = [
        [
            text,
            str(total),
            " ".join(str(rank) for rank in ranks if rank <= depth),
            *(f"{value:.6g}" for value in values),
        ]
        for text, total, ranks, *values in zip(
            found.texts, found.n_relevant, found.ranks.tolist(), *summary.per_query.values(), strict=True
        )
    ]
    return [header, *rows]


def read_summaries(paths: Sequence[Path], edition: Edition, arguments: argparse.Namespace) -> list[Summary]:
    """Figures of files. arguments: of add_truth_arguments. Raises SubmissionError for what cannot be scored."""
    csvs = [path for path in paths if path.suffix != ".npy"]
    if csvs and not arguments.truth:
        raise SubmissionError(f"{csvs[0]} is scored against captions; add --truth {CAPTIONS}")
    if arguments.truth and not csvs:
        raise SubmissionError(f"{paths[0]} is a score matrix and holds its own truth; leave out --truth")
    truth = read_clotho_truth(arguments.truth) if arguments.truth else None
    return [_summary(path, edition, truth, arguments) for path in paths]


def _summary(path: Path, edition: Edition, truth: Truth | None, arguments: argparse.Namespace) -> Summary:
    annotations = arguments.annotations
    figures = get_edition(ANNOTATED) if annotations else edition
    if path.suffix != ".npy" and edition.output == "ranked":
        assert truth is not None
        if arguments.direction == "audio-to-text":
            raise SubmissionError(f"{path}: a ranked CSV ranks clips only; audio-to-text needs the score matrix")
        found = found_in_csv(path, truth, edition, read_annotations(annotations, truth) if annotations else None)
        return summarise(found, figures.recall_ks, figures.map_ks)
    matrix = _matrix(path, edition, truth)
    if annotations:
        matrix = annotated(matrix, read_annotations(annotations, matrix_truth(matrix)))
    if arguments.direction == "audio-to-text":
        return summarise_audio_to_text(found_from_audio(matrix), edition.recall_ks)
    return figures_of(matrix, figures)


def _matrix(path: Path, edition: Edition, truth: Truth | None) -> ScoreMatrix:
    if path.suffix == ".npy":
        return read_scores(path)
    from submission.matrix_csv import read_matrix_csv

    return read_matrix_csv(path, edition, truth)
