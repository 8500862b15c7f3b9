"""The figures of the page, as SVG."""

from collections.abc import Mapping, Sequence

from submission.metrics.summary import Summary
from submission.plots import BLUE, ORANGE, new_figure, svg_of

LONGEST = 30  # characters of a label


def draw_systems(systems: Mapping[str, Summary], levels: Mapping[str, float]) -> bytes:
    """Draw the primary metric of systems, beside reference values."""
    primary = next(iter(systems.values())).primary
    names = [*systems, *levels]
    values = [one.values[primary] for one in systems.values()] + list(levels.values())
    figure = new_figure(1.1 + 0.35 * len(names))
    axes = figure.add_subplot(xlabel=primary)
    axes.hlines(
        range(len(systems)),
        *zip(*(one.bootstrap for one in systems.values()), strict=True),
        color=BLUE,
        linewidth=5,
        alpha=0.4,
    )
    axes.scatter(values, range(len(names)), color=[BLUE] * len(systems) + [ORANGE] * len(levels), zorder=2)
    labels = [name[-LONGEST:].encode("ascii", "backslashreplace").decode() for name in names]
    axes.set_yticks(range(len(names)), labels, parse_math=False)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, max(1e-6, axes.get_xlim()[1])))
    return svg_of(figure)


def draw_bars(labels: Sequence[str], values: Sequence[float], xlabel: str, ylabel: str) -> bytes:
    """Draw labelled bars."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.bar(range(len(labels)), values, 0.8, color=BLUE, alpha=0.75)
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right")
    return svg_of(figure)
