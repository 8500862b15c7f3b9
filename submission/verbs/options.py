"""Shared options.

Add and read the options that several verbs share: the truth that a file is compared with, and the systems to score.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from data_tools.files import require_file
from submission.editions import EDITIONS, MOMENTS, AnyEdition, Edition, get_any_edition, get_edition
from submission.errors import SubmissionError
from submission.formats.columns import edition_options
from submission.formats.edition_csv import read_header_editions
from submission.formats.matrix_csv import read_matrix_csv
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.formats.truth import Truth, matrix_truth, read_annotations, read_blind_truth, read_clotho_truth
from submission.metrics.blend import facts_of_parts
from submission.metrics.moments_summary import MomentSummary
from submission.metrics.scoring import ranks_from_audio, ranks_in_csv, summarise_matrix, with_annotations
from submission.metrics.summary import Summary, summarise, summarise_audio_to_text
from submission.verbs.moments import is_moments, is_run, is_run_of_moments, read_moment_summaries

SYSTEM_HELP = "an edition's CSV or .jsonl, a score matrix (.npy), or a finished run, as RUN or RUN:ENTRY"
CAPTIONS_FILE = "clotho_captions_evaluation.csv"
ANNOTATED_EDITION = "2025"  # edition of the figures for several relevant clips per query


def add_reference_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the truth, a score matrix, or a blind set to compare a file with."""
    against = parser.add_mutually_exclusive_group()
    captions = "truth to compare with: captions file in Clotho's format, or true windows of moments (.jsonl)"
    against.add_argument("--truth", metavar="TRUTH", type=Path, help=captions)
    against.add_argument("--scores", metavar="SCORES.npy", type=Path, help="score matrix to compare the file with")
    blind = "queries of a blind set: CSV with a column `caption`, or the organisers' list for moments (.jsonl)"
    against.add_argument("--queries", metavar="QUERIES", type=Path, help=blind)
    parser.add_argument("--audio", metavar="FOLDER", type=Path, help="folder of the blind set's audio; needs --queries")


def chosen_truth(arguments: argparse.Namespace) -> Truth | None:
    """Read the truth from --truth, from --scores, or from --queries and --audio; None without these options.

    Raises SubmissionError if only one of --queries and --audio is given.
    """
    if (arguments.queries is None) != (arguments.audio is None):
        raise SubmissionError("a blind set needs --queries FILE.csv and --audio FOLDER; give both")
    if arguments.queries:
        return read_blind_truth(arguments.queries, arguments.audio)
    if arguments.scores:
        return matrix_truth(read_scores(arguments.scores))
    return read_clotho_truth(arguments.truth) if arguments.truth else None


def require_csv(path: Path) -> None:
    """Raises SubmissionError if the file is YAML, such as a recipe, instead of a CSV."""
    if path.suffix.lower() in (".yaml", ".yml") and path.is_file():
        raise SubmissionError(
            f"{path} is YAML, such as a recipe, not a CSV, score matrix or package; to check a recipe: lbar"
            f" check {path}"
        )


def add_ranked(parser: argparse.ArgumentParser) -> None:
    """Add the option --ranked, to write or check a ranked CSV."""
    purpose = "write or check a ranked CSV, even if the edition needs all scores"
    parser.add_argument("--ranked", action="store_true", help=purpose)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add the option --force, to overwrite a file of another kind or edition."""
    parser.add_argument("--force", action="store_true", help="overwrite an existing file of another kind or edition")


def add_truth_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that read_summaries needs, such as --truth."""
    captions = f"for CSVs: captions file in Clotho's format, e.g. {CAPTIONS_FILE}; for moments: true windows (.jsonl)"
    parser.add_argument("--truth", metavar="TRUTH", type=Path, help=captions)
    wanted = "score only the queries of this file, which have several relevant clips: the 2025 metadata_eval.csv"
    parser.add_argument("--annotations", metavar="ANNOTATIONS.csv", type=Path, help=wanted)
    sides = (
        "text-to-audio: captions are queries for clips; audio-to-text: clips are queries for captions, which needs a "
        "score matrix (default %(default)s)"
    )
    directions = ("text-to-audio", "audio-to-text")
    parser.add_argument("--direction", choices=directions, default="text-to-audio", help=sides)


class System(NamedTuple):
    """A system to score. name: Its file or run. matrix: Its score matrix; None for a CSV. edition: None if unknown."""

    name: str
    matrix: ScoreMatrix | None
    edition: str | None


def open_system(name: str) -> System:
    """Open a CSV, a score matrix (.npy), or a finished run (RUN or RUN:ENTRY).

    Raises SubmissionError for anything else.
    """
    path = Path(name)
    if is_run(name):
        from submission.runs.finished import open_finished  # pydantic, not needed for a CSV

        run = open_finished(name)
        return System(name, run.matrix, run.ranked.edition)
    if path.suffix == ".npy":
        matrix = read_scores(path)
        return System(name, matrix, edition_in_facts(matrix))
    require_file(path)
    require_csv(path)
    return System(name, None, None)


def edition_in_facts(matrix: ScoreMatrix) -> str | None:
    """Return the edition in the metadata (facts) of a score matrix, or of all matrices of a blend; None if unknown."""
    if isinstance(edition := matrix.facts.get("edition"), str):
        return edition
    editions = [facts.get("edition") for facts in facts_of_parts(matrix.facts)]
    first = editions[0] if editions else None
    return first if isinstance(first, str) and all(other == first for other in editions) else None


