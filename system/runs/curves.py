"""The learning curves of a run, and the style of their lines."""

from typing import TYPE_CHECKING

from submission.plots import BLUE, GREEN, GREY, ORANGE, PURPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Lines also differ in dashes and markers, for colour-blind readers.
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


def draw_line(axes: "Axes", x: list[float], y: list[float], label: str, number: int) -> None:
    """Draw a curve into `axes`. number: Index of its style, which is a colour, dashes and a marker."""
    colour, dash, marker = STYLES[number % len(STYLES)]
    axes.plot(x, y, dash, color=colour, marker=marker if len(x) < MARKED else None, markersize=4, label=label)
