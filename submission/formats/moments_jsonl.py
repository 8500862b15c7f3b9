"""Submitted moments (2026).

Submission file of moments: one line of JSON per query, with its windows, best first.

{"qid": "a_1", "query": "A dog barks", "vid": "a", "pred_relevant_windows": [[12.0, 14.0], [40.0, 47.0]]}

Times are seconds. During development, a window has its score as a third number, which the public scorer needs; in a
submission it has none. Both forms are read; a file has only one of them.
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
    """The answer to one query.

    line: Line in its file. query, vid: Verbatim, None if missing. windows: [start, end] or [start, end, score], in
    seconds, verbatim; the first is the answer.
    """

    line: int
    qid: str
    query: str | None
    vid: str | None
    windows: list[Window]


def windows_by_query(answers: Iterable[Moments]) -> dict[str, list[Window]]:
    """Return a dict from query id to the windows that were found for it."""
    return {answer.qid: answer.windows for answer in answers}


def is_scored(answers: Sequence[Moments]) -> bool:
    """Whether the windows of a file have scores."""
    return bool(answers) and len(answers[0].windows[0]) == 3


def best_windows(answer: Moments, edition: MomentsEdition) -> list[Window]:
    """Return at most `edition.max_windows` windows of an answer: the best by score or, without scores, the first."""
    windows = sorted(answer.windows, key=lambda window: -window[2]) if is_scored([answer]) else answer.windows
    return windows[: edition.max_windows]


def read_moments(path: Path, edition: MomentsEdition, truth: MomentTruth | None = None) -> list[Moments]:
    """Read the answers of a file of moments. Raises SubmissionError if check_moments finds a problem in it."""
    require_file(path)
    answers, problems, _ = check_moments(path.read_bytes(), edition, truth)
    raise_first_problem(str(path), problems)
    return answers


def write_moments(path: Path, answers: Sequence[Moments], edition: MomentsEdition) -> None:
    """Write a submission of moments: for every query its best windows, as many as the edition counts, without scores.

    Windows with scores are sorted by descending score, equal ones in their order; others keep their order. Numbers are
    unchanged. The file is written whole or not at all.
    Raises SubmissionError for an answer without query or vid, and for anything that check_moments would report; OSError
    when writing fails.
    """
    lines = []
    for answer in answers:
        if answer.query is None or answer.vid is None:
            missing = "query" if answer.query is None else "vid"
            raise SubmissionError(f"line {answer.line}: {missing} is missing; each line of a submission needs it")
        windows = [window[:2] for window in best_windows(answer, edition)]
        lines.append((answer.qid, answer.query, answer.vid, windows))
    _write_lines(path, lines, edition)


def write_scored_moments(path: Path, answers: Sequence[Moments], edition: MomentsEdition) -> None:
    """Write answers to a file for scoring and blending: all their windows as [start, end, score], in their order.

    The line of an answer without query or vid lacks that key. The file is written whole or not at all. Raises
    SubmissionError for anything that check_moments would report.
    """
    _write_lines(path, [(answer.qid, answer.query, answer.vid, answer.windows) for answer in answers], edition)


def _write_lines(path: Path, answers: Sequence[tuple[object, ...]], edition: MomentsEdition) -> None:
    """Write one JSON object per answer, with the keys in the edition's order; a key with the value None is left out."""
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
    """Check the bytes of a file of moments; return its answers, its problems (refused) and its oddities (only noted).

    Problems, so that the file is not scored:

    - a line that is no object (see json_lines.parse_objects), or no line at all;
    - a qid that is no text or repeated;
    - a query without windows;
    - a window that is not two or three numbers, or that ends before it starts;
    - windows with and without scores in one file;
    - with a truth also: a qid that it does not have, and one without a line.

    A blind list, and the kit's internal file of moments, have one problem.

    Oddities, which are scored:

    - windows that cannot be a hit: of no length, or outside the recording;
    - windows that begin before the recording or end after it;
    - repeated windows, and more windows than count;
    - an order that is not that of the scores;
    - scores in a file for submission;
    - a line without query or vid; with a truth also values that differ from it, and another order of queries.

    Stricter than the official script of 2026, which accepts reversed windows and repeated queries. For other problems,
    it ends with a Python error or reads the file anyway.
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
                faults.append((text, "a query repeated"))
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
    """Return a problem if the file is a list of queries without answers (a blind list); None for other files."""
    if not is_blind_list(data):
        return None
    hint = "give the file of the answers, and this one as --queries"
    return Problem(None, f"this is a list of queries without answers; {hint}", "a blind list")


def _line_faults(content: dict[str, Any]) -> Iterator[Fault]:
    """Yield the faults of the query id and of the windows in one line of a file of moments."""
    if fault := fault_of_text(content, "qid"):
        yield fault
    windows = content.get(WINDOWS)
    if WINDOWS not in content:
        hint = "; this is a query of a truth or of a blind list" if TRUE_WINDOWS in content else ""
        yield f"{WINDOWS} is missing{hint}", "no windows"
    elif not isinstance(windows, list):
        yield f"{WINDOWS} must be a list of windows, not {shown(repr(windows))}", "no list of windows"
    elif not windows:
        yield f"{WINDOWS} is empty; each query needs a window or more", "no windows"
    elif faults := list(window_faults(windows, frozenset({2, 3}), "[start, end] or [start, end, score]")):
        yield from faults
    else:
        for number, window in enumerate(windows, start=1):
            if window[1] < window[0]:
                yield f"window {number} ends before it starts: {shown(repr(window))}", "a reversed window"


def _score_form_faults(windows: list[Window], width: int, line: int) -> Iterator[Fault]:
    """Yield a fault if a window of this line has a score but the file's first window has none, or the reverse."""
    for number, window in enumerate(windows, start=1):
        if len(window) != width:
            form, other = ("a score", "none") if len(window) == 3 else ("no score", "one")
            text = f"window {number} has {form}, but the first of line {line} has {other}; all need one, or none"
            yield text, "windows with and without scores"
            return


