"""Rules of each year of the challenge.

To add a year of the challenge, add an Edition or a MomentsEdition below.

Every fact about a year has its source and one of these degrees of certainty:

confirmed   read in the organisers' code, data or pages
secondary   read in a participant's code or a data set's documentation that quotes the organisers
inferred    follows from confirmed facts
remembered  could not be read again; correct it in the Edition if the year's page differs
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

from submission.errors import SubmissionError

CUSTOM = "custom"


class Source(NamedTuple):
    """Source of a fact about a year. sure: Its certainty: `confirmed`, `secondary`, `inferred` or `remembered`."""

    sure: str
    where: str


class Names(NamedTuple):
    """File names of a package. {label}, {author}, {institute}, {task} and {index} are placeholders."""

    output: str
    meta: str
    report: str


BY_LABEL = Names("{label}.output.csv", "{label}.meta.yaml", "{label}.technical_report.pdf")
BY_TASK = Names(
    "{author}_{institute}_task{task}_submission_{index}_output.csv",
    "{author}_{institute}_task{task}_submission_{index}_metadata.yaml",
    "{author}_{institute}_task{task}_submission_{index}_technical_report.pdf",
)


BY_LABEL_JSONL = Names("{label}.output.jsonl", "{label}.meta.yaml", "{label}.technical_report.pdf")


@dataclass(frozen=True)
class Year:
    """Facts of every year.

    Attributes:
        name: Year of the challenge, or custom.
        task: Task number and subtask letter, as in submission labels.
        label: Pattern of a system's label.
        names: File names of a package, by the name of the naming style; the usual style comes first.
        systems: Maximum number of systems in a package.
        abbreviation: Maximum number of characters of a system's abbreviation.
        excluded: Address of the list of Freesound ids that external data must not contain; None if no list is known.
        result: Key of the results block in meta.yaml.
        sources: Source of each fact, by the name of its attribute.
    """

    name: str
    task: str
    label: str
    names: Mapping[str, Names]
    systems: int
    abbreviation: int
    excluded: str | None
    result: str
    sources: Mapping[str, Source]


@dataclass(frozen=True)
class Edition(Year):
    """A year of the language-based audio retrieval task: queries retrieve clips.

    Attributes:
        output: `ranked` (the best file names of every query) or `matrix` (every score).
        query_column: Header of the query column.
        rank_prefix: Prefix of the column names of a ranked CSV; the rank follows, from 1. Editions with a matrix output
            use it if the user asks for a ranked CSV.
        ranking_length: Number of ranks in a ranked CSV.
        map_ks: The k of every published mAP@k, the primary metric first.
        recall_ks: The k of every published R@k.
        external: Keys that meta.yaml must have for each external data set.
    """

    output: Literal["ranked", "matrix"]
    query_column: str
    rank_prefix: str
    ranking_length: int
    map_ks: tuple[int, ...]
    recall_ks: tuple[int, ...]
    external: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Header of a ranked CSV: the query column, then one column per rank."""
        return (self.query_column, *(f"{self.rank_prefix}{rank}" for rank in range(1, self.ranking_length + 1)))

    @property
    def map_k(self) -> int:
        """The k of the primary metric, which is mAP@k."""
        return self.map_ks[0]

    @property
    def metric(self) -> str:
        """The primary metric as published, e.g. mAP@10."""
        return f"mAP@{self.map_k}"

    def for_pool(self, n_clips: int) -> "Edition":
        """Return this edition for a pool of `n_clips` clips; only for `custom`, a small pool shortens the ranked lists.

        >>> get_edition("custom").for_pool(2).columns, get_edition(2022).for_pool(2).ranking_length
        (('query', 'file_name_1', 'file_name_2'), 10)
        """
        if self.name != CUSTOM or not 0 < n_clips < self.ranking_length:
            return self
        return replace(self, ranking_length=n_clips)


