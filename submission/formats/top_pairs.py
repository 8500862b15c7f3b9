"""Best clips of each query, for a judge.

Pairs of a query and one of its best clips, as JSON lines, and the scores that a judge adds to them.

    {"query": "7", "text": "a dog barks", "clip": "clotho/3.wav", "path": "data/3.wav", "score": 0.41, "rank": 1}

`query` and `clip` are ids in the score matrix, `score` and `rank` are the first system's. A judge adds `judge`, a
number that is higher for better pairs, or null for a pair that it does not judge.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from data_tools.documents.json_lines import Object, is_number, parse_objects
from data_tools.files import require_file, writing
from submission.errors import SubmissionError

TEXTS = ("query", "text", "clip", "path")


class Pair(NamedTuple):
    """A query and one of its best clips. judge: Score of the judge; None for a pair that it did not judge."""

    query: str
    text: str
    clip: str
    path: str
    score: float
    rank: int
    judge: float | None = None

    @property
    def line(self) -> str:
        """The pair as a line of JSON, without the judge's score."""
        fields = {name: getattr(self, name) for name in self._fields if name != "judge"}
        return json.dumps(fields, ensure_ascii=False) + "\n"


def read_pairs(path: Path) -> list[Pair]:
    """Read a file of pairs, judged or not. Raises SubmissionError, with the line, for bad pairs and repeated ones."""
    require_file(path, "write it with python -m system rank --top K --out FILE.jsonl")
    return pairs_in(path.read_bytes(), path)


def pairs_in(data: bytes, path: Path) -> list[Pair]:
    """Parse the pairs of a file, like read_pairs. path: Of the file, for messages."""
    pairs: list[Pair] = []
    lines: dict[tuple[str, str], int] = {}
    for one in parse_objects(data):
        where = f"{path}, line {one.line}"
        if not isinstance(one, Object):
            raise SubmissionError(f"{where}: {one.sentence}")
        if fault := next(_faults(one.content), None):
            raise SubmissionError(f"{where}: {fault}")
        pair = Pair._make(one.content.get(name) for name in Pair._fields)
        if (before := lines.setdefault((pair.query, pair.clip), one.line)) != one.line:
            raise SubmissionError(f"{where}: has the query and the clip of line {before}; keep one of them")
        pairs.append(pair)
    return pairs


def _faults(content: dict[str, Any]) -> Iterator[str]:
    """Yield the faults of a pair."""
    for name in TEXTS:
        if not isinstance(content.get(name), str):
            yield f"{name} is missing, or is not a text; write the file again"
    if not is_number(content.get("score")) or not isinstance(content.get("rank"), int):
        yield "score and rank must be numbers; write the file again"
    if content.get("judge") is not None and not is_number(content["judge"]):
        yield f"judge is {content['judge']!r}; write a number, higher for better pairs, or null"


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write a file of pairs without scores of a judge, completely or not at all."""
    with writing(path) as file:
        file.writelines(pair.line.encode() for pair in pairs)
