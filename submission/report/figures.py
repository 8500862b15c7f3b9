"""The figures of the page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from submission.metrics.summary import Summary
from submission.plots import BLUE, GREY, ORANGE, new_figure, save

LONGEST = 56  # characters of a label


def draw_systems(path: Path, systems: Mapping[str, Summary], levels: Mapping[str, float]) -> None:
    """Draw the primary metric of each system with its intervals, and reference values such as chance."""
    first = next(iter(systems.values()))
    rows = len(systems) + len(levels)
    figure = new_figure(1.1 + 0.45 * rows)
    axes = figure.add_subplot(xlabel=first.primary)
    for position, (name, summary) in enumerate(systems.items()):
        colour = GREY if position else BLUE
        value = summary.values[first.primary]
        axes.plot(summary.bootstrap, [position] * 2, color=colour, linewidth=5, alpha=0.4)
        axes.plot(summary.interval, [position] * 2, color=colour, linewidth=1.5)
        axes.plot([value], [position], "o", color=colour)
        _label(axes, f"{name}  {first.format(value)}", position)
    for position, (name, value) in enumerate(levels.items(), start=len(systems)):
        axes.plot([value], [position], "D", color=ORANGE, fillstyle="none")
        _label(axes, f"{name}  {first.format(value)}", position)
    axes.set(ylim=(rows - 0.6, -0.75), yticks=[], xlim=(0, max(1e-6, axes.get_xlim()[1])))
    axes.spines[["left", "top", "right"]].set_visible(False)
    save(figure, path)


def _label(axes, text: str, position: int) -> None:  # type: ignore[no-untyped-def]
    plain = (
        (text if len(text) <= LONGEST else f"...{text[-LONGEST + 3 :]}").encode("ascii", "backslashreplace").decode()
    )
    axes.text(0.0, position - 0.28, plain, transform=axes.get_yaxis_transform(), va="bottom", parse_math=False)


def draw_bars(path: Path, labels: Sequence[str], values: Sequence[float], xlabel: str, ylabel: str) -> None:
    """Draw labelled bars."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.bar(np.arange(len(labels)), values, 0.8, color=BLUE, alpha=0.75)
    axes.set_xticks(np.arange(len(labels)), labels, rotation=35, ha="right")
    save(figure, path)