@dataclass(frozen=True)
class MomentsEdition(Year):
    """A year of moment retrieval: queries retrieve the windows of a recording that they describe.

    Attributes:
        output: `windows`: the submitted file has the windows of each query, as JSON lines.
        line: Keys of each line of the submitted file.
        metric: Primary metric.
        metrics: Every published metric, in the order of the output of the verb `score`.
        thresholds: IoU thresholds; mAP is the mean over them.
        max_windows: Number of windows per query that mAP uses.
        max_seconds: Length of the longest true window that counts.
        lengths: Ranges of true windows by name: (lower limit, excluded; upper limit, included), in seconds.
    """

    output: Literal["windows"]
    line: tuple[str, ...]
    metric: str
    metrics: tuple[str, ...]
    thresholds: tuple[float, ...]
    max_windows: int
    max_seconds: float
    lengths: Mapping[str, tuple[float, float]]


AnyEdition = Edition | MomentsEdition
EditionType = TypeVar("EditionType", Edition, AnyEdition)

_BASELINE_2022 = "github.com/xieh97/dcase2022-audio-retrieval"
_BASELINE_2025 = "github.com/CPJKU/dcase2025_task6_baseline"
_QUOTED_PAGE = "the 2023 task page, as a 2024 participant quotes it: Labbé, dcase24t6/utils/dcase.py"
_SUBMISSION_PAGE = "dcase.community/challenge2025/submission (the same wording in 2021, 2024 and 2026)"
_VALIDATOR = "the validator of DCASE2020 Task 1 (the only official package checker that was found)"
_TEMPLATE = (
    "the task's own template of meta.yaml could not be read; DCASE's general template is "
    "FalconPerez_Aalto_task3_1.meta.yaml"
)

_LIST_FIELDS = ("output", "query_column", "ranking_length")


def _parse_sources(**sources: str) -> dict[str, Source]:
    """Parse texts `CERTAINTY: SOURCE` for fields of an edition; return a dict from field to Source."""
    return {name: Source(*text.split(": ", 1)) for name, text in sources.items()}


_2022 = Edition(
    name="2022",
    task="6b",
    output="ranked",
    query_column="caption",
    rank_prefix="file_name_",
    ranking_length=10,
    map_ks=(10,),
    recall_ks=(1, 5, 10),
    label=r"[^_\s.]+_[^_\s.]+_task6b_[1-4]",
    names={"label": BY_LABEL, "task": BY_TASK},
    systems=4,
    abbreviation=10,
    excluded=None,
    result="development_testing",
    external=("name", "purpose", "url", "total_audio_length"),
    sources=_parse_sources(
        task=f"confirmed: README of the baseline, {_BASELINE_2022}: Task 6, subtask B",
        output="confirmed: the baseline's file of results, test.output.csv, is of this kind",
        query_column="confirmed: the column is that of the baseline's utils/eval_utils.py and its test.output.csv",
        rank_prefix="confirmed: the column names are those of the baseline's utils/eval_utils.py and test.output.csv",
        ranking_length="confirmed: a row of the baseline's test.output.csv lists this number of file names",
        map_ks="confirmed: the metric is that of the baseline's eval_script.py (positions 1 to 10) and README",
        recall_ks="confirmed: the recall metrics are those of the baseline's eval_script.py and README",
        label="secondary: the form of labels is that of the submission page, as BioDCASE 2025 quotes it; labels have "
        f"no dots, because names are split at dots by {_VALIDATOR}",
        names=f"inferred: the file names are derived from {_VALIDATOR}; those of --style task are from {_QUOTED_PAGE}",
        systems=f"confirmed: {_SUBMISSION_PAGE}",
        abbreviation=f"confirmed: {_VALIDATOR}",
        excluded="remembered: no list of excluded sounds of 2022 was found",
        result=f"remembered: {_TEMPLATE}",
        external=f"remembered: {_TEMPLATE}",
    ),
)


def _changed_year(record: Edition, sources: Mapping[str, Source], **changes: object) -> Edition:
    """Return a copy of the edition `record` with new values of fields (`changes`) and the `sources` of these values."""
    return replace(record, **changes, sources={**record.sources, **sources})  # type: ignore[arg-type]


