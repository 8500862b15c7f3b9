"""Files of moments (2026): one line of JSON per query.

Found:  {"qid": "a_1", "query": "A dog barks", "vid": "a", "pred_relevant_windows": [[12, 14, 0.9], [40, 47, 0.2]]}
True:   {"qid": "a_1", "query": "A dog barks", "vid": "a", "duration": 60, "relevant_windows": [[12, 15]]}

Times are seconds. Windows have scores during development; a submitted file has none. A blind list has no windows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from data_tools.errors import KitError
from data_tools.files import require_file, writing
from data_tools.moments import read_published
from submission.editions import MAX_WINDOWS
from submission.formats.problems import Problem, require_none

Seconds = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Window = list[float]
Text = Annotated[str, Field(min_length=1)]
Qid = Annotated[Text, BeforeValidator(lambda qid: str(qid) if type(qid) is int else qid)]  # UnAV-100 has numbers


def _require_forward(window: Window) -> Window:
    if window[1] < window[0]:
        raise ValueError("a window ends before it starts")
    return window


Found = Annotated[list[Seconds], Field(min_length=2, max_length=3), AfterValidator(_require_forward)]


@dataclass(frozen=True)
class MomentQuery:
    """A query with its true windows.

    Attributes:
        seconds: Length of the recording, if it is known.
        windows: None in a blind list.
    """

    line: int
    qid: str
    query: str
    vid: str
    seconds: float | None = None
    windows: list[Window] | None = None


@validated(frozen=True, config=ConfigDict(populate_by_name=True))
class Answer:
    """The windows found for a query, best first."""

    line: int
    qid: Qid
    query: str
    vid: Text
    windows: Annotated[list[Found], Field(alias="pred_relevant_windows", min_length=1)]

    @property
    def is_scored(self) -> bool:
        """Whether the windows have scores."""
        return len(self.windows[0]) == 3

    @property
    def ranked(self) -> list[Window]:
        """The windows by falling score, if they have scores."""
        return sorted(self.windows, key=lambda window: -window[2]) if self.is_scored else self.windows


class MomentTruth(NamedTuple):
    """Queries by id.

    Attributes:
        name: Name of the file.
    """

    queries: Mapping[str, MomentQuery]
    name: str

    @property
    def is_blind(self) -> bool:
        """Whether no query has true windows."""
        return all(query.windows is None for query in self.queries.values())

    def windows(self) -> dict[str, list[Window]]:
        """Return the true windows of each query.

        Raises KitError for a blind list.
        """
        if self.is_blind:
            raise KitError(f"{self.name}: no true windows; only the organisers can score a blind list")
        return {qid: query.windows or [] for qid, query in self.queries.items()}


class Checked(NamedTuple):
    """Content of a file.

    Attributes:
        notes: Unusual content, which is scored anyway.
    """

    answers: list[Answer]
    problems: list[Problem]
    notes: list[Problem]


def read_moment_truth(path: Path) -> MomentTruth:
    """Read queries with true windows, or a blind list."""
    queries = {}
    for number, (_, line) in enumerate(read_published(path), 1):
        windows = None if line.relevant_windows is None else [[*window] for window in line.relevant_windows]
        queries[str(line.qid)] = MomentQuery(number, str(line.qid), line.query, line.vid, line.duration, windows)
    return MomentTruth(queries, path.name)


def read_answers(path: Path, truth: MomentTruth | None = None) -> list[Answer]:
    """Read found windows. Raises KitError for a file with problems."""
    require_file(path)
    answers, problems, _ = check_answers(path.read_bytes(), truth)
    require_none(path, problems)
    return answers


def check_answers(data: bytes, truth: MomentTruth | None = None) -> Checked:
    """Check found windows.

    With a truth, the file must have all queries and no others.

    Stricter than the official script of 2026, which accepts reversed windows and repeated queries.
    """
    adapter, found, problems = TypeAdapter(Answer), dict[str, Answer](), list[Problem]()
    for number, line in enumerate(data.splitlines(), 1):
        try:
            # of bytes, json would accept a byte order mark, which the official script refuses
            answer = adapter.validate_python({**json.loads(line.decode()), "line": number})
        except ValidationError as error:
            for fault in error.errors()[:3]:
                problems.append(Problem(number, f"{fault['loc'][0]}: {fault['msg']}", f"{fault['input']!s:.60}"))
        except (ValueError, TypeError) as error:
            problems.append(Problem(number, "no JSON object", str(error)))
        else:
            if found.setdefault(answer.qid, answer) is not answer:
                problems.append(Problem(number, "the query is repeated", answer.qid))
    answers, queries = list(found.values()), truth.queries if truth else {}
    if not data.strip():
        problems.append(Problem(None, "the file is empty"))
    some_scored = len({len(window) for answer in answers for window in answer.windows}) > 1
    if some_scored:
        problems.append(Problem(None, "only some windows have scores; give all or none"))
    if truth:
        unknown = (answer for answer in answers if answer.qid not in queries)
        problems += [Problem(answer.line, "unknown query", answer.qid, queries) for answer in unknown]
        problems += [Problem(None, "no line for the query", qid) for qid in queries if qid not in found]
    noted = [] if some_scored else answers
    notes = [note for answer in noted for note in _oddities(answer, queries.get(answer.qid))]
    return Checked(answers, problems, notes)


def windows_by_query(answers: Iterable[Answer]) -> dict[str, list[Window]]:
    """Return the found windows of each query id."""
    return {answer.qid: answer.windows for answer in answers}


def write_scored_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Write all windows with their scores, for scoring."""
    with writing(path) as file:
        file.writelines(_line(answer, answer.windows) for answer in answers)


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Write a file to submit."""
    with writing(path) as file:
        file.write(submitted(answers))


def submitted(answers: Sequence[Answer]) -> bytes:
    """Return a file to submit: the best windows, without scores."""
    best = ([window[:2] for window in answer.ranked[:MAX_WINDOWS]] for answer in answers)
    return b"".join(map(_line, answers, best))


def _line(answer: Answer, windows: list[Window]) -> bytes:
    content = {"qid": answer.qid, "query": answer.query, "vid": answer.vid, "pred_relevant_windows": windows}
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def _oddities(answer: Answer, query: MomentQuery | None) -> list[Problem]:
    """Return unusual content of a line, which is scored anyway."""
    windows = answer.windows
    end_of = query.seconds if query and query.seconds is not None else float("inf")
    kinds = {
        "a window has no length, or is outside the recording": any(
            window[0] == window[1] or window[0] < 0 or window[1] > end_of for window in windows
        ),
        f"more than the {MAX_WINDOWS} windows that count": len(windows) > MAX_WINDOWS,
        "windows are not sorted by score: R1 uses the first, mAP the best score": windows != answer.ranked,
        "query or vid differs from the list": query and (answer.query, answer.vid) != (query.query, query.vid),
    }
    return [Problem(answer.line, kind) for kind, is_so in kinds.items() if is_so]
