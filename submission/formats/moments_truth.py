"""Queries of moments and true windows.

Queries of moments in the published format of CASTELLA and of the blind list of 2026: one line of JSON per query.

A line has the recording of its query and, except in a blind list, the windows where the query is true.
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
    """One query.

    line: Line in its file. vid: Id of its recording. seconds: Length of the recording; None if the file lacks it.
    windows: [start, end] in seconds, verbatim; None in a blind list.
    """

    line: int
    qid: str
    query: str
    vid: str
    seconds: float | None
    windows: list[Window] | None


@dataclass(frozen=True)
class MomentTruth:
    """Queries of a file, a truth or a blind list.

    Attributes:
        queries: By id, in the order of the file.
        name: Of the file.
        notes: Oddities, which are scored.
    """

    queries: Mapping[str, MomentQuery]
    name: str
    notes: list[Problem]

    @cached_property
    def similar_ids(self) -> Nearest:
        """Search index of the query ids, to suggest the most similar one for an unknown id."""
        return Nearest(self.queries, TEXT_WAYS)

    @property
    def is_blind(self) -> bool:
        """Whether no query has true windows."""
        return all(query.windows is None for query in self.queries.values())

    def windows(self) -> dict[str, list[Window]]:
        """Return the true windows by query id. Raises SubmissionError for a blind list."""
        if self.is_blind:
            hint = "give a file with them; a blind set is scored by the organisers"
            raise SubmissionError(f"{self.name} has no {TRUE_WINDOWS} to score against; {hint}")
        return {qid: query.windows or [] for qid, query in self.queries.items()}


def read_moment_truth(path: Path, edition: MomentsEdition) -> MomentTruth:
    """Read a truth of moments from a file. Raises SubmissionError if check_moment_truth finds a problem.

    The oddities become the truth's notes: CASTELLA as published has windows after the end of a recording, which are
    scored unchanged.
    """
    require_file(path)
    queries, problems, notes = check_moment_truth(path.read_bytes(), edition)
    raise_first_problem(str(path), problems)
    return MomentTruth(queries, path.name, notes)


def is_truth(data: bytes) -> bool:
    """Return whether a file's bytes begin with a query of a truth of moments rather than with an answer."""
    first = first_object(data)
    return TRUE_WINDOWS in first and WINDOWS not in first


def internal_file_problem(data: bytes) -> Problem | None:
    """Return a problem if the file is a moments file of this kit, not one of the challenge; None for other files."""
    first = first_object(data)
    if "qid" in first or not set(KIT_KEYS) <= first.keys():
        return None
    found = f"this is the kit's internal file of moments ({', '.join(KIT_KEYS)})"
    return Problem(None, f"{found}; give the published list, whose lines have qid, query and vid", "the kit's own")


def is_blind_list(data: bytes) -> bool:
    """Return whether a file's bytes are a blind list: all lines have qid, query and vid, and none has windows."""
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
    """Check the bytes of a truth of moments; return its queries, its problems (refused) and its oddities (only noted).

    A line has qid, query and vid as text, and optionally duration in seconds. All lines or none have relevant_windows,
    a list of [start, end] in seconds. Other keys are ignored.

    Oddities, which are scored as in the official script:

    - true windows that are dropped: without length, reversed, or longer than the edition counts;
    - true windows that begin before 0, or begin or end after the end of the recording;
    - a query without true windows;
    - a recording with several lengths in its lines.
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
            before = f"it is already on line {queries[qid].line}"
            faults.append((f"the query {shown(qid)} is repeated; {before}", "a query repeated"))
        if has_windows is None:
            has_windows = TRUE_WINDOWS in content
        if has_windows != (TRUE_WINDOWS in content):
            presence = "has" if TRUE_WINDOWS in content else "has no"
            faults.append(
                (f"{presence} {TRUE_WINDOWS}, unlike line 1; all need it, or none", f"{TRUE_WINDOWS} in part")
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
                (f"the recording {shown(query.vid)} has two lengths, {lengths}", "a recording of two lengths")
            )
        notes.add(line, oddities)
    return queries, problems, notes


def _oddities(query: MomentQuery, edition: MomentsEdition) -> Iterator[Fault]:
    """Yield the oddities of a query's true windows: no window, no length, too long, or outside the recording."""
    if query.windows == []:
        yield f"the query {shown(query.qid)} has no true window and is in no mean", "a query without a true window"
    for start, end in query.windows or ():
        window = f"the true window [{start:.10g}, {end:.10g}]"
        if end <= start:
            yield f"{window} has no length and does not count", "a true window without length"
            continue
        if end - start > edition.max_seconds:
            text = f"{window} is longer than {seconds(edition.max_seconds)} and does not count"
            yield text, "a true window that is too long"
        if start < 0:
            yield f"{window} begins before the recording", "a true window before the start"
        if query.seconds is not None and end > query.seconds:
            where = "begins" if start >= query.seconds else "ends"
            text = f"{window} {where} after the end of the recording, which has {seconds(query.seconds)}"
            yield text, f"a true window that {where} after the end"


def format_size(truth: MomentTruth) -> str:
    """Return the numbers of queries and recordings of a truth in words, e.g. `177 queries of 100 recordings`."""
    recordings = {query.vid for query in truth.queries.values()}
    return f"{counted(len(truth.queries), 'query')} of {counted(len(recordings), 'recording')}"
