"""The figures of the page, as SVG."""

from collections.abc import Mapping, Sequence

import numpy as np

from submission.metrics.summary import Summary
from submission.plots import BLUE, ORANGE, encoded, new_figure

LONGEST = 27  # characters of a label


def draw_systems(systems: Mapping[str, Summary], levels: Mapping[str, float]) -> bytes:
    """Draw the primary metric of systems, beside reference values."""
    first, names = next(iter(systems.values())), [*systems, *levels]
    scale, unit = (100, " in %") if first.of_moments else (1, "")
    values = [*(one.values[first.primary] for one in systems.values()), *levels.values()]
    bounds = scale * np.array([one.bootstrap for one in systems.values()])
    figure = new_figure(1.1 + 0.35 * len(names))
    axes = figure.add_subplot(xlabel=first.primary + unit)
    axes.hlines(range(len(systems)), bounds[:, 0], bounds[:, 1], color=BLUE, linewidth=5, alpha=0.4)
    colours = [BLUE] * len(systems) + [ORANGE] * len(levels)
    axes.scatter(scale * np.array(values), range(len(names)), color=colours, zorder=2)
    axes.set_yticks(range(len(names)), [short(name) for name in names], parse_math=False)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, max(1e-6, axes.get_xlim()[1])))
    return encoded(figure)


def short(name: str) -> str:
    """Return the end of a name, in letters that every font has."""
    text = name.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= LONGEST else f"...{text[-LONGEST:]}"


def draw_bars(labels: Sequence[str], values: Sequence[float], xlabel: str, ylabel: str) -> bytes:
    """Draw labelled bars."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.bar(range(len(labels)), values, 0.8, color=BLUE, alpha=0.75)
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right")
    return encoded(figure)
