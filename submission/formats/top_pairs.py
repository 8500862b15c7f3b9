"""Best clips of each query, for a judge.

Read and write pairs of a query and one of its best clips, as JSON lines, with the score that a judge adds.

    {"query": "7", "text": "a dog barks", "clip": "clotho/3.wav", "path": "data/3.wav", "score": 0.41, "rank": 1}

`query` and `clip` are ids in the score matrix. `score` and `rank` come from the system that ranked the clips. A judge
adds the key `judge`: a number that is higher for better pairs, or null for a pair that it does not judge.
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
        """This pair as one line of JSON, without the score of the judge."""
        fields = {name: getattr(self, name) for name in self._fields if name != "judge"}
        return json.dumps(fields, ensure_ascii=False) + "\n"


def read_pairs(path: Path) -> list[Pair]:
    """Read the pairs of a file, judged or not. Raises SubmissionError, with the line, for a wrong or repeated pair."""
    require_file(path, "write it with lbar rank --top K --out FILE.jsonl")
    return parse_pairs(path.read_bytes(), path)


def parse_pairs(data: bytes, path: Path) -> list[Pair]:
    """Parse the content `data` of a file of pairs, and return the pairs. path: Path of the file, for messages.

    Raises the same errors as read_pairs.
    """
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
            raise SubmissionError(f"{where}: query and clip are the same as in line {before}; keep one of these lines")
        pairs.append(pair)
    return pairs


def _faults(content: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each missing or invalid value of a pair, given as the JSON object `content`."""
    for name in TEXTS:
        if not isinstance(content.get(name), str):
            yield f"the key {name} is missing or has no text; write the file again with system rank --top K"
    if not is_number(content.get("score")) or not isinstance(content.get("rank"), int):
        yield "score and rank must be numbers; write the file again with system rank --top K"
    if content.get("judge") is not None and not is_number(content["judge"]):
        yield f"judge is {content['judge']!r}; it must be null or a number that is higher for better pairs"


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs to a file without the scores of a judge, completely or not at all."""
    with writing(path) as file:
        file.writelines(pair.line.encode() for pair in pairs)
