"""Tables of studies.

The table of a study as Markdown, LaTeX, and CSV: mean and spread over seeds, with a paper's figures below them.
"""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from submission.editions import get_moments_edition
from submission.formats.moments import read_moment_truth
from submission.formats.score_matrix import read_scores
from submission.metrics.intervals import Groups, paired_difference
from submission.metrics.retrieval import average_precision
from submission.metrics.summary import (
    ranks_from_audio,
    ranks_in_matrix,
    summarise,
    summarise_audio_to_text,
    summarise_moments_file,
)
from submission.runs.record import MomentsResult

Values = npt.NDArray[np.float64]

# T2A: retrieval of clips by captions. A2T: retrieval of captions by clips, by each of the published definitions. The
# others: of moments, also of only the queries with true windows of some length, or with a text that is not trained on.
Column = Literal[
    "T2A R@1", "T2A R@5", "T2A R@10", "T2A mAP@10", "T2A mAP",
    "A2T HR@1", "A2T HR@5", "A2T HR@10", "A2T R@1", "A2T R@5", "A2T R@10",
    "A2T pooled R@1", "A2T pooled R@5", "A2T pooled R@10", "A2T mAP@10", "A2T mAP",
    "R1@0.5", "R1@0.7", "mAP", "mAP@0.5", "mAP@0.75",
    "R1@0.7 under 2 s", "R1@0.7 2 to 5 s", "R1@0.7 5 to 10 s", "R1@0.7 middle", "R1@0.7 long", "R1@0.7 new texts",
    "mAP under 2 s", "mAP 2 to 5 s", "mAP 5 to 10 s", "mAP middle", "mAP long", "mAP new texts",
]  # fmt: skip
NEW_TEXTS = "new texts"
OF_PARTS = tuple(name for name in get_args(Column) if name.startswith(("R1@0.7 ", "mAP ")))
OF_MOMENTS: Sequence[Column] = ("R1@0.5", "R1@0.7", "mAP", "mAP@0.5", "mAP@0.75", *OF_PARTS)
DEFAULT: list[Column] = [
    "T2A mAP@10", "T2A R@1", "T2A R@5", "T2A R@10", "A2T mAP@10", "A2T HR@1", "A2T HR@5", "A2T HR@10",
]  # fmt: skip

NOTES = {
    "HR@": "A2T HR@k: share of clips with any of their captions among the first k; Mei et al. (On Metric Learning), "
    "WavCaps and LAION-CLAP call it R@k.",
    "A2T R@": "A2T R@k: share of a clip's captions among the first k, averaged over clips, as in DCASE and Xie et al. "
    "(On Negative Sampling).",
    "pooled": "A2T pooled R@k: share of all captions that are among the first k captions of their clip "
    "(text-audio-retrieval).",
    "mAP@10": "mAP@10: average precision divides by the number of relevant items; items after rank 10 count 0.",
    "new texts": "new texts: queries whose text the model was not trained on.",
    "middle": "middle: queries with true windows of 10 to 30 s.",
    "long": "long: queries with true windows over 30 s.",
}
CHOOSE = (
    "validation: metric of the ranked checkpoint on the clips that its stage monitors. Choose settings by this column. "
    "The other metrics are computed on the ranked clips; if you choose settings by them, you choose on the test set."
)
WITHOUT_CUT = "mAP: mean average precision over all ranks, not only the first 10."


@dataclass(frozen=True)
class Figures:
    """The values of a table's metrics in one run.

    values: Dict from column to an array with one value per query. A metric that is only known for all queries together,
    such as a pooled recall, has an array with one value. groups: Groups of queries whose values depend on each other,
    since the queries belong to the same clips. clips: Number of ranked clips.
    """

    values: Mapping[str, Values]
    groups: Groups
    clips: int


def figures_of_run(scores: Path) -> Figures:
    """Compute the metrics of the study's table for each query, from a saved score matrix."""
    matrix = read_scores(scores)
    ranks, back = ranks_in_matrix(matrix), summarise_audio_to_text(ranks_from_audio(matrix))
    values = {f"T2A {name}": figures for name, figures in summarise(ranks).per_query.items()}
    values["T2A mAP"] = average_precision(ranks.ranks, ranks.n_relevant, None)
    values |= {f"A2T {name}": figures for name, figures in back.per_query.items()}
    pooled = {name: value for name, value in back.values.items() if name not in back.per_query}
    values |= {f"A2T {name}": np.array([value]) for name, value in pooled.items()}
    return Figures(values, ranks.groups, ranks.n_pool)


