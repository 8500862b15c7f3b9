"""What the reporting verbs print with --json."""

from data_tools.documents.strict import Report
from submission.runs.overview import RunOverview


class RunsReport(Report):
    runs: list[RunOverview]


class ClipFound(Report):
    """score: as the model gives it, higher is nearer; comparable within a query only."""

    path: str
    score: float


class QueryAnswer(Report):
    """unknown: words that the model does not know. clips: best first; null where it knows no word of the query."""

    query: str
    unknown: list[str]
    clips: list[ClipFound] | None


class SearchReport(Report):
    """clips: that were searched. skipped: why other files were not, by path."""

    clips: int
    skipped: dict[str, str]
    queries: list[QueryAnswer]


class WeightFile(Report):
    """setting: of the expert. source: where the file is from."""

    setting: str
    path: str
    found: bool
    source: str


class ExpertReport(Report):
    """rate: Hz. dim: of a frame. seconds_per_second: that two CPU cores take for a second of audio, as measured."""

    name: str
    rate: int
    dim: int
    frames_per_second: float
    parameters: int
    seconds_per_second: float
    files: list[WeightFile]


class ExpertsReport(Report):
    experts: list[ExpertReport]


class ShippedRecipe(Report):
    name: str
    path: str
    idea: str


class RecipesReport(Report):
    recipes: list[ShippedRecipe]


class Percentile(Report):
    percent: float
    score: float


class RelevanceReport(Report):
    """pairs: of captions. zeros: of them score 0. documents, tokenizer, choice: what was counted, and which pairs."""

    clips: int
    captions: int
    documents: str
    tokenizer: str
    choice: str
    pairs: int
    zeros: int
    mean: float
    percentiles: list[Percentile]


class PlanReport(Report):
    """plan: all lines. missing, mistakes, warnings: those of them that say so; of a recipe that cannot be read, its
    mistakes, `FILE:LINE: key: what`, and no plan. ok: none is missing or a mistake."""

    file: str
    ok: bool
    missing: list[str]
    mistakes: list[str]
    warnings: list[str]
    plan: list[str]
