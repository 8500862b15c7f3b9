"""Common functions for files of moments.

Functions that several verbs use for files of moments. Such files end in .jsonl.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.cli import counted
from data_tools.documents.json_lines import Window
from data_tools.files import require_other
from submission.editions import MomentsEdition, get_moments_edition
from submission.errors import SubmissionError
from submission.formats.moments_jsonl import (
    check_moments,
    is_scored,
    read_moments,
    windows_by_query,
    write_moments,
)
from submission.formats.moments_truth import MomentTruth, read_moment_truth
from submission.metrics.moments_summary import MomentSummary, summarise_moments, summarise_moments_file, truth_notes

if TYPE_CHECKING:
    from submission.runs.finished import FinishedMoments

SUFFIX = ".jsonl"


def is_moments(name: str | Path) -> bool:
    """Return whether a file name has the suffix .jsonl of files of moments."""
    return Path(name).suffix.lower() == SUFFIX


def moments_edition(arguments: argparse.Namespace) -> MomentsEdition:
    """Return the edition of moments that --edition names; without --edition, the latest one."""
    return get_moments_edition(arguments.edition)


def read_moment_summaries(names: Sequence[str], arguments: argparse.Namespace) -> list[MomentSummary]:
    """Return the metrics of systems that find moments, in the order of `names`.

    names: Files of moments, which are scored by the true windows of --truth, and runs, which contain their true
    windows. arguments: The parsed command line, with the option --truth.
    Raises SubmissionError for systems that cannot be scored, or that have different true windows.
    """
    if others := [name for name in names if not is_moments(name) and not is_run_of_moments(name)]:
        raise SubmissionError(f"{others[0]} ranks clips; moments ({SUFFIX}) can only be compared with moments")
    refuse_options(arguments, annotations=None, direction="text-to-audio")
    edition, files = moments_edition(arguments), [name for name in names if is_moments(name)]
    if files and not arguments.truth:
        raise SubmissionError(
            f"{files[0]} needs true windows to be scored; add --truth FILE, such as castella_test_release.jsonl"
        )
    if arguments.truth and not files:
        raise SubmissionError(f"{names[0]} contains its truth; leave out --truth")
    runs: dict[str, FinishedMoments] = {}
    if listed := [name for name in names if name not in files]:
        from submission.runs.finished import open_finished_moments  # pydantic, not needed for a file

        runs = {name: open_finished_moments(name) for name in listed}
    truths = {name: run.truth for name, run in runs.items()}
    if files:
        truths |= dict.fromkeys(files, read_moment_truth(arguments.truth, edition))
    _require_same_windows(truths, edition)
    summaries = []
    for name in names:
        if run := runs.get(name):
            summaries.append(
                summarise_moments(windows_by_query(run.answers), run.truth, edition, truth_notes(run.truth))
            )
        else:
            summaries.append(summarise_moments_file(Path(name), truths[name], edition))
    return summaries


def _require_same_windows(truths: Mapping[str, MomentTruth], edition: MomentsEdition) -> None:
    """Raises SubmissionError if two truths have different true windows for a query.

    truths: Dict from the name of a run or file to its truth.
    """

    def counted_windows(truth: MomentTruth, qid: str) -> list[Window]:
        """Return a query's true windows, sorted, without those that are empty or longer than the edition allows."""
        windows = truth.queries[qid].windows or []
        return sorted(window for window in windows if 0 < window[1] - window[0] <= edition.max_seconds)

    (name, first), *others = truths.items()
    for other, truth in others:
        for qid in first.queries:
            if qid in truth.queries and counted_windows(truth, qid) != counted_windows(first, qid):
                raise SubmissionError(
                    f"{name} and {other} have different true windows, for example for the query {qid}; rank the older "
                    "run again, or compare its file of moments (.jsonl) by --truth"
                )


def is_run_of_moments(name: str) -> bool:
    """Return whether `name` is a RUN or RUN:ENTRY that finds moments. Raises SubmissionError for other folders."""
    if not is_run(name):
        return False
    from submission.runs.finished import has_moments  # pydantic, not needed for a file

    return has_moments(name)


def is_run(name: str) -> bool:
    """Return whether `name` is a folder (RUN), or a folder with the name of an entry (RUN:ENTRY)."""
    path, folder = Path(name), Path(name.rpartition(":")[0] or name)
    return path.is_dir() or (folder.is_dir() and not path.exists())


def moment_reference(edition: MomentsEdition, arguments: argparse.Namespace) -> MomentTruth | None:
    """Read the queries, with their true windows if known, from the file of --truth or --queries; None without both.

    Raises SubmissionError for options that only work with files that rank clips.
    """
    refuse_options(arguments, scores=None, audio=None, ranked=False)
    listed = arguments.truth or arguments.queries
    return read_moment_truth(listed, edition) if listed else None


def write_moments_file(source: Path, out: Path, arguments: argparse.Namespace) -> str:
    """Write the windows in the file `source` without scores to a file to submit; return a message on the new file."""
    refuse_options(arguments, ranked=False)
    edition = moments_edition(arguments)
    if not is_moments(out):
        raise SubmissionError(f"{out}: a submission of moments is JSON lines; choose a name ending in {SUFFIX}")
    require_other(out, [source])
    answers = read_moments(source, edition)
    if out.is_file() and not arguments.force and (problem := _overwrite_problem(out, edition)):
        raise SubmissionError(f"{out} already exists, and {problem}; choose another file, or add --force")
    write_moments(out, answers, edition)
    return (
        f"wrote {out}: {counted(len(answers), 'query')}, at most {edition.max_windows} windows per query, without "
        "scores"
    )


def _overwrite_problem(path: Path, edition: MomentsEdition) -> str:
    """Return the reason why a file must not be overwritten; "" if it may be.

    A file that is not a file of moments must not be overwritten, nor one with scores, which would be lost.
    """
    answers, _, _ = check_moments(path.read_bytes(), edition)
    if not answers:
        return "it is not a file of moments"
    return "its windows have scores, which would be lost" if is_scored(answers) else ""


def refuse_options(arguments: argparse.Namespace, **usual: object) -> None:
    """Raises SubmissionError if an option that does not work with moments differs from its default in `usual`.

    usual: Dict from the name of each such option to its default value.
    """
    for option, value in usual.items():
        if getattr(arguments, option) != value:
            raise SubmissionError(f"--{option} does not work with moments ({SUFFIX}); leave it out")