def figures_of_moments(result: MomentsResult) -> Figures:
    """Compute the metrics of the study's table for each query, from the found windows of a rank entry.

    Queries of one recording form a group, since their values are not independent. Some metrics are for a part of the
    queries: those with windows of a certain length, or those with a text that was not trained on. Such a metric has a
    single value for this part, not one per query; NaN if the part is empty.
    """
    record = get_moments_edition(result.edition)
    summary = summarise_moments_file(Path(result.windows), read_moment_truth(Path(result.truth)), record)
    parts = dict.fromkeys(OF_PARTS, float("nan")) | summary.by_length
    parts |= {f"{metric} {NEW_TEXTS}": value for metric, value in (result.figures_of_new_texts or {}).items()}
    values = {name: np.array([value]) for name, value in parts.items()} | summary.per_query
    return Figures(values, summary.queries.groups, summary.queries.n_pool)


@dataclass(frozen=True)
class StudyRow:
    """Row of a study's table, for a cell of the study and a rank entry.

    cell: Name of the cell. data: Name of the rank entry.
    runs: The metrics of the cell's runs, one run per seed.
    facts: Further columns after the metrics: a dict from the column's name, such as chance (the metric of a random
    ranking), to a number in [0, 1]; None: not known.
    paper: The published figures, in the order of the columns, in the table's unit.
    validation: For every seed, a dict from validation metric to its value at the ranked checkpoint; empty if not known.
    chosen_by: The validation metric that chose the checkpoint; None if not known.
    monitors_test: Whether validation is on a test split.
    """

    cell: str
    data: str
    runs: Sequence[Figures]
    facts: Mapping[str, float | None]
    paper: Sequence[float | None] | None = None
    validation: Sequence[Mapping[str, float]] = ()
    chosen_by: str | None = None
    monitors_test: bool = False

    def validation_values(self, metric: str) -> list[float]:
        """Return the value of a validation metric for every seed; an empty list if it is missing for any seed."""
        found = [values[metric] for values in self.validation if metric in values]
        return found if len(found) == len(self.runs) else []

    def means(self, column: str) -> list[float]:
        """Return the metric of a column as a mean over all queries, one mean per seed."""
        return [float(run.values[column].mean()) for run in self.runs]

    def per_query(self, column: str) -> Values:
        """Return the metric of every query for one column of the table, averaged over the seeds."""
        result: Values = np.mean([run.values[column] for run in self.runs], axis=0)
        return result


