"""Verb pack: make the package.

Make the archive to submit from finished runs.
"""

import argparse
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from data_tools.files import write_text
from submission.editions import AnyEdition, Edition, MomentsEdition
from submission.errors import SubmissionError
from submission.package.about import about_template
from submission.package.meta import missing_addresses, missing_descriptions
from submission.package.moments_package import require_figures
from submission.package.pack import known_answers_message, pack
from submission.runs.finished import Finished, FinishedMoments, open_any_finished
from submission.verbs.options import chosen_any_edition

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `pack` to its parser."""
    runs = "one system each: a finished run (and one of its ranked entries), or the runs of a blend"
    parser.add_argument("runs", nargs="+", metavar="RUN[:ENTRY][,RUN...]", help=runs)
    needed = "(default: none; required without --template)"
    about = f"facts for the package that runs do not have; see submission/PACKAGE.md {needed}"
    parser.add_argument("--about", type=Path, metavar="ABOUT.yaml", help=about)
    parser.add_argument("--out", type=Path, metavar="NAME.zip", help=f"the archive to write {needed}")
    parser.add_argument("--template", type=Path, metavar="ABOUT.yaml", help="only write a file to fill in, for --about")
    parser.add_argument("--report", type=Path, metavar="REPORT.pdf", help="technical report to add to the package")
    parser.add_argument(
        "--style",
        default="label",
        help="name the package's files after the submission label (label), or after the task (task; only 2022 to 2024)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `pack` with its parsed arguments; return the exit status."""
    systems = [[open_any_finished(name) for name in text.split(",")] for text in arguments.runs]
    if arguments.template:
        _write_template(arguments.template, arguments.runs, systems)
        print(f"wrote {arguments.template}; fill it in, and give it as --about")
        return 0
    if not arguments.about or not arguments.out:
        raise SubmissionError("give --about ABOUT.yaml and --out NAME.zip; --template ABOUT.yaml writes an ABOUT.yaml")
    editions = {str(run.folder): run.ranked.edition for system in systems for run in system}
    edition, out = chosen_any_edition(arguments, editions), arguments.out
    if out.suffix != ".zip" or "." in out.stem:
        raise SubmissionError(f"{out}: the name of a package must end in .zip and have no other dot")
    path, packed, unready = pack(systems, arguments.about, edition, out, arguments.report, arguments.style)
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
            print(f"note: {system.label}: its queries were not compared; to do so: {_compare_command(path, edition)}")
    print("wrote " + ("\n".join(f"{path}: NOT READY, {reason}" for reason in unready) or str(path)))
    return 0


def _write_template(path: Path, names: Sequence[str], systems: Sequence[Sequence[Finished]]) -> None:
    """Write a template of the participant's facts, to fill in before packing. Raises SubmissionError if it exists."""
    if path.exists():
        raise SubmissionError(f"{path} already exists; choose another file")
    all_runs = [run for runs in systems for run in runs]
    of_moments = [run for run in all_runs if isinstance(run, FinishedMoments)]
    if 0 < len(of_moments) < len(all_runs):
        raise SubmissionError("some runs rank clips, others moments; make two packages")
    for run in of_moments:
        require_figures(run)
    needed = [
        (
            name,
            ["output", "scored"] if len(runs) > 1 else [] if runs[0].ranks_blind else ["output"],
            missing_descriptions(runs),
        )
        for name, runs in zip(names, systems, strict=True)
    ]
    write_text(path, about_template(needed, missing_addresses(all_runs), bool(of_moments)))


def _compare_command(path: Path, edition: AnyEdition) -> str:
    """Return the command that checks a package against the queries and clips of the blind set."""
    blind = "LIST.jsonl" if isinstance(edition, MomentsEdition) else "QUERIES.csv --audio FOLDER"
    return f"python -m submission check {shlex.quote(str(path))} --edition {edition.name} --queries {blind}"
