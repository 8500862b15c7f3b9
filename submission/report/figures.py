"""The figures of the page, as SVG."""

from collections.abc import Mapping, Sequence

from submission.metrics.summary import Summary
from submission.plots import BLUE, ORANGE, new_figure, svg_of

LONGEST = 30  # characters of a label


def draw_systems(systems: Mapping[str, Summary], levels: Mapping[str, float]) -> bytes:
    """Draw the primary metric of systems, beside reference values."""
    first = next(iter(systems.values()))
    names = [*systems, *levels]
    figure = new_figure(1.1 + 0.35 * len(names))
    axes = figure.add_subplot(xlabel=first.primary)
    for position, summary in enumerate(systems.values()):
        axes.plot(summary.bootstrap, [position] * 2, color=BLUE, linewidth=5, alpha=0.4)
        axes.plot([summary.values[first.primary]], [position], "o", color=BLUE)
    axes.plot(list(levels.values()), range(len(systems), len(names)), "D", color=ORANGE)
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
