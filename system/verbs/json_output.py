"""Output of the reporting verbs with --json."""

from data_tools.documents.strict import Report
from submission.runs.overview import RunOverview


class RunsReport(Report):
    runs: list[RunOverview]


class ClipFound(Report):
    """score: The model's score, higher is better; comparable only within one query. windows: The best three times of
    the sound, [start, end] in seconds; null for a model that finds no times."""

    path: str
    score: float
    windows: list[tuple[float, float]] | None = None


class QueryAnswer(Report):
    """unknown: Words that the model does not know. clips: Best first; null if it knows no word of the query."""

    query: str
    unknown: list[str]
    clips: list[ClipFound] | None


class SearchReport(Report):
    """clips: Number of clips that were searched. skipped: Reason for every skipped file, by path."""

    clips: int
    skipped: dict[str, str]
    queries: list[QueryAnswer]


class WeightFile(Report):
    """setting: The expert's setting that names the file. licence: Of the weights, "" if it is not recorded. source:
    Where to get the file."""

    setting: str
    path: str
    found: bool
    licence: str
    source: str


class ExpertReport(Report):
    """rate: Hz. dim: Values in a frame. seconds_per_second: Measured time of two CPU cores for a second of audio."""

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
    """JSON of `relevance`. pairs: Number of caption pairs. zeros: Number of pairs with score 0. documents, tokenizer,
    choice: The options --documents, --tokenizer and --pairs."""

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
    """JSON of `check`. plan: The rows by section, without problems. missing, mistakes, warnings: Problems, as `PLACE:
    message`. ok: Nothing is missing and no mistake.

    For a recipe that cannot be read, mistakes are `FILE:LINE: key: message`, and plan is empty."""

    file: str
    ok: bool
    missing: list[str]
    mistakes: list[str]
    warnings: list[str]
    plan: list[str]
