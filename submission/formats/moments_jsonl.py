"""Submitted moments (2026).

File of moments: one line of JSON per query, with the windows of a recording that match the query, best first.

{"qid": "a_1", "query": "A dog barks", "vid": "a", "pred_relevant_windows": [[12.0, 14.0], [40.0, 47.0]]}

Times are seconds. During development, each window has its score as a third number, which the public scorer needs. In a
submitted file, windows have no score. Both forms are read, but one file must not mix them.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from data_tools.documents.json_lines import (
    TRUE_WINDOWS,
    WINDOWS,
    Object,
    Window,
    fault_of_text,
    is_number,
    parse_objects,
    seconds,
    window_faults,
)
from data_tools.documents.problems import Fault, Problem, Problems, shown
from data_tools.files import require_file
from submission.editions import MomentsEdition
from submission.errors import SubmissionError
from submission.formats.columns import OTHER_SET, UNKNOWN_QUERY, raise_first_problem, write_checked
from submission.formats.moments_truth import MomentTruth, internal_file_problem, is_blind_list
from submission.formats.truth import suggestion

NOT_IN_PACKAGES = frozenset({"scores", "no query", "no vid"})  # kinds of oddities that a package must not have


@dataclass(frozen=True)
class Moments:
    """Windows that a system found for one query: a line of a file of moments.

    Attributes:
        line: Line number in the file.
        qid: Id of the query.
        query: Text of the query, unchanged; None if the line lacks it.
        vid: Id of the recording, unchanged; None if the line lacks it.
        windows: [start, end] or [start, end, score] as in the file, in seconds; the best one first.
    """

    line: int
    qid: str
    query: str | None
    vid: str | None
    windows: list[Window]


def windows_by_query(answers: Iterable[Moments]) -> dict[str, list[Window]]:
    """Return a dict from query id to the windows found for the query. answers: Lines of a file of moments."""
    return {answer.qid: answer.windows for answer in answers}


def is_scored(answers: Sequence[Moments]) -> bool:
    """Return whether the windows in a file of moments have scores. answers: Lines of the file."""
    return bool(answers) and len(answers[0].windows[0]) == 3


def best_windows(answer: Moments, edition: MomentsEdition) -> list[Window]:
    """Return a query's windows that count in the edition: those with the best scores or, without scores, the first."""
    windows = sorted(answer.windows, key=lambda window: -window[2]) if is_scored([answer]) else answer.windows
    return windows[: edition.max_windows]


def read_moments(path: Path, edition: MomentsEdition, truth: MomentTruth | None = None) -> list[Moments]:
    """Read each query's windows from a file of moments. Raises SubmissionError if check_moments finds a problem."""
    require_file(path)
    answers, problems, _ = check_moments(path.read_bytes(), edition, truth)
    raise_first_problem(str(path), problems)
    return answers


def write_moments(path: Path, answers: Sequence[Moments], edition: MomentsEdition) -> None:
    """Write a file of moments to submit: the best windows of every query without their scores.

    The number of windows per query is at most the number that the edition counts. Windows with scores are sorted by
    descending score; windows with equal scores, or without scores, stay in their order. Times are unchanged. The file
    is written completely or not at all.
    Raises SubmissionError for a query without text (query) or recording (vid), and for anything that check_moments
    would report. Raises OSError when writing fails.
    """
    lines = []
    for answer in answers:
        if answer.query is None or answer.vid is None:
            missing = "query" if answer.query is None else "vid"
            raise SubmissionError(
                f"line {answer.line}: the key {missing} is missing; add it, since a submission needs it"
            )
        windows = [window[:2] for window in best_windows(answer, edition)]
        lines.append((answer.qid, answer.query, answer.vid, windows))
    _write_lines(path, lines, edition)


def write_scored_moments(path: Path, answers: Sequence[Moments], edition: MomentsEdition) -> None:
    """Write all windows of every query with their scores, unsorted, to a file of moments for scoring and blending.

    If the text (query) or recording (vid) of a query is unknown, its line lacks that key. The file is written
    completely or not at all. Raises SubmissionError for anything that check_moments would report.
    """
    _write_lines(path, [(answer.qid, answer.query, answer.vid, answer.windows) for answer in answers], edition)


