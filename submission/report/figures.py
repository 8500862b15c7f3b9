"""The figures of the page, as SVG."""

from collections.abc import Mapping, Sequence

import numpy as np

from submission.metrics.summary import Summary
from submission.plots import BLUE, ORANGE, encoded, new_figure

LONGEST = 27  # characters of a label


def draw_systems(systems: Mapping[str, Summary], levels: Mapping[str, float]) -> bytes:
    """Draw the first system's primary metric of all that have it, beside reference values."""
    first = next(iter(systems.values()))
    systems = {name: one for name, one in systems.items() if first.primary in one.values}
    names = [*systems, *levels]
    scale, unit = (100, " in %") if first.of_moments else (1, "")
    figure = new_figure(1.1 + 0.35 * len(names))
    axes = figure.add_subplot(xlabel=first.primary + unit)
    for row, one in enumerate(systems.values()):
        axes.plot(scale * np.array(one.bootstrap), [row, row], color=BLUE, linewidth=5, alpha=0.4)
        axes.plot(scale * one.values[first.primary], row, "o", color=BLUE)
    for row, level in enumerate(levels.values(), len(systems)):
        axes.plot(scale * level, row, "o", color=ORANGE)
    axes.set_yticks(range(len(names)), [name[-LONGEST:] for name in names], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    return encoded(figure)


def draw_bars(labels: Sequence[str], values: Sequence[float], xlabel: str, ylabel: str) -> bytes:
    """Draw labelled bars."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.bar(range(len(labels)), values, 0.8, color=BLUE, alpha=0.75)
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right")
    return encoded(figure)