def _oddities(answer: Moments, parsed: Object, edition: MomentsEdition, truth: MomentTruth | None) -> Iterator[Fault]:
    """Yield the oddities of the windows for one query, such as windows without length or outside the recording."""
    query = truth.queries.get(answer.qid) if truth else None
    length = query.seconds if query else parsed.content.get("duration")
    end_of = float(length) if is_number(length) else math.inf  # type: ignore[arg-type]
    number_of: dict[tuple[float, float], int] = {}
    for number, (start, end, *_) in enumerate(answer.windows, start=1):
        window = f"window {number}, [{start:.10g}, {end:.10g}],"
        if end == start:
            yield f"{window} has no length", "a window of no length"
        elif end <= 0 or start >= end_of:
            yield f"{window} is outside the recording", "a window outside the recording"
        elif start < 0:
            yield f"{window} begins before the recording", "a window that begins before the recording"
        elif end > end_of:
            text = f"{window} ends after the recording, which has {seconds(end_of)}"
            yield text, "a window that ends after the recording"
        if (first := number_of.setdefault((start, end), number)) != number:
            yield f"window {number} repeats window {first}", "a window that stands twice"
    if (count := len(answer.windows)) > edition.max_windows:
        text = f"{count} windows; only the first {edition.max_windows} count"
        yield text, "more windows than count"
    if is_scored([answer]) and any(one[2] < other[2] for one, other in pairwise(answer.windows)):
        text = "scores are not in descending order: R1 uses the first window of the file, mAP the highest score first"
        yield text, "windows not sorted by score"
    for key, value, true_value in (
        ("query", answer.query, query.query if query else None),
        ("vid", answer.vid, query.vid if query else None),
    ):
        if value is None:
            yield f"{key} is missing; scoring needs only qid, but a submission needs {key}", f"no {key}"
        elif true_value is not None and value != true_value:
            text = f"{key} is {shown(value)}, but {shown(true_value)} in the truth; scoring uses only qid"
            yield text, f"another {key}"


def _oddities_of_file(answers: Sequence[Moments], truth: MomentTruth | None) -> Iterator[Problem]:
    """Yield the oddities of a whole file of moments: scores in it, and queries in another order than in the truth."""
    if is_scored(answers):
        hint = "the public scorer needs them; a submission must not have them (`write` removes them)"
        yield Problem(None, f"windows have scores: {hint}", "scores")
    if truth and [answer.qid for answer in answers] != list(truth.queries):
        yield Problem(None, f"its queries are in another order than in {truth.name}", "another order")


def _add_missing(problems: Problems, line_of: dict[str, int], truth: MomentTruth) -> Problems:
    """Return `problems` and one more per query of the truth without a line; only one if no line has a known query."""
    if line_of and not line_of.keys() & truth.queries.keys():
        hint = "it belongs to another split or data set; give the queries that it answers"
        others = [problem for problem in problems if problem.kind != UNKNOWN_QUERY]
        return Problems([*others, Problem(None, f"none of its queries is known: {hint}", OTHER_SET)])
    for query in truth.queries.values() if line_of else ():
        if query.qid not in line_of:
            where = f"line {query.line} of {truth.name}"
            problems.append(Problem(None, f"no line for the query {shown(query.qid)} ({where})", "no line"))
    return problems