_2023 = _changed_year(
    _2022,
    _parse_sources(
        task="confirmed: dcase.community/challenge2023/task-language-based-audio-retrieval: Task 6, subtask B",
        **dict.fromkeys(_LIST_FIELDS, f"secondary: {_QUOTED_PAGE}"),
        rank_prefix=f"secondary: {_QUOTED_PAGE}; the 2023 baseline writes no header for the columns of file names",
        map_ks="confirmed: the metric is that of the baseline's postprocessing/xmodal_retrieval.py, "
        "github.com/xieh97/dcase2023-audio-retrieval",
        recall_ks="confirmed: the recall metrics are those of the baseline's postprocessing/xmodal_retrieval.py",
        excluded="remembered: no list of excluded sounds of 2023 was found, but one may exist",
    ),
    name="2023",
    rank_prefix="fname_",
)

_2024 = _changed_year(
    _2023,
    _parse_sources(
        task="confirmed: dcase.community/challenge2024/task-language-based-audio-retrieval: Task 8",
        **dict.fromkeys(
            (*_LIST_FIELDS, "rank_prefix"),
            "secondary: the format is that of evaluation data of a 2024 participant, ONE-PEACE",
        ),
        map_ks="confirmed: the metric is that of the results page of 2024",
        excluded="secondary: the winner of 2024 links this list, github.com/OptimusPrimus/salsa",
    ),
    name="2024",
    task="8",
    label=r"[^_\s.]+_[^_\s.]+_task8_[1-4]",
    excluded="dcase.community/documents/challenge2024/dcase2024_task6_excluded_freesound_ids.csv",
)

_2025 = _changed_year(
    _2024,
    _parse_sources(
        task=f"confirmed: README of the baseline, {_BASELINE_2025}: Task 6",
        output="inferred: a score matrix is required, since the baseline's d25_t6/predict.py writes one as an example",
        query_column="confirmed: the column is that of the baseline's d25_t6/predict.py",
        rank_prefix="inferred: a ranked CSV is not required in 2025; if one is written, its columns are those of 2024",
        ranking_length="inferred: a ranked CSV is not required in 2025; if one is written, mAP@16 needs 16 file names",
        map_ks="confirmed: README of the baseline (2025-06-09) names the metric mAP@16; its code logs mAP@10",
        recall_ks="confirmed: the recall metrics are those of the baseline's d25_t6/retrieval_module.py",
        names="inferred: the names are like that of a published report, Filomeno_JKU_task6_1.technical_report.pdf",
        excluded=f"confirmed: {_BASELINE_2025}, resources/dcase2025_task6_excluded_freesound_ids.csv",
    ),
    name="2025",
    task="6",
    output="matrix",
    query_column="index",
    ranking_length=16,
    map_ks=(16, 10),
    label=r"[^_\s.]+_[^_\s.]+_task6_[1-4]",
    names={"label": BY_LABEL},
    excluded="resources/dcase2025_task6_excluded_freesound_ids.csv of " + _BASELINE_2025,
)

_OURS = Source("inferred", "this project has chosen the value, for data and rules outside the challenge")
_CUSTOM = replace(
    _2022,
    name=CUSTOM,
    task="0",
    query_column="query",
    map_ks=(10, 16),
    label=r"[^_\s.]+_[^_\s.]+_task0_[1-9]\d*",
    names={"label": BY_LABEL},
    systems=100,
    sources={
        **dict.fromkeys(_2022.sources, _OURS),
        **_parse_sources(
            ranking_length="inferred: this project has chosen the value; if there are fewer clips, all are listed"
        ),
    },
)

EDITIONS: Mapping[str, Edition] = {record.name: record for record in (_2022, _2023, _2024, _2025, _CUSTOM)}


_BASELINE_2026 = "github.com/awkrail/dcase2026_task6_baseline"
_SCORER_2026 = f"{_BASELINE_2026}, src/standalone_eval/eval.py"
_TEMPLATE_2026 = "the task's template of meta.yaml with its comments, filled in by a participant"