def _write_lines(path: Path, answers: Sequence[tuple[object, ...]], edition: MomentsEdition) -> None:
    """Write a file of moments, one line of JSON per query.

    answers: For each query, the values of the keys that the edition requires (`edition.line`), in the same order. Keys
    with the value None are left out.
    """
    lines = []
    for values in answers:
        line = {key: value for key, value in zip(edition.line, values, strict=True) if value is not None}
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    data = "".join(lines).encode()
    _, problems, _ = check_moments(data, edition)
    write_checked(path, data, problems)


def check_moments(
    data: bytes, edition: MomentsEdition, truth: MomentTruth | None = None
) -> tuple[list[Moments], list[Problem], list[Problem]]:
    """Check the bytes of a file of moments; return each query's windows, the problems, and the accepted oddities.

    truth: The queries that the file should have, with true windows or as a blind list; None if unknown.

    A file with problems is refused:

    - a line that is no JSON object (see json_lines.parse_objects), or a file without lines;
    - a query id (qid) that is no text, or is repeated;
    - a query without windows;
    - a window that is not two or three numbers, or that ends before it starts;
    - a file with windows both with and without scores;
    - if a truth is given: a query id that the truth lacks, or a query of the truth without a line.

    A list of queries without windows (blind list), or the kit's internal file of moments, gets a single problem.

    A file with oddities is accepted and scored; they are only reported:

    - windows that cannot match a true window: without length, or outside the recording;
    - windows that begin before the recording or end after it;
    - repeated windows, or more windows than the edition counts;
    - windows that are not in the order of their scores;
    - windows with scores, which a submitted file must not have;
    - a line without query or vid;
    - if a truth is given: another query text or recording than in the truth, or another order of queries.

    This check is stricter than the official script of 2026, which accepts reversed windows and repeated queries. For
    other problems, that script ends with a Python error or reads the file anyway.
    """
    answers: list[Moments] = []
    problems, notes = Problems(), Problems()
    line_of: dict[str, int] = {}
    width: tuple[int, int] | None = None  # numbers per window, and the line they were taken from
    if problem := internal_file_problem(data) or _blind_list_problem(data):
        return [], [problem], []
    for parsed in problems.except_for(parse_objects(data)):
        line, content = parsed
        faults = list(_line_faults(content))
        if not faults:
            width = width or (len(content[WINDOWS][0]), line)
            faults += _score_form_faults(content[WINDOWS], *width)
        if isinstance(qid := content.get("qid"), str) and qid.strip():
            if line_of.setdefault(qid, line) != line:
                text = f"the query {shown(qid)} is repeated; it is already on line {line_of[qid]}"
                faults.append((text, "a query is repeated"))
            if truth and qid not in truth.queries:
                faults.append((f"unknown query {shown(qid)}{suggestion(truth.similar_ids, qid)}", UNKNOWN_QUERY))
        problems.add(line, faults)
        if not faults:
            texts = {key: content[key] for key in ("query", "vid") if isinstance(content.get(key), str)}
            answer = Moments(line, content["qid"], texts.get("query"), texts.get("vid"), content[WINDOWS])
            answers.append(answer)
            notes.add(line, _oddities(answer, parsed, edition, truth))
    if truth:
        problems = _add_missing(problems, line_of, truth)
    if answers and not problems:
        notes += _oddities_of_file(answers, truth)
    return answers, problems, notes


def _blind_list_problem(data: bytes) -> Problem | None:
    """Return a problem if the file is a list of queries without windows (a blind list); None for other files."""
    if not is_blind_list(data):
        return None
    text = (
        "this is a list of queries without windows; give the file with your windows, and add --queries with this list"
    )
    return Problem(None, text, "the file is a blind list")


def _line_faults(content: dict[str, Any]) -> Iterator[Fault]:
    """Yield the faults of the query id and of the windows in one line of a file of moments."""
    if fault := fault_of_text(content, "qid"):
        yield fault
    windows = content.get(WINDOWS)
    if WINDOWS not in content:
        cure = "give the file with your windows, not the truth" if TRUE_WINDOWS in content else "add it"
        yield f"the key {WINDOWS} is missing; {cure}", "a query has no windows"
    elif not isinstance(windows, list):
        yield f"{WINDOWS} must be a list of windows, not {shown(repr(windows))}", "the windows are not a list"
    elif not windows:
        yield f"{WINDOWS} is empty; each query needs at least one window", "a query has no windows"
    elif faults := list(window_faults(windows, frozenset({2, 3}), "[start, end] or [start, end, score]")):
        yield from faults
    else:
        for number, window in enumerate(windows, start=1):
            if window[1] < window[0]:
                yield f"window {number} ends before it starts: {shown(repr(window))}", "a window ends before it starts"


