"""Style of all figures.

All figures are readable on a phone, and for colour-blind readers.

The colours are those of Okabe and Ito, which also differ in lightness. Lines also differ in dashes and markers.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#aa4499", "#595959"
STYLES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"), (PURPLE, ":", "D"), (GREY, "-", "x"))
# The curves of a run: file name -> title, axis label, and its lines (key in metrics.jsonl -> label).
CURVES = {
    "loss": ("Loss", "loss", {"loss": "training", "validation.loss": "validation"}),
    "accuracy": (
        "Accuracy on validation",
        "validation",
        {"validation.m1": "m1", "validation.m2": "m2", "validation.mAP@10": "mAP@10", "validation.mAP@16": "mAP@16"},
    ),
    "similarity": (
        "Scores in training batches",
        "score in training batches",
        {"positive": "matching pairs", "hardest_negative": "hardest negatives"},
    ),
    "violations": (
        "Share of negatives that violate the margin",
        "share of negatives",
        {"violations": "full margin", "violations_relaxed": "relaxed margin"},
    ),
    "spread": (
        "Spread of validation embeddings (0: all equal)",
        "1 - mean cosine of all pairs of embeddings",
        {"spread_of_clips": "clips", "spread_of_captions": "captions"},
    ),
}
MARKED = 40  # lines with this many points or more get no markers, which would hide them


def new_figure(height: float = 3.2) -> "Figure":
    """Return an empty figure, 5.2 inches wide.

    On a phone it is about two thirds as wide, and its text stays readable.
    """
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # its first import logs messages about fonts
    from matplotlib.figure import Figure

    return Figure(figsize=(5.2, height), dpi=200, layout="constrained")


def draw_line(axes: "Axes", x: list[float], y: list[float], label: str, number: int) -> None:
    """Draw a curve into `axes`. number: Index of its style, which is a colour, dashes and a marker."""
    colour, dash, marker = STYLES[number % len(STYLES)]
    axes.plot(x, y, dash, color=colour, marker=marker if len(x) < MARKED else None, markersize=4, label=label)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as .svg or .png, by the suffix of `path`; the same figure always has the same bytes."""
    import matplotlib

    kind = path.suffix.removeprefix(".")
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "path"}), writing(path) as file:
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
