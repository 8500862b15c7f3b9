"""Best clips of each query, for a judge (JSON lines).

{"query": "7", "text": "a dog barks", "clip": "clotho/3.wav", "path": "data/3.wav", "score": 0.41, "rank": 1}

`query` and `clip` are ids in the score matrix. A judge adds the key `judge`: a number that is higher for better pairs,
or null for a pair that it leaves out.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from data_tools.errors import KitError
from data_tools.files import writing
from data_tools.manifest import read_lines


@dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class Pair:
    """A query and one of its best clips."""

    query: str
    text: str
    clip: str
    path: str
    score: float
    rank: int
    judge: float | None = None


_PAIR = TypeAdapter(Pair)


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs without the scores of a judge."""
    with writing(path) as file:
        file.writelines(_PAIR.dump_json(pair, exclude={"judge"}) + b"\n" for pair in pairs)


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs, judged or not.

    Raises KitError for a wrong or repeated pair.
    """
    pairs: dict[tuple[str, str], Pair] = {}
    for number, pair in read_lines(path, _PAIR):
        if pairs.setdefault((pair.query, pair.clip), pair) is not pair:
            raise KitError(f"{path}, line {number}: this query and clip are repeated")
    return list(pairs.values())
