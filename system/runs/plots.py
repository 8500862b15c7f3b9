"""Figures of a run: curves of its metrics."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from submission.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, save
from submission.runs.record import EpochLine
from system.runs.folder import Run

# Lines also differ in dashes and markers, for colour-blind readers.
STYLES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"), (PURPLE, ":", "D"), (GREY, "-", "x"))
MARKED = 40  # points of a line with markers, at most; more would hide the line
# The curves of a run: file name -> axis label, and its lines (key in metrics.jsonl -> label).
CURVES = {
    "loss": ("loss", {"loss": "training", "validation.loss": "validation"}),
    "accuracy": ("validation", {f"validation.{name}": name for name in ("m1", "m2", "mAP@10", "mAP@16")}),
    "similarity": (
        "score in training batches",
        {"positive": "matching pairs", "hardest_negative": "hardest negatives"},
    ),
    "violations": ("share of negatives", {"violations": "full margin", "violations_relaxed": "relaxed margin"}),
    "spread": (
        "1 - mean cosine of all pairs of embeddings (0: all equal)",
        {"spread_of_clips": "clips", "spread_of_captions": "captions"},
    ),
}


def draw_run(run: Run) -> list[Path]:
    """Draw curves of the run's metrics, and return their files."""
    lines = run.read_metrics()
    run.figures.mkdir(exist_ok=True)
    return [
        _draw_curves(run.figures / f"{name}.svg", lines, axis, labels)
        for name, (axis, labels) in CURVES.items()
        if any(line.value(key) is not None for line in lines for key in labels)
    ]


def _draw_curves(path: Path, lines: Sequence[EpochLine], axis: str, labels: Mapping[str, str]) -> Path:
    figure = new_figure()
    axes = figure.add_subplot(xlabel="epoch", ylabel=axis)
    for (key, label), (colour, dash, marker) in zip(labels.items(), STYLES, strict=False):
        points = {float(n): value for n, line in enumerate(lines, 1) if (value := line.value(key)) is not None}
        if points:
            every = len(points) // MARKED + 1
            axes.plot(
                *zip(*points.items(), strict=True), dash, color=colour, label=label,
                marker=marker, markersize=4, markevery=every,
            )  # fmt: skip
    for n in range(1, len(lines)):
        if lines[n].stage != lines[n - 1].stage:
            axes.axvline(n + 0.5, color="grey", linestyle=":")
    axes.set_title(", then ".join(dict.fromkeys(line.stage for line in lines)), fontsize="medium")
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    save(figure, path)
    return path
