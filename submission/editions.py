"""What each year of the challenge asks for: one record a year."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from submission.errors import SubmissionError


@dataclass(frozen=True)
class Edition:
    """One year of the language-based audio retrieval task.

    year: the challenge year. task: its number and subtask letter, as in submission labels.
    columns: the header of a ranked CSV: the query's column, then one column per rank.
    recall_ks: the k of every published R@k. map_k: the k of the primary metric, mAP@k.
    sources: field name -> where the fact was published.
    """

    year: int
    task: str
    columns: tuple[str, ...]
    recall_ks: tuple[int, ...]
    map_k: int
    sources: Mapping[str, str]

    @property
    def ranking_length(self) -> int:
        """File names a row must hold."""
        return len(self.columns) - 1

    @property
    def metric(self) -> str:
        """The primary metric as published, e.g. mAP@10."""
        return f"mAP@{self.map_k}"


_RECORDS = (
    Edition(
        year=2022,
        task="6b",
        columns=("caption", *(f"file_name_{rank}" for rank in range(1, 11))),
        recall_ks=(1, 5, 10),
        map_k=10,
        sources={
            "year": "DCASE Challenge 2022",
            "task": "README of the baseline, github.com/xieh97/dcase2022-audio-retrieval: Task 6, subtask B",
            "columns": "the baseline's utils/eval_utils.py, which writes them, and its test.output.csv",
            "recall_ks": "the baseline's eval_script.py and the results table of its README",
            "map_k": "the baseline's eval_script.py (positions 1 to 10) and the results table of its README",
        },
    ),
)
EDITIONS: Mapping[int, Edition] = MappingProxyType({record.year: record for record in _RECORDS})


def get_edition(year: int) -> Edition:
    """The record of one year. Raises SubmissionError, naming the known years, for any other."""
    if year not in EDITIONS:
        known = ", ".join(str(known_year) for known_year in sorted(EDITIONS))
        raise SubmissionError(f"no edition {year} is known; choose one of: {known}")
    return EDITIONS[year]
