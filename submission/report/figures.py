"""The figures of the page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from submission.metrics.summary import Summary
from submission.plots import BLUE, ORANGE, new_figure, save

LONGEST = 30  # characters of a label


def draw_systems(path: Path, systems: Mapping[str, Summary], levels: Mapping[str, float]) -> None:
    """Draw the primary metric of systems, beside reference values."""
    first = next(iter(systems.values()))
    figure = new_figure(1.1 + 0.35 * (len(systems) + len(levels)))
    axes = figure.add_subplot(xlabel=first.primary)
    for position, summary in enumerate(systems.values()):
        axes.plot(summary.bootstrap, [position] * 2, color=BLUE, linewidth=5, alpha=0.4)
        axes.plot([summary.values[first.primary]], [position], "o", color=BLUE)
    for position, value in enumerate(levels.values(), start=len(systems)):
        axes.plot([value], [position], "D", color=ORANGE)
    labels = [name[-LONGEST:].encode("ascii", "backslashreplace").decode() for name in (*systems, *levels)]
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlim=(0, max(1e-6, axes.get_xlim()[1])))
    save(figure, path)


def draw_bars(path: Path, labels: Sequence[str], values: Sequence[float], xlabel: str, ylabel: str) -> None:
    """Draw labelled bars."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.bar(np.arange(len(labels)), values, 0.8, color=BLUE, alpha=0.75)
    axes.set_xticks(np.arange(len(labels)), labels, rotation=35, ha="right")
    save(figure, path)
