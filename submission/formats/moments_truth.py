"""Queries of moments and true windows.

Read queries and true windows in the published format of CASTELLA and of the 2026 challenge: one line of JSON per query.

A line has a query, its recording, and the windows of the recording that the query describes. A blind list is such a
file without windows: the organisers do not publish them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from data_tools.cli import counted
from data_tools.datasets.nearest import TEXT_WAYS, Nearest
from data_tools.documents.json_lines import (
    TRUE_WINDOWS,
    WINDOWS,
    Object,
    Window,
    first_object,
    parse_objects,
    query_faults,
    seconds,
)
from data_tools.documents.problems import Fault, Problem, Problems, shown
from data_tools.files import require_file
from submission.editions import MomentsEdition
from submission.errors import SubmissionError
from submission.formats.columns import raise_first_problem

KIT_KEYS = ("id", "text", "clip", "windows")  # of the internal moment files of data_tools and system


@dataclass(frozen=True)
class MomentQuery:
    """A query in a file with true windows, or in a blind list.

    Attributes:
        line: Line number in the file.
        qid: Id of the query.
        query: Text of the query.
        vid: Id of the recording that the query is about.
        seconds: Length of the recording; None if the file lacks it.
        windows: True windows, [start, end] in seconds as in the file; None in a blind list.
    """

    line: int
    qid: str
    query: str
    vid: str
    seconds: float | None
    windows: list[Window] | None


@dataclass(frozen=True)
class MomentTruth:
    """Queries that a submitted file must contain, from a file with true windows, or from a blind list without them.

    Attributes:
        queries: Queries by id, in the order of the file.
        name: Name of the file.
        notes: Oddities of the file, such as true windows without length; they do not prevent scoring.
    """

    queries: Mapping[str, MomentQuery]
    name: str
    notes: list[Problem]

    @cached_property
    def similar_ids(self) -> Nearest:
        """Search index of the query ids, used to suggest the known id that is most similar to an unknown id."""
        return Nearest(self.queries, TEXT_WAYS)

    @property
    def is_blind(self) -> bool:
        """Whether no query has true windows."""
        return all(query.windows is None for query in self.queries.values())

    def windows(self) -> dict[str, list[Window]]:
        """Return a dict from query id to true windows. Raises SubmissionError for a blind list, which has none."""
        if self.is_blind:
            raise SubmissionError(
                f"{self.name} has no true windows ({TRUE_WINDOWS}), which scoring needs; give a file with true windows "
                "(only the organisers can score a blind set)"
            )
        return {qid: query.windows or [] for qid, query in self.queries.items()}


def read_moment_truth(path: Path, edition: MomentsEdition) -> MomentTruth:
    """Read queries and true windows from a file. Raises SubmissionError if check_moment_truth finds a problem.

    Oddities are stored in the notes of the truth. For example, the published CASTELLA has windows after the end of a
    recording; they are scored unchanged.
    """
    require_file(path)
    queries, problems, notes = check_moment_truth(path.read_bytes(), edition)
    raise_first_problem(str(path), problems)
    return MomentTruth(queries, path.name, notes)


def is_truth(data: bytes) -> bool:
    """Return whether a file (`data`) has true windows, not windows found by a system. Only its first line is read."""
    first = first_object(data)
    return TRUE_WINDOWS in first and WINDOWS not in first


def internal_file_problem(data: bytes) -> Problem | None:
    """Return a problem if the file has this kit's own format of moments, not that of the challenge; None otherwise."""
    first = first_object(data)
    if "qid" in first or not set(KIT_KEYS) <= first.keys():
        return None
    text = (
        f"this is the kit's internal file of moments, with the keys {', '.join(KIT_KEYS)}; give the published list, "
        "whose lines have qid, query and vid"
    )
    return Problem(None, text, "the kit's own")


