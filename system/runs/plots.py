"""Figures of a run.

Draw the curves of a run's metrics, and the distribution of CIDEr-D in its corpus with the factor on margins.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from submission.plots import BLUE, ORANGE, new_figure, save
from submission.runs.record import EpochLine
from system.losses.cider import Distribution, MarginFactor
from system.runs.curves import CURVES, draw_line
from system.runs.folder import Run


def draw_relevance(
    distribution: Distribution, percents: Sequence[float], factor: MarginFactor, title: str, path: Path
) -> None:
    """Draw the histogram of relevance (CIDEr-D), and the factor on the margin of the ranking loss, to a file.

    The file is .svg or .png. Both axes are logarithmic. The curve of the factor r(c), with its thresholds, is drawn
    over the histogram. The first bar contains all scores below 2^-10, most of them 0. percents: For each threshold,
    the percentile of CIDEr-D at which it lies, for its label.
    """
    edges, counts = np.array(distribution.edges), np.array(distribution.counts)
    edges[0] = edges[1] / 2  # a logarithmic axis has no 0
    figure = new_figure()
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="CIDEr-D (first bar: below 0.001)", ylabel="pairs")
    axes.set_title(title, loc="left", fontsize="medium")
    axes.stairs(counts, edges, fill=True, color=BLUE, alpha=0.4)
    axes.set_ylim(bottom=0.5)

    curve = axes.twinx()
    curve.set(ylim=(0, 1.05), ylabel="r(c), factor on the margin")
    scores = np.geomspace(edges[0], edges[-1], 2000)
    curve.plot(scores, factor(scores), color=ORANGE)
    for percent, threshold in zip(percents, factor.thresholds, strict=True):
        if threshold > edges[0]:
            curve.axvline(threshold, color=ORANGE, linestyle=":", linewidth=1)
            curve.annotate(f"c{percent:g}", (threshold, 0.02), rotation=90, ha="right", color=ORANGE)
    save(figure, path)


def draw_run(run: Run) -> list[Path]:
    """Draw curves of the run's metrics over the epochs of all stages. Returns: The paths of the written files."""
    lines = run.read_metrics()
    run.figures.mkdir(exist_ok=True)
    return [
        _draw_curves(run.figures / f"{name}.svg", lines, axis, labels)
        for name, (_, axis, labels) in CURVES.items()
        if any(line.value(key) is not None for line in lines for key in labels)
    ]


def _draw_curves(path: Path, lines: list[EpochLine], axis: str, labels: dict[str, str]) -> Path:
    """Draw curves of metrics over epochs. axis: Label of the vertical axis. labels: Dict from metric to its label."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel="epoch", ylabel=axis)
    for number, (key, label) in enumerate(labels.items()):
        points = {float(n): value for n, line in enumerate(lines, 1) if (value := line.value(key)) is not None}
        if points:
            draw_line(axes, list(points), list(points.values()), label, number)
    for n in range(1, len(lines)):
        if lines[n].stage != lines[n - 1].stage:
            axes.axvline(n + 0.5, color="grey", linestyle=":")
    stages = dict.fromkeys(line.stage for line in lines)
    axes.set_title(", then ".join(stages), fontsize="medium")
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    save(figure, path)
    return path
