"""Draw the figures.

Draw the figures of the report into files. Characters of labels that are not ASCII are escaped, for any font.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from submission.arrays import Ints, Values
from submission.editions import format_metric
from submission.metrics.moments_summary import MomentSummary
from submission.metrics.summary import Summary
from submission.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, save
from submission.report.statistics import Bar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 56  # maximum characters of a label
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
DASHES = ("--", ":", "-.")
HATCHES = ("", "///", "...", "\\\\\\", "xxx")


def draw_systems(
    path: Path, systems: Mapping[str, Summary | MomentSummary], levels: Mapping[str, float], metric: str
) -> None:
    """Draw a metric of each system with two confidence intervals, and reference values such as chance (`levels`).

    Args:
        systems: Dict from the name of a system to its metrics.
        levels: Dict from the name of a reference to its value; they are drawn below the systems, without an interval.
        metric: Metric to draw.
    """
    rows = len(systems) + len(levels)
    figure = new_figure(1.1 + 0.45 * rows)
    axes = figure.add_subplot(xlabel=metric)
    for position, (name, summary) in enumerate(systems.items()):
        is_first, row = position == 0, [position, position]
        colour, size = (BLUE, 8) if is_first else (GREY, 6)
        names = ("95 % bootstrap", "95 % jackknife") if is_first else (None, None)  # each only once in the legend
        axes.plot(summary.bootstrap, row, color=colour, linewidth=5, alpha=0.4, label=names[0])
        axes.plot(summary.interval, row, color=colour, linewidth=1.5, label=names[1])
        value = summary.values[metric]
        axes.plot([value], [position], "o", color=colour, markersize=size)
        _draw_label(axes, f"{name}  {format_metric(metric, value)}", position, bold=is_first)
    for position, (name, value) in enumerate(levels.items(), start=len(systems)):
        axes.plot([value], [position], "D", color=ORANGE, markersize=5, fillstyle="none")
        _draw_label(axes, f"{name}  {format_metric(metric, value)}", position)
    axes.set(ylim=(rows - 0.6, -0.75), yticks=[])
    axes.set_xlim(0, max(1e-6, axes.get_xlim()[1]))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["left", "top", "right"]].set_visible(False)
    save(figure, path)


def draw_ranks(path: Path, labels: Sequence[str], counts: Sequence[int], random: Sequence[float]) -> None:
    """Draw the share of queries in each bin of ranks, next to the share for clips in random order."""
    total = sum(counts)
    figure = new_figure()
    axes = figure.add_subplot(xlabel="rank of the first relevant clip", ylabel=f"% of {total:,} queries")
    positions, shares, chances = np.arange(len(labels)), 100 * np.array(counts) / total, 100 * np.array(random)
    axes.bar(positions, shares, 0.8, color=BLUE, alpha=0.75, label="this run")
    axes.plot(positions, chances, "_", color=ORANGE, markersize=19, markeredgewidth=2, label="random order")
    room = 0.06 * max(*shares, *chances)  # height of a number above its bar, or above the line that would cross it
    for position, share, chance, count in zip(positions, shares, chances, counts, strict=True):
        above = chance if 0 <= chance - share < room else share
        axes.annotate(f"{count:,}", (position, above), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(positions, labels, rotation=35, ha="right")
    axes.margins(y=0.1)
    axes.legend()
    save(figure, path)


def draw_scores(path: Path, edges: Values, counts: Mapping[str, Ints], unit: str) -> None:
    """Draw histograms of scores with common bins. counts: Dict from the name of a histogram to the queries per bin."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel=unit, ylabel="queries")
    for number, (name, values) in enumerate(counts.items()):
        axes.stairs(values, edges, fill=True, color=COLOURS[number], alpha=0.35, hatch=HATCHES[number])
        axes.stairs(values, edges, color=COLOURS[number], linestyle=("-", "--")[number % 2], label=name)
    axes.legend()
    save(figure, path)


def draw_score_differences(path: Path, edges: Values, counts: Ints, unit: str, marks: Sequence[float]) -> None:
    """Draw a histogram of each query's best relevant score minus its best other score, with vertical lines (`marks`).

    Args:
        edges: Limits of the bins, in units of the score.
        counts: Number of queries per bin.
        unit: Label of the horizontal axis.
        marks: Positions of the lines: the margins of the training loss. Another line is drawn at 0.
    """
    figure = new_figure()
    axes = figure.add_subplot(xlabel=unit, ylabel="queries")
    axes.stairs(counts, edges, fill=True, color=BLUE, alpha=0.5)
    axes.axvline(0, color=GREY, linewidth=1)
    for number, mark in enumerate(marks):
        axes.axvline(mark, color=ORANGE, linestyle=DASHES[number % len(DASHES)], label=f"margin {mark:g}")
    if marks:
        axes.legend()
    save(figure, path)


def draw_boxes(path: Path, values: Mapping[str, Values], ylabel: str) -> None:
    """Draw a box plot for each name in `values`: quartiles, median, and whiskers at the 5th and 95th percentile."""
    figure = new_figure()
    axes = figure.add_subplot(ylabel=ylabel)
    drawn = axes.boxplot(list(values.values()), whis=(5, 95), showfliers=False, patch_artist=True, widths=0.5)
    for number, box in enumerate(drawn["boxes"]):
        box.set(facecolor=COLOURS[number % len(COLOURS)], alpha=0.45, hatch=HATCHES[number % len(HATCHES)])
    for line in drawn["medians"]:
        line.set(color="black", linewidth=2)
    axes.set_xticks(np.arange(1, len(values) + 1), list(values))
    axes.set_ylim(bottom=0)
    save(figure, path)


def draw_bars(path: Path, bars: Sequence[Bar], xlabel: str, ylabel: str, level: float) -> None:
    """Draw bars of means with intervals and numbers of queries. level: Mean over all queries, drawn as a line."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel, ylim=(0, 1.08))
    positions, means = np.arange(len(bars)), np.array([bar.mean for bar in bars])
    ends = np.array([bar.interval for bar in bars]).T
    axes.bar(positions, means, 0.75, color=BLUE, alpha=0.55)
    axes.errorbar(positions, means, np.abs(ends - means), fmt="none", ecolor="black", elinewidth=1.2, capsize=3)
    axes.axhline(level, color=ORANGE, linestyle="--", linewidth=1.2, label=f"all: {level:.3f}")
    for position, bar in zip(positions, bars, strict=True):
        axes.annotate(f"n {bar.n:,}", (position, 0.02), ha="center", fontsize=8)
    axes.set_xticks(positions, [bar.label for bar in bars])
    axes.set_xlim(-0.6, max(len(bars), 3) - 0.4)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
    save(figure, path)


def _draw_label(axes: "Axes", text: str, position: int, bold: bool = False) -> None:
    """Write the label of a system into `axes`, above its dot and at the left. The label is not parsed as a formula."""
    plain = text if len(text) <= LONGEST else f"{text[: LONGEST // 2 - 1]}...{text[-LONGEST // 2 + 2 :]}"
    plain = plain.encode("ascii", "backslashreplace").decode()
    left = axes.get_yaxis_transform()
    weight = "bold" if bold else "normal"
    axes.text(0.0, position - 0.28, plain, transform=left, va="bottom", parse_math=False, fontweight=weight)