@dataclass(frozen=True)
class StudyTable:
    """The table of one study.

    columns: Names of the metrics, in the order of the table. percent: Whether metrics are printed in per cent with one
    decimal place; otherwise they are printed as shares with four decimal places.
    """

    rows: Sequence[StudyRow]
    columns: Sequence[Column]
    percent: bool

    @property
    def tested_column(self) -> str:
        """Name of the metric column that the significance test compares.

        It is the first column of a text-to-audio mAP (named `T2A mAP...`), or `T2A mAP@10` if the table has no such
        column. For a table of moments it is R1@0.7.
        """
        if set(self.columns) & set(OF_MOMENTS):
            return "R1@0.7"
        return next((column for column in self.columns if column.startswith("T2A mAP")), "T2A mAP@10")

    @property
    def validation(self) -> list[str]:
        """Names of the validation metrics that chose the checkpoints; each name occurs once.

        Users should choose cells of the study by these metrics too, not by test metrics.
        """
        return list(dict.fromkeys(row.chosen_by for row in self.rows if row.chosen_by))

    @property
    def facts(self) -> list[str]:
        """Names of the table's additional columns, each once, such as chance (the metric of a random ranking)."""
        return list(dict.fromkeys(name for row in self.rows for name in row.facts))

    def format(self, value: float | None) -> str:
        """Format a number of the table as per cent or as a share, as the study states; "" for None."""
        if value is None:
            return ""
        return f"{100 * value:.1f}" if self.percent else f"{value:.4f}"

    def mean_and_spread(self, values: Sequence[float]) -> str:
        """Format numbers as mean ± sample standard deviation (n - 1); only as the mean if there is one number.

        Numbers that are not known (NaN) give an empty text.
        """
        mean, spread = _mean_and_deviation(values)
        return self.format(mean) if spread is None else f"{self.format(mean)} ± {self.format(spread)}"

    def best_row(self, data: str, column: str) -> StudyRow:
        """Return the row with the highest mean in a column, among the table's rows of the rank entry `data`.

        If several rows are equal, it is the first of them.
        """
        return max((row for row in self.rows if row.data == data), key=lambda row: statistics.mean(row.means(column)))

    def format_p(self, row: StudyRow) -> str:
        """Format the p-value of a paired test that compares a row with the best row; "best" for the best row itself."""
        best = self.best_row(row.data, self.tested_column)
        if row is best:
            return "best"
        found = paired_difference(
            best.per_query(self.tested_column), row.per_query(self.tested_column), row.runs[0].groups
        )
        return f"{found.p:.4f}"

    @property
    def header(self) -> list[str]:
        """Titles of the table's columns."""
        validation = [f"validation {metric}" for metric in self.validation]
        return ["cell", "data", "seeds", "clips", *validation, *self.columns, f"p of {self.tested_column}", *self.facts]

    def _validation_cell(self, row: StudyRow, metric: str) -> str:
        """Format mean and spread of a validation metric over the seeds. A loss is never formatted in per cent."""
        values = row.validation_values(metric)
        return replace(self, percent=self.percent and metric != "loss").mean_and_spread(values)

    def _lines(self, bold: str) -> list[list[str]]:
        """Return the table's rows as texts, with a paper's figures in extra rows. bold: Format string of best means."""
        lines = []
        for row in self.rows:
            texts = []
            for column in self.columns:
                values, best = row.means(column), self.best_row(row.data, column).means(column)
                is_best = statistics.mean(values) == statistics.mean(best) and len(self.rows) > 1
                texts.append((bold if is_best else "{}").format(self.mean_and_spread(values)))
            facts = [self.format_p(row), *(self.format(row.facts.get(name)) for name in self.facts)]
            validation = [self._validation_cell(row, metric) for metric in self.validation]
            known = [row.cell, row.data, str(len(row.runs)), f"{row.runs[0].clips:,}"]
            lines.append([*known, *validation, *texts, *facts])
            if row.paper:
                paper = ["" if value is None else f"{value:g}" for value in row.paper]
                lines.append([f"{row.cell}, paper", "", "", "", *[""] * len(validation), *paper, *[""] * len(facts)])
        return lines

    def notes(self) -> list[str]:
        """Return the notes that are printed below the table, such as definitions of its metrics."""
        notes = [note for key, note in NOTES.items() if any(key in column for column in self.columns)]
        notes += [WITHOUT_CUT] if any(column in ("T2A mAP", "A2T mAP") for column in self.columns) else []
        if self.validation:
            notes.append(CHOOSE)
        if monitoring := dict.fromkeys(row.cell for row in self.rows if row.monitors_test):
            notes.append(f"Beware: the validation of {', '.join(monitoring)} uses a test split.")
        if len(self.rows) > 1:
            notes.append(
                f"Bold: the highest mean. p: p-value of a paired randomisation test against the best cell. The test "
                f"compares {self.tested_column} query by query, as a mean over seeds."
            )
        return notes

    def markdown(self) -> str:
        """Return the table and its notes as Markdown."""
        lines = [self.header, ["---"] * len(self.header), *self._lines("**{}**")]
        table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
        return table + "".join(f"\n{note}\n" for note in self.notes())

    def latex(self) -> str:
        """Return the table as a LaTeX tabular of the booktabs package."""
        rows = [self.header, *self._lines(r"\textbf{{{}}}")]
        texts = [" & ".join(_escape_latex(cell) for cell in cells) + r" \\" for cells in rows]
        body = "\n".join([r"\toprule", texts[0], r"\midrule", *texts[1:], r"\bottomrule"])
        return f"\\begin{{tabular}}{{l{'c' * (len(self.header) - 1)}}}\n{body}\n\\end{{tabular}}\n"

    def csv(self) -> str:
        """Return the table as CSV: for every column the mean, the spread over seeds, and the published figure."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        parts = [f"{column} {part}" for column in self.columns for part in ("mean", "std", "paper")]
        validation = [f"validation {metric} {part}" for metric in self.validation for part in ("mean", "std")]
        writer.writerow(["cell", "data", "seeds", "clips", *validation, *parts, "p", *self.facts])
        for row in self.rows:
            numbers: list[object] = []
            for metric in self.validation:
                numbers += _mean_and_deviation(row.validation_values(metric))
            for index, column in enumerate(self.columns):
                numbers += [*_mean_and_deviation(row.means(column)), row.paper[index] if row.paper else None]
            facts = [row.cell, row.data, len(row.runs), row.runs[0].clips]
            writer.writerow([*facts, *numbers, self.format_p(row), *map(row.facts.get, self.facts)])
        return text.getvalue()


def _mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and the standard deviation (n - 1) of values, each None if it is undefined.

    Both are undefined without values and with NaN. The standard deviation of a single value is undefined.
    """
    if not values or any(map(math.isnan, values)):
        return None, None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def _escape_latex(cell: str) -> str:
    """Return a cell's text with the characters _, % and ± escaped for LaTeX."""
    return cell.replace("_", r"\_").replace("%", r"\%").replace("±", r"$\pm$")
