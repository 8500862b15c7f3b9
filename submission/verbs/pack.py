"""Verb pack: make the package.

Pack finished runs into the zip archive that is submitted to the challenge.
"""

import argparse
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from data_tools.files import write_text
from submission.editions import AnyEdition, Edition, MomentsEdition
from submission.errors import SubmissionError
from submission.formats.score_matrix import read_scores
from submission.package.about import about_template
from submission.package.meta import missing_addresses, missing_descriptions
from submission.package.moments_package import require_figures
from submission.package.pack import Submitted, known_answers_message, pack
from submission.runs.finished import FinishedMoments, open_any_finished
from submission.verbs.options import chosen_any_edition, edition_in_facts

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `pack` to its parser."""
    runs = (
        "a system to submit: a finished run, or one of its ranked entries (RUN:ENTRY); the runs of your own "
        "blend, joined by commas; or the score matrix (.npy) of another program"
    )
    parser.add_argument("systems", nargs="+", metavar="RUN[:ENTRY][,RUN...]", help=runs)
    needed = "(default: none; required without --template)"
    about = f"your facts for the package, such as authors; see submission/PACKAGE.md {needed}"
    parser.add_argument("--about", type=Path, metavar="ABOUT.yaml", help=about)
    parser.add_argument("--out", type=Path, metavar="NAME.zip", help=f"the archive to write {needed}")
    parser.add_argument("--template", type=Path, metavar="ABOUT.yaml", help="only write a template of ABOUT.yaml")
    parser.add_argument("--report", type=Path, metavar="REPORT.pdf", help="technical report to add to the package")
    parser.add_argument(
        "--style",
        default="label",
        help="file names in the package: by submission label (label), or by task (task; only 2022 to 2024)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `pack`: pack finished runs into the archive for the challenge; return the exit status."""
    submitted = [_open_system(text) for text in arguments.systems]
    systems = [one.runs for one in submitted]
    if arguments.template:
        _write_template(arguments.template, arguments.systems, submitted)
        print(f"wrote {arguments.template}; fill it in, then run `pack` with --about {arguments.template}")
        return 0
    if not arguments.about or not arguments.out:
        raise SubmissionError(
            "--about or --out is missing; give --about ABOUT.yaml and --out NAME.zip (--template ABOUT.yaml "
            "writes a template of ABOUT.yaml)"
        )
    editions: dict[str, str | None] = {str(run.folder): run.ranked.edition for runs in systems for run in runs}
    editions |= {str(one.matrix): edition_in_facts(read_scores(one.matrix)) for one in submitted if one.matrix}
    edition, out = chosen_any_edition(arguments, editions), arguments.out
    if out.suffix != ".zip" or "." in out.stem:
        raise SubmissionError(f"{out}: the name of a package must end in .zip and have no other dot; rename it")
    path, packed, unready = pack(submitted, arguments.about, edition, out, arguments.report, arguments.style)
    for run in {str(run.folder): run for runs in systems for run in runs}.values():
        for name, expert in run.result.experts.items():
            for file in expert.unpublished:
                problem = "%s: the file %s of %s differs from the published file that the package names"
                log.warning(problem, run.folder, file, name)
    for system in packed:
        print(f"{system.label}: {system.meta['submission']['name']}, {system.description}")
        if system.answered_by and isinstance(edition, Edition):
            print(f"note: {known_answers_message(system)}")
        if system.truth is None and not system.answered_by:
            command = _compare_command(path, edition)
            print(f"note: {system.label}: the queries were not compared with the blind set; to compare them: {command}")
    print("wrote " + ("\n".join(f"{path}: NOT READY, {reason}" for reason in unready) or str(path)))
    return 0


def _open_system(text: str) -> Submitted:
    """Open a system to submit. text: RUN[:ENTRY], several runs RUN[:ENTRY],..., or SCORES.npy of another program.

    Raises the same errors as open_any_finished.
    """
    if text.endswith(".npy"):
        if any(clips is None for clips in read_scores(Path(text)).relevant):
            raise SubmissionError(
                f"{text} has queries without relevant clips, like a blind set; give scores of the split that "
                "you report, and name this file as `output` in about.yaml"
            )
        return Submitted([], matrix=Path(text))
    return Submitted([open_any_finished(name) for name in text.split(",")])


def _write_template(path: Path, names: Sequence[str], submitted: Sequence[Submitted]) -> None:
    """Write a template of about.yaml for the submitted systems. Raises SubmissionError if the file exists.

    names: Systems as given on the command line.
    """
    if path.exists():
        raise SubmissionError(f"{path} already exists; choose another file")
    all_runs = [run for one in submitted for run in one.runs]
    of_moments = [run for run in all_runs if isinstance(run, FinishedMoments)]
    if 0 < len(of_moments) < len(all_runs):
        raise SubmissionError("some runs rank clips, but other runs find moments; make a package for each kind")
    for run in of_moments:
        require_figures(run)
    needed = [
        (name, one.missing_facts(), missing_descriptions(one.runs)) for name, one in zip(names, submitted, strict=True)
    ]
    write_text(path, about_template(needed, missing_addresses(all_runs), bool(of_moments)))


def _compare_command(path: Path, edition: AnyEdition) -> str:
    """Return the command that compares a package with the queries and clips of the blind set."""
    blind = "LIST.jsonl" if isinstance(edition, MomentsEdition) else "QUERIES.csv --audio FOLDER"
    return f"lbar submit check {shlex.quote(str(path))} --edition {edition.name} --queries {blind}"