def is_blind_list(data: bytes) -> bool:
    """Return whether a file is a blind list: all lines have qid, query and vid, and no line has windows."""
    return all(
        isinstance(line, Object)
        and {"qid", "query", "vid"} <= line.content.keys()
        and WINDOWS not in line.content
        and not any(isinstance(value, list) for value in line.content.values())
        for line in parse_objects(data)
    )


def check_moment_truth(
    data: bytes, edition: MomentsEdition
) -> tuple[dict[str, MomentQuery], list[Problem], list[Problem]]:
    """Check the bytes of a file with true windows; return queries by id, problems, and accepted oddities.

    A file with problems is refused. Each line must have qid, query and vid as text, and may have duration in seconds.
    All lines or no lines have relevant_windows, a list of [start, end] in seconds. Other keys are ignored.

    A file with oddities is accepted, and scored like in the official script. Oddities are:

    - true windows that are not counted: without length, reversed, or longer than the edition allows;
    - true windows that begin before 0, or begin or end after the end of the recording;
    - a query without true windows;
    - a recording whose length differs between lines.
    """
    queries: dict[str, MomentQuery] = {}
    problems, notes = Problems(), Problems()
    has_windows: bool | None = None
    seconds_of: dict[str, float | None] = {}
    if problem := internal_file_problem(data):
        return {}, [problem], []
    for line, content in problems.except_for(parse_objects(data)):
        faults = list(query_faults(content))
        if isinstance(qid := content.get("qid"), str) and qid in queries:
            first = queries[qid].line
            faults.append((f"the query {shown(qid)} is repeated; it is already on line {first}", "a query is repeated"))
        if has_windows is None:
            has_windows = TRUE_WINDOWS in content
        if has_windows != (TRUE_WINDOWS in content):
            presence = "has" if TRUE_WINDOWS in content else "has no"
            faults.append(
                (
                    f"the line {presence} {TRUE_WINDOWS}, unlike the first line; give this key in all lines or in none",
                    f"only some lines have {TRUE_WINDOWS}",
                )
            )
        problems.add(line, faults)
        if faults:
            continue
        windows = content.get(TRUE_WINDOWS)
        query = MomentQuery(line, content["qid"], content["query"], content["vid"], content.get("duration"), windows)
        queries[query.qid] = query
        oddities = list(_oddities(query, edition))
        if (first_length := seconds_of.setdefault(query.vid, query.seconds)) != query.seconds:
            lengths = " and ".join(
                "none" if length is None else seconds(length) for length in (query.seconds, first_length)
            )
            oddities.append(
                (
                    f"the recording {shown(query.vid)} has different lengths, {lengths}",
                    "a recording has several lengths",
                )
            )
        notes.add(line, oddities)
    return queries, problems, notes


def _oddities(query: MomentQuery, edition: MomentsEdition) -> Iterator[Fault]:
    """Yield the oddities of a query's true windows: no window, no length, too long, or outside the recording."""
    if query.windows == []:
        text = f"the query {shown(query.qid)} has no true window, so metrics leave it out"
        yield text, "a query has no true window"
    for start, end in query.windows or ():
        window = f"the true window [{start:.10g}, {end:.10g}]"
        if end <= start:
            yield f"{window} has no length and is not counted", "a true window has no length"
            continue
        if end - start > edition.max_seconds:
            text = f"{window} is longer than {seconds(edition.max_seconds)} and is not counted"
            yield text, "a true window is too long"
        if start < 0:
            yield f"{window} begins before the recording", "a true window begins before the recording"
        if query.seconds is not None and end > query.seconds:
            begins_or_ends = "begins" if start >= query.seconds else "ends"
            text = f"{window} {begins_or_ends} after the end of the recording, which lasts {seconds(query.seconds)}"
            yield text, f"a true window {begins_or_ends} after the end"


def format_size(truth: MomentTruth) -> str:
    """Return the numbers of queries and recordings of a truth as text, e.g. `177 queries of 100 recordings`."""
    recordings = {query.vid for query in truth.queries.values()}
    return f"{counted(len(truth.queries), 'query')} of {counted(len(recordings), 'recording')}"
