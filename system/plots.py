"""The figures of a run: its curves, and how CIDEr-D is distributed in its corpus and relaxes the loss."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_tools.files import replacing
from system.cider.pairs import Distribution
from system.cider.relax import Relax
from system.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# File name, axis, and the lines in it: name in metrics.jsonl -> label.
FIGURES = {
    "loss": ("loss", {"loss": "training", "validation.loss": "validation"}),
    "violations": (
        "share of negatives that violate the margin",
        {"violations": "full margin", "violations_relaxed": "relaxed margin"},
    ),
    "similarity": (
        "score in training batches",
        {"positive": "matching pairs", "hardest_negative": "hardest negatives"},
    ),
    "accuracy": ("validation", {"validation.m1": "m1", "validation.m2": "m2", "validation.mAP@10": "mAP@10"}),
}


def relevance_figure(found: Distribution, percents: Sequence[float], relax: Relax, title: str, path: Path) -> None:
    """Write a PNG: the histogram of scores, both axes logarithmic, and over it r(c) with its thresholds.

    The first bar holds all scores below 2^-10, most of them 0. percents: of relax's thresholds, for their names.
    """
    edges, counts = np.array(found.histogram.edges), np.array(found.histogram.counts)
    edges[0] = edges[1] / 2  # a logarithmic axis has no 0
    figure = _figure()
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="CIDEr-D (first bar: below 0.001)", ylabel="pairs")
    axes.set_title(title, loc="left", fontsize="medium")
    axes.stairs(counts, edges, fill=True, color="tab:blue", alpha=0.4)
    axes.set_ylim(bottom=0.5)

    curve = axes.twinx()
    curve.set(ylim=(0, 1.05), ylabel="r(c), factor on the margin")
    scores = np.geomspace(edges[0], edges[-1], 2000)
    curve.plot(scores, relax(scores), color="tab:red")
    for percent, threshold in zip(percents, relax.thresholds, strict=True):
        if threshold > edges[0]:
            curve.axvline(threshold, color="tab:red", linestyle=":", linewidth=1)
            curve.annotate(f"c{percent:g}", (threshold, 0.02), rotation=90, ha="right", color="tab:red")
    _save(figure, path)


def draw_run(run: Run) -> list[Path]:
    """Draw what the run's metrics hold into its figures folder; returns the files. Epochs count over all stages."""
    lines = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    run.figures.mkdir(exist_ok=True)
    return [
        _draw(run.figures / f"{name}.png", lines, axis, labels)
        for name, (axis, labels) in FIGURES.items()
        if any(_value(line, key) is not None for line in lines for key in labels)
    ]


def _value(line: dict[str, Any], key: str) -> float | None:
    part, _, name = key.rpartition(".")
    found = (line.get(part, {}) if part else line).get(name)
    return None if found is None else float(found)


def _draw(path: Path, lines: list[dict[str, Any]], axis: str, labels: dict[str, str]) -> Path:
    figure = _figure()
    axes = figure.add_subplot(xlabel="epoch", ylabel=axis)
    for key, label in labels.items():
        points = [(n, value) for n, line in enumerate(lines, 1) if (value := _value(line, key)) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 40 else None)
    for n in range(1, len(lines)):
        if lines[n]["stage"] != lines[n - 1]["stage"]:
            axes.axvline(n + 0.5, color="grey", linestyle=":")
    stages = dict.fromkeys(line["stage"] for line in lines)
    axes.set_title(", then ".join(stages), fontsize="medium")
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    _save(figure, path)
    return path


def _figure() -> "Figure":
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # its first import speaks of fonts
    from matplotlib.figure import Figure

    return Figure(figsize=(8, 4.5), dpi=150, layout="constrained")


def _save(figure: "Figure", path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
