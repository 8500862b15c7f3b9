"""The figures of a classification: ROC and precision-recall, reliability, scores, kept by threshold."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_tools.classify.crossfit import Weighting
from data_tools.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = ("roc_pr.png", "reliability.png", "scores.png", "kept.png")
_COLOURS = {"natural": "tab:blue", "balanced": "tab:orange"}


def draw(
    folder: Path, labels: np.ndarray, scores: dict[Weighting, np.ndarray], found: dict[str, Any], threshold: float
) -> None:
    """Write FIGURES, PNG files, into the folder.

    labels: (N,) True for captions. scores: (N,) by weighting. found: `report.weighting_figures` of them.
    """
    drawn = (_roc_pr(labels, scores, found), _reliability(found), _scores(labels, scores, threshold))
    for name, figure in zip(FIGURES, (*drawn, _draw_kept(found, threshold)), strict=True):
        with replacing(folder / name) as temporary:
            figure.savefig(temporary, format="png")


def _roc_pr(labels: np.ndarray, scores: dict[Weighting, np.ndarray], found: dict[str, Any]) -> "Figure":
    from sklearn.metrics import precision_recall_curve, roc_curve

    figure = _figure()
    left, right = figure.subplots(1, 2)
    left.set(xlabel="descriptions taken for captions", ylabel="captions found", title="ROC")
    right.set(xlabel="captions found", ylabel="captions among the found", title="precision and recall")
    for weighting, values in scores.items():
        colour = _COLOURS[weighting]
        wrong, right_share, _ = roc_curve(labels, values)
        left.plot(wrong, right_share, color=colour, label=_named(weighting, "AUC", found, "roc_auc"))
        precision, recall, _ = precision_recall_curve(labels, values)
        right.plot(recall, precision, color=colour, label=_named(weighting, "AP", found, "average_precision"))
    left.plot([0, 1], [0, 1], color="grey", linestyle=":")
    right.axhline(labels.mean(), color="grey", linestyle=":")
    for axes in (left, right):
        axes.legend(loc="lower center")
    return figure


def _named(weighting: str, short: str, found: dict[str, Any], key: str) -> str:
    return f"{weighting}, {short} {found[weighting][key]:.4f}"


def _reliability(found: dict[str, Any]) -> "Figure":
    figure = _figure()
    axes = figure.add_subplot(
        xlabel="mean score of a tenth", ylabel="share of captions in it", xlim=(0, 1), ylim=(0, 1)
    )
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
    for weighting, values in found.items():
        means, shares = ([row[name] for row in values["reliability"]] for name in ("score", "captions"))
        label = _named(weighting, "Brier", found, "brier")
        axes.plot(means, shares, marker="o", color=_COLOURS[weighting], label=label)
    axes.legend()
    return figure


def _scores(labels: np.ndarray, scores: dict[Weighting, np.ndarray], threshold: float) -> "Figure":
    figure = _figure()
    for axes, (weighting, values) in zip(figure.subplots(1, 2, sharey=True), scores.items(), strict=True):
        axes.set(xlabel="score", yscale="log", title=weighting)
        for name, chosen in (("descriptions", ~labels), ("captions", labels)):
            axes.hist(values[chosen], bins=np.linspace(0, 1, 51), histtype="step", label=name)
        axes.axvline(threshold, color="black", linestyle=":", label=f"{threshold:g}")
        axes.legend(loc="upper center")
    figure.axes[0].set_ylabel("texts")
    return figure


def _draw_kept(found: dict[str, Any], threshold: float) -> "Figure":
    figure = _figure()
    axes = figure.add_subplot(xlabel="threshold", ylabel="descriptions above it")
    for weighting, values in found.items():
        points = values["kept"]
        axes.plot([*map(float, points)], [*points.values()], marker=".", color=_COLOURS[weighting], label=weighting)
    axes.axvline(threshold, color="black", linestyle=":", label=f"{threshold:g}")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _figure() -> "Figure":
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # its first import speaks of fonts
    from matplotlib.figure import Figure

    return Figure(figsize=(9, 4.5), dpi=150, layout="constrained")
