"""Rules of each year of the challenge.

Every fact has its source as a comment, with its certainty: confirmed (organisers' code, data or pages), secondary (a
participant's code that quotes them), inferred (follows from confirmed facts), remembered (could not be read again).
To add a year, add a record.
"""

from dataclasses import dataclass, replace
from typing import Literal

from data_tools.errors import KitError

CUSTOM = "custom"
ABBREVIATION = 10  # characters of a system's abbreviation; confirmed: the validator of DCASE2020 Task 1
# Names in a package: LABEL.output.csv, LABEL.meta.yaml, LABEL.technical_report.pdf. inferred: the same validator, and a
# published report of 2025, Filomeno_JKU_task6_1.technical_report.pdf; of 2026, Zhang_XJTLU_task6_1.output.jsonl
RESULT = "development_testing"  # block of results in meta.yaml; remembered: FalconPerez_Aalto_task3_1.meta.yaml
MAX_WINDOWS = 10  # of a query that count; confirmed: src/standalone_eval/eval.py of 2026, max_pred_windows
MAX_SECONDS = 1500.0  # of a true window that counts; confirmed: src/standalone_eval/eval.py of 2026, length_ranges
# Keys of an external data set in meta.yaml; remembered: the same template
EXTERNAL = ("name", "purpose", "url", "total_audio_length")


@dataclass(frozen=True)
class Edition:
    """A year of the challenge.

    Attributes:
        task: Task number and subtask letter, as in the labels of systems.
        output: `ranked` (best file names of every query), `matrix` (every score), or `windows` (JSON lines).
        metric: Primary metric.
        metrics: Published metrics, in the order in which they are printed.
        query_column, rank_prefix: Header of a CSV; the rank follows, from 1.
        ranking_length: Number of ranks in a ranked CSV.
        systems: Maximum number of systems in a package.
    """

    name: str
    task: str
    output: Literal["ranked", "matrix", "windows"]
    metric: str
    metrics: tuple[str, ...]
    query_column: str = "caption"
    rank_prefix: str = "file_name_"
    ranking_length: int = 10
    systems: int = 4

    @property
    def suffix(self) -> str:
        """Suffix of the submitted file."""
        return ".jsonl" if self.output == "windows" else ".csv"

    @property
    def label(self) -> str:
        """Regular expression of a system's label."""
        # secondary: submission page, as BioDCASE 2025 quotes it; no dots, because the 2020 validator splits at them
        index = "[1-4]" if self.systems == 4 else r"[1-9]\d*"
        return rf"[^_\s.]+_[^_\s.]+_task{self.task}_{index}"

    @property
    def columns(self) -> list[str]:
        """Header of a ranked CSV."""
        return [self.query_column, *(f"{self.rank_prefix}{rank}" for rank in range(1, self.ranking_length + 1))]

    def for_pool(self, n_clips: int) -> "Edition":
        """Return this edition for a pool.

        Only for `custom`, a small pool shortens the ranked lists.
        """
        short = self.name == CUSTOM and 0 < n_clips < self.ranking_length
        return replace(self, ranking_length=n_clips) if short else self


_2022 = Edition(
    "2022",
    task="6b",  # confirmed: README of the baseline, github.com/xieh97/dcase2022-audio-retrieval
    output="ranked",  # confirmed, with the columns: the baseline's utils/eval_utils.py and test.output.csv
    metric="mAP@10",  # confirmed, with the recalls: the baseline's eval_script.py
    metrics=("R@1", "R@5", "R@10", "mAP@10"),
    systems=4,  # confirmed: dcase.community/challenge2025/submission (the same wording in 2021, 2024 and 2026)
)
_2023 = replace(
    _2022,
    name="2023",  # confirmed: dcase.community/challenge2023/task-language-based-audio-retrieval
    rank_prefix="fname_",  # secondary: the 2023 task page as Labbé, dcase24t6/utils/dcase.py, quotes it
)
_2024 = replace(
    _2023,
    name="2024",
    task="8",  # confirmed: dcase.community/challenge2024/task-language-based-audio-retrieval
    # excluded sounds: documents/challenge2024/dcase2024_task6_excluded_freesound_ids.csv (secondary: salsa links it)
)
_2025 = replace(
    _2024,
    name="2025",
    task="6",  # confirmed: README of the baseline, github.com/CPJKU/dcase2025_task6_baseline
    output="matrix",  # inferred: the baseline's d25_t6/predict.py writes one as an example
    query_column="index",  # confirmed: d25_t6/predict.py
    metric="mAP@16",  # confirmed: README (2025-06-09); the code logs mAP@10
    metrics=("R@1", "R@5", "R@10", "mAP@16", "mAP@10"),
    ranking_length=16,  # inferred: only needed if a ranked CSV is wanted
    # excluded sounds: resources/dcase2025_task6_excluded_freesound_ids.csv of the baseline (confirmed)
)
_2026 = Edition(
    "2026",
    task="6",  # confirmed: the baseline, github.com/awkrail/dcase2026_task6_baseline
    output="windows",  # confirmed: src/create_submission.py; windows have no scores since 2026-05-20
    metric="R1@0.7",  # secondary: arXiv 2609.12484, a participant's paper on the results
    metrics=("R1@0.5", "R1@0.7", "mAP", "mAP@0.5", "mAP@0.75"),  # confirmed: src/standalone_eval/eval.py, `brief`
)
_CUSTOM = replace(  # for data and rules outside the challenge
    _2022,
    name=CUSTOM,
    task="0",
    query_column="query",
    metrics=("R@1", "R@5", "R@10", "mAP@10", "mAP@16"),
    systems=100,
)

EDITIONS = {edition.name: edition for edition in (_2022, _2023, _2024, _2025, _CUSTOM)}  # these rank clips
MOMENTS = {edition.name: edition for edition in (_2026,)}  # these find moments


def get_edition(name: str | int) -> Edition:
    """Return an edition that ranks clips: a year, or `custom`."""
    return _lookup(name, EDITIONS)


def get_moments_edition(name: str | int | None = None) -> Edition:
    """Return an edition that finds moments, by default the latest."""
    return _lookup(next(reversed(MOMENTS)) if name is None else name, MOMENTS)


def get_any_edition(name: str | int) -> Edition:
    """Return an edition of any kind."""
    return _lookup(name, EDITIONS | MOMENTS)


def _lookup(name: str | int, editions: dict[str, Edition]) -> Edition:
    if str(name) not in editions:
        raise KitError(f"edition {name}: unknown here; choose one of {', '.join(editions)}")
    return editions[str(name)]


def format_metric(metric: str, value: float, sign: str = "") -> str:
    """Format a metric.

    Args:
        metric: Those of moments are in per cent.
        value: In [0, 1].
        sign: "+" marks positive values too.
    """
    is_of_moments = any(metric in edition.metrics for edition in MOMENTS.values())
    return f"{100 * value:{sign}.2f} %" if is_of_moments else f"{value:{sign}.4f}"
