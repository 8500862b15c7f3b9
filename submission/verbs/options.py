"""Options that several verbs share, and what they name: what a file is compared with, and what it is scored by."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from data_tools.files import require_file
from submission.editions import Edition, get_edition
from submission.errors import SubmissionError
from submission.formats.matrix_csv import read_matrix_csv
from submission.formats.score_matrix import read_scores
from submission.formats.truth import Truth, matrix_truth, read_annotations, read_blind_truth, read_clotho_truth
from submission.metrics.scoring import annotated, found_from_audio, found_in_csv, summarise_matrix
from submission.metrics.summary import Summary, summarise, summarise_audio_to_text

CAPTIONS = "clotho_captions_evaluation.csv"
ANNOTATED = "2025"  # the edition whose figures several relevant clips a query are printed in


def add_reference_arguments(parser: argparse.ArgumentParser) -> None:
    against = parser.add_mutually_exclusive_group()
    against.add_argument("--truth", metavar="CAPTIONS.csv", type=Path, help="captions file in Clotho's format")
    against.add_argument("--scores", metavar="SCORES.npy", type=Path, help="score matrix with the queries and clips")
    against.add_argument("--queries", metavar="QUERIES.csv", type=Path, help="a blind set's queries, column caption")
    parser.add_argument("--audio", metavar="FOLDER", type=Path, help="with --queries: the blind set's audio files")


def chosen_truth(arguments: argparse.Namespace) -> Truth | None:
    """What the options name, or None for none of them. Raises SubmissionError for half of a blind set."""
    if (arguments.queries is None) != (arguments.audio is None):
        raise SubmissionError("a blind set is --queries FILE.csv and --audio FOLDER together; give both")
    if arguments.queries:
        return read_blind_truth(arguments.queries, arguments.audio)
    if arguments.scores:
        return matrix_truth(read_scores(arguments.scores))
    return read_clotho_truth(arguments.truth) if arguments.truth else None


def require_csv(path: Path) -> None:
    """Raises SubmissionError for what is handed in by mistake: a recipe."""
    if path.suffix.lower() in (".yaml", ".yml") and path.is_file():
        hint = f"a recipe is checked by python -m system check {path}"
        raise SubmissionError(f"{path}: is YAML, such as a recipe, and no CSV, score matrix or package; {hint}")


def add_ranked(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranked", action="store_true", help="a ranked CSV even where the edition asks for all scores")


def add_truth_arguments(parser: argparse.ArgumentParser) -> None:
    """What read_summaries needs to know beside files."""
    captions = f"for CSVs: captions file in Clotho's format, e.g. {CAPTIONS}"
    parser.add_argument("--truth", metavar="CAPTIONS.csv", type=Path, help=captions)
    wanted = "score only these queries, by several relevant clips each: metadata_eval.csv of the 2025 baseline"
    parser.add_argument("--annotations", metavar="ANNOTATIONS.csv", type=Path, help=wanted)
    sides = "which side is the query and which is ranked; audio-to-text needs a score matrix (default %(default)s)"
    directions = ("text-to-audio", "audio-to-text")
    parser.add_argument("--direction", choices=directions, default="text-to-audio", help=sides)


def read_summaries(paths: Sequence[Path], edition: Edition, arguments: argparse.Namespace) -> list[Summary]:
    """Figures of files. arguments: of add_truth_arguments. Raises SubmissionError for what cannot be scored."""
    csvs = [path for path in paths if path.suffix != ".npy"]
    for path in csvs:
        require_file(path)
        require_csv(path)
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
    matrix = read_scores(path) if path.suffix == ".npy" else read_matrix_csv(path, edition, truth)
    if annotations:
        matrix = annotated(matrix, read_annotations(annotations, matrix_truth(matrix)))
    if arguments.direction == "audio-to-text":
        return summarise_audio_to_text(found_from_audio(matrix), edition.recall_ks)
    return summarise_matrix(matrix, figures)