_2026 = MomentsEdition(
    name="2026",
    task="6",
    output="windows",
    line=("qid", "query", "vid", "pred_relevant_windows"),
    metric="R1@0.7",
    metrics=("R1@0.5", "R1@0.7", "mAP", "mAP@0.5", "mAP@0.75"),
    thresholds=(0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
    max_windows=10,
    max_seconds=1500.0,
    lengths={
        "short": (0.0, 10.0),
        "middle": (10.0, 30.0),
        "long": (30.0, 1500.0),
        "under 2 s": (0.0, 2.0),
        "2 to 5 s": (2.0, 5.0),
        "5 to 10 s": (5.0, 10.0),
    },
    label=r"[^_\s.]+_[^_\s.]+_task6_[1-4]",
    names={"label": BY_LABEL_JSONL},
    systems=4,
    abbreviation=10,
    excluded=None,
    result="development_testing",
    sources=_parse_sources(
        task=f"confirmed: the baseline, {_BASELINE_2026}: Task 6",
        output=f"confirmed: {_BASELINE_2026}, src/create_submission.py; windows have no scores since 2026-05-20",
        line=f"confirmed: {_BASELINE_2026}, src/create_submission.py, has these keys; the scorer reads qid and windows",
        metric="secondary: the metric is that of a participant's paper on the results, arXiv 2609.12484",
        metrics=f"confirmed: {_SCORER_2026}: `brief`",
        thresholds=f"confirmed: {_SCORER_2026}",
        max_windows=f"confirmed: {_SCORER_2026}: max_pred_windows",
        max_seconds=f"confirmed: {_SCORER_2026}: length_ranges",
        lengths="inferred: the ranges are those of Moment-DETR, which a comment in the scorer lists, but `long` has no "
        "upper limit; this project has divided `short` into three ranges",
        label="secondary: labels are like that of the package of a participant, Zhang_XJTLU_task6_1",
        names="secondary: the names are like that in the package of a participant, Zhang_XJTLU_task6_1.output.jsonl",
        systems=f"confirmed: {_SUBMISSION_PAGE}",
        abbreviation=f"secondary: {_TEMPLATE_2026}",
        excluded="remembered: no list of excluded sounds of 2026 was found",
        result=f"secondary: {_TEMPLATE_2026}",
    ),
)

MOMENTS: Mapping[str, MomentsEdition] = {record.name: record for record in (_2026,)}


def get_edition(name: str | int) -> Edition:
    """Return the edition of a year that ranks clips, or `custom`. Raises SubmissionError for any other name."""
    if str(name) in MOMENTS:
        raise SubmissionError(
            f"edition {name} finds moments (.jsonl) and does not rank clips; choose one of: {', '.join(EDITIONS)}"
        )
    return _lookup(name, EDITIONS)


def get_moments_edition(name: str | int | None = None) -> MomentsEdition:
    """Return the edition called `name`, whose task is to find moments; for None, return the latest such edition.

    Raises SubmissionError, which lists the known names, for any other name.
    """
    if name is None:
        return list(MOMENTS.values())[-1]
    if str(name) not in MOMENTS:
        why = "ranks clips, not moments" if str(name) in EDITIONS else "is unknown"
        raise SubmissionError(f"edition {name} {why}; choose one of: {', '.join(MOMENTS)}")
    return MOMENTS[str(name)]


def get_any_edition(name: str | int) -> AnyEdition:
    """Return the edition called `name`: a year (for ranking clips or for finding moments) or `custom`.

    Raises SubmissionError, which lists all known names, for any other name.
    """
    return _lookup(name, {edition.name: edition for edition in all_editions()})


def all_editions() -> list[AnyEdition]:
    """Return a list of all editions in the order of their years, `custom` last."""
    editions: list[AnyEdition] = [*EDITIONS.values(), *MOMENTS.values()]
    return sorted(editions, key=lambda edition: edition.name)


def _lookup(name: str | int, editions: Mapping[str, EditionType]) -> EditionType:
    """Return the edition called `name`. Raises SubmissionError, which lists the known names, for an unknown name."""
    if str(name) not in editions:
        raise SubmissionError(f"edition {name} is unknown; choose one of: {', '.join(editions)}")
    return editions[str(name)]


def format_metric(metric: str, value: float, sign: str = "") -> str:
    """Format a metric's value: per cent for moments, else a number in [0, 1]. sign: "+" marks positive values too.

    `mAP` without @k is a metric of moments.
    """
    if any(metric in edition.metrics for edition in MOMENTS.values()):
        return f"{100 * value:{sign}.2f} %"
    return f"{value:{sign}.4f}"