def _score_form_faults(windows: list[Window], width: int, line: int) -> Iterator[Fault]:
    """Yield a fault if some windows of a file have a score and others have none.

    windows: Windows of one line. width: Number of values of the file's first window: 3 with a score, 2 without. line:
    Number of the line that contains the first window.
    """
    for number, window in enumerate(windows, start=1):
        if len(window) != width:
            form, other = ("a score", "none") if len(window) == 3 else ("no score", "one")
            yield (
                f"window {number} has {form}, but the first window of line {line} has {other}; give all windows a "
                "score, or none of them",
                "only some windows have scores",
            )
            return


def _oddities(answer: Moments, parsed: Object, edition: MomentsEdition, truth: MomentTruth | None) -> Iterator[Fault]:
    """Yield the oddities of one line of a file of moments, such as windows without length or outside the recording."""
    query = truth.queries.get(answer.qid) if truth else None
    length = query.seconds if query else parsed.content.get("duration")
    end_of = float(length) if is_number(length) else math.inf  # type: ignore[arg-type]
    number_of: dict[tuple[float, float], int] = {}
    for number, (start, end, *_) in enumerate(answer.windows, start=1):
        window = f"window {number}, [{start:.10g}, {end:.10g}],"
        if end == start:
            yield f"{window} has no length", "a window has no length"
        elif end <= 0 or start >= end_of:
            yield f"{window} is outside the recording", "a window is outside the recording"
        elif start < 0:
            yield f"{window} begins before the recording", "a window begins before the recording"
        elif end > end_of:
            text = f"{window} ends after the recording, which lasts {seconds(end_of)}"
            yield text, "a window ends after the recording"
        if (first := number_of.setdefault((start, end), number)) != number:
            yield f"window {number} repeats window {first}", "a window occurs twice"
    if (count := len(answer.windows)) > edition.max_windows:
        text = f"the line has {count} windows, but metrics use only the first {edition.max_windows}"
        yield text, "a line has more windows than metrics use"
    if is_scored([answer]) and any(one[2] < other[2] for one, other in pairwise(answer.windows)):
        text = (
            "windows are not sorted by descending score: R1 uses the first window, mAP the window with the best score"
        )
        yield text, "windows are not sorted by score"
    for key, value, true_value in (
        ("query", answer.query, query.query if query else None),
        ("vid", answer.vid, query.vid if query else None),
    ):
        if value is None:
            yield f"the key {key} is missing; add it before you submit the file (scoring needs only qid)", f"no {key}"
        elif true_value is not None and value != true_value:
            text = f"{key} is {shown(value)}, but {shown(true_value)} in the truth; correct it (scoring uses only qid)"
            yield text, f"{key} differs from the truth"


def _oddities_of_file(answers: Sequence[Moments], truth: MomentTruth | None) -> Iterator[Problem]:
    """Yield the oddities of a whole file of moments: windows have scores, or queries are not in the truth's order."""
    if is_scored(answers):
        text = (
            "windows have scores, which the public scorer needs, but a submission must not have (`write` removes them)"
        )
        yield Problem(None, text, "scores")
    if truth and [answer.qid for answer in answers] != list(truth.queries):
        yield Problem(
            None, f"the queries of this file are in another order than in {truth.name}", "queries are in another order"
        )


def _add_missing(problems: Problems, line_of: dict[str, int], truth: MomentTruth) -> Problems:
    """Return `problems` plus one problem per query of the truth that has no line in the file.

    The truth contains the queries that the file should have. If it has none of the file's queries, a single problem
    replaces the problems of the unknown queries.
    """
    if line_of and not line_of.keys() & truth.queries.keys():
        text = (
            "no query of this file is known: the file belongs to another split or data set; give the queries of that "
            "split or data set"
        )
        others = [problem for problem in problems if problem.kind != UNKNOWN_QUERY]
        return Problems([*others, Problem(None, text, OTHER_SET)])
    for query in truth.queries.values() if line_of else ():
        if query.qid not in line_of:
            problems.append(
                Problem(
                    None,
                    f"no line for the query {shown(query.qid)} (line {query.line} of {truth.name})",
                    "a query has no line",
                )
            )
    return problems