def chosen_edition(
    arguments: argparse.Namespace, editions: Mapping[str, str | None], file: Path | None = None, hint: str = ""
) -> Edition:
    """Return the edition that --edition names or, without it, the only edition of all files; it ranks clips.

    Args:
        editions: Dict from each file to its edition (None if unknown).
        file: File that needs an edition, for the message.
        hint: Option that the message suggests.
    Raises SubmissionError if --edition is missing, and the files have no edition or different editions.
    """
    return get_edition(
        _edition_name(arguments, editions, file, hint or f"--edition YEAR, one of {', '.join(EDITIONS)}")
    )


def chosen_any_edition(
    arguments: argparse.Namespace, editions: Mapping[str, str | None], file: Path | None = None
) -> AnyEdition:
    """Return the edition that --edition names or the only edition of all files; it may rank clips or find moments.

    editions: Dict from each file to its edition (None if unknown). file: File that needs an edition, for the message.
    Raises the same errors as chosen_edition.
    """
    hint = f"--edition YEAR, one of {', '.join([*EDITIONS, *MOMENTS])}"
    return get_any_edition(_edition_name(arguments, editions, file, hint))


def _edition_name(
    arguments: argparse.Namespace, noted: Mapping[str, str | None], file: Path | None, option: str
) -> str:
    """Return the name of the edition: that of --edition or, without it, the only one in `noted`.

    noted: Dict from each file to its edition (None if unknown). file, option: File and option for the message. Raises
    SubmissionError if there is no edition, or more than one.
    """
    if arguments.edition is not None:
        return str(arguments.edition)
    editions = set(noted.values())
    if len(editions) == 1 and (only := editions.pop()):
        return only
    if silent := [name for name, edition in noted.items() if edition is None]:
        why = f"the edition of {silent[0]} is not known"
    elif noted:
        listed = ", ".join(f"{name}: {edition}" for name, edition in noted.items())
        why = f"the files have different editions ({listed})"
    else:
        why = f"the edition of {file} is not known" if file else "the edition is not known"
    raise SubmissionError(f"{why}; add {option}")


def _common_edition(systems: Sequence[System], arguments: argparse.Namespace) -> Edition:
    """Return the edition for scoring: that of --edition, otherwise the edition that all systems have in common.

    A CSV belongs to every edition with its header. Raises SubmissionError, with a cure, if the systems have no edition
    in common.
    """
    csvs = [Path(system.name) for system in systems if system.matrix is None]
    if not csvs or (arguments.edition is not None and len(csvs) == 1):
        return chosen_edition(arguments, {system.name: system.edition for system in systems})
    editions_of = {path: read_header_editions(path) for path in csvs}
    shared = [
        edition for edition in EDITIONS.values() if all(edition in editions for editions, _ in editions_of.values())
    ]
    if not shared:
        raise SubmissionError(f"{csvs[0]} and {csvs[1]} have no edition in common; write them again from their scores")
    others = {system.name: system.edition for system in systems if system.matrix is not None}
    if agreed := next((edition.name for edition in shared if {*others.values()} <= {edition.name}), None):
        return chosen_edition(arguments, {str(path): agreed for path in csvs})
    names = " and ".join(edition.name for edition in shared)
    return chosen_edition(arguments, others | {str(path): names for path in csvs}, hint=edition_options(shared))


def read_summaries(names: Sequence[str], arguments: argparse.Namespace) -> Sequence[Summary | MomentSummary]:
    """Return the metrics of all systems (files and runs called `names`), computed by the rules of one edition.

    The systems are CSVs, score matrices and runs that rank clips, or files and runs of moments. The edition is that of
    --edition, otherwise the edition that all systems have in common. arguments: The parsed options of
    add_truth_arguments. Raises SubmissionError for systems that cannot be scored.
    """
    if any(is_moments(name) or is_run_of_moments(name) for name in names):
        return read_moment_summaries(names, arguments)
    systems = [open_system(name) for name in names]
    csvs = [system for system in systems if system.matrix is None]
    if csvs and not arguments.truth:
        raise SubmissionError(f"{csvs[0].name} needs captions to be scored; add --truth FILE, such as {CAPTIONS_FILE}")
    if arguments.truth and not csvs:
        raise SubmissionError(f"{names[0]} contains its truth; leave out --truth")
    truth = read_clotho_truth(arguments.truth) if arguments.truth else None
    edition = _common_edition(systems, arguments)
    return [_summarise_system(system, edition, truth, arguments) for system in systems]


def _summarise_system(system: System, edition: Edition, truth: Truth | None, arguments: argparse.Namespace) -> Summary:
    """Return the metrics of one system, given as a ranked CSV, a matrix CSV or a score matrix."""
    annotations = arguments.annotations
    figures = get_edition(ANNOTATED_EDITION) if annotations else edition
    if system.matrix is None and edition.output == "ranked":
        assert truth is not None
        if arguments.direction == "audio-to-text":
            raise SubmissionError(f"{system.name}: a ranked CSV ranks only clips; give its score matrix to rank texts")
        relevant = read_annotations(annotations, truth) if annotations else None
        queries = ranks_in_csv(Path(system.name), truth, edition, relevant)
        return summarise(queries, figures.recall_ks, figures.map_ks)
    matrix = system.matrix or read_matrix_csv(Path(system.name), edition, truth)
    if annotations:
        matrix = with_annotations(matrix, read_annotations(annotations, matrix_truth(matrix)))
    if arguments.direction == "audio-to-text":
        return summarise_audio_to_text(ranks_from_audio(matrix), edition.recall_ks)
    return summarise_matrix(matrix, figures)
