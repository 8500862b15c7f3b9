"""Output of the reporting verbs with --json."""

from data_tools.settings import Report
from system.runs.overview import RunOverview


class RunsReport(Report):
    runs: list[RunOverview]


class ClipFound(Report):
    """Found clip in the JSON of `search`. score: The model's score; higher is better; scores of different queries
    cannot be compared. windows: The best three times of the sound, [start, end] in seconds; null for a model that finds
    no times.
    """

    path: str
    score: float
    windows: list[tuple[float, float]] | None = None


class QueryAnswer(Report):
    """Result of a query in the JSON of `search`. unknown: Words of the query that the model does not know. clips: Found
    clips, best first; null if the model knows no word of the query.
    """

    query: str
    unknown: list[str]
    clips: list[ClipFound] | None


class SearchReport(Report):
    """JSON of `search`. clips: Number of searched clips. skipped: Dict from path of each skipped file to the reason."""

    clips: int
    skipped: dict[str, str]
    queries: list[QueryAnswer]


class WeightFile(Report):
    """Weight file of an expert in the JSON of `experts`. setting: Setting of the expert that names the file. licence:
    Licence of the weights, "" if it is not recorded. source: Where to get the file.
    """

    setting: str
    path: str
    found: bool
    licence: str
    source: str


class ExpertReport(Report):
    """Expert in the JSON of `experts`. rate: Sample rate in Hz. dim: Values in a frame."""

    name: str
    rate: int
    dim: int
    frames_per_second: float
    parameters: int
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
    """JSON of `relevance`. pairs: Number of caption pairs. zeros: Number of pairs whose CIDEr-D is 0. documents,
    tokenizer: The options --documents and --tokenizer.
    """

    clips: int
    captions: int
    documents: str
    tokenizer: str
    pairs: int
    zeros: int
    mean: float
    percentiles: list[Percentile]


class PlanReport(Report):
    """JSON of `check`. plan: Lines of the plan, without problems. missing, mistakes, warnings: Problems, as
    `PART OF THE RECIPE: message`. ok: Whether nothing is missing and no mistake was found.

    For a recipe that cannot be read, mistakes have the form `FILE:LINE: key: message`, and plan is empty.
    """

    file: str
    ok: bool
    missing: list[str]
    mistakes: list[str]
    warnings: list[str]
    plan: list[str]
