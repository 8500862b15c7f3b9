"""Evaluate the scores.

Computes figures for report.json, draws them, selects examples to read, and formats the output of `classify`.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_tools.classify.crossfit import WEIGHTINGS, CrossFit, Weighting, class_weights
from data_tools.cli import counted
from data_tools.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# N texts: first the descriptions, then the captions

THRESHOLDS = [round(0.05 * n, 2) for n in range(1, 20)]
EXAMPLES = 10
_BINS = 10  # in the reliability table
FIGURES = ("roc_pr.png", "reliability.png", "scores.png", "kept.png")
_COLOURS = {"natural": "tab:blue", "balanced": "tab:orange"}


def count_above(scores: np.ndarray, threshold: float) -> int:
    """Return the number of scores above the threshold; a score equal to the threshold does not count."""
    return int((scores > threshold).sum())


def reliability(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> list[dict[str, float]]:
    """Divide texts into ten groups by score; return a dict of each group's mean score and true share of captions.

    The groups are equal parts of [0, 1]; empty groups are left out. In the mean and the share, each text has its weight
    from `weights`. The keys of a dict are `score` (mean), `captions` (share) and `texts` (number).
    """
    bins = np.minimum((scores * _BINS).astype(int), _BINS - 1)
    total, of_scores, of_captions = (
        np.bincount(bins, weights * values, _BINS) for values in (np.ones(len(scores)), scores, labels)
    )
    return [
        {"score": of_scores[n] / total[n], "captions": of_captions[n] / total[n], "texts": int((bins == n).sum())}
        for n in range(_BINS)
        if total[n]
    ]


def weighting_figures(labels: np.ndarray, fit: CrossFit, threshold: float) -> dict[str, dict[str, Any]]:
    """Return measures of how well each class weighting's scores separate captions (labels True) from descriptions.

    With the class weighting `natural`, every text had the same weight in training; with `balanced`, captions and
    descriptions had the same total weight.

    Returns: a dict from class weighting to these figures:
        roc_auc, average_precision: In [0, 1], over all texts, without weights.
        roc_auc_by_fold: ROC AUC of the texts of each fold.
        brier: Brier score, the weighted mean of (score - label)^2. The weights are those of the training.
        reliability: For each tenth of [0, 1] that contains scores: their mean and the share of captions, both with the
            same weights, and the number of texts.
        kept: Dict from each threshold in THRESHOLDS to the number of descriptions with a score above it.
        kept_at_threshold: Number of descriptions with a score above `threshold`.
    """
    from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

    figures: dict[str, dict[str, Any]] = {}
    parts = [fit.folds == fold for fold in np.unique(fit.folds)]
    for weighting in WEIGHTINGS:
        scores, weights = fit.scores[weighting], class_weights(labels, weighting)
        figures[weighting] = {
            "roc_auc": float(roc_auc_score(labels, scores)),
            "roc_auc_by_fold": [float(roc_auc_score(labels[part], scores[part])) for part in parts],
            "average_precision": float(average_precision_score(labels, scores)),
            "brier": float(brier_score_loss(labels, scores, sample_weight=weights)),
            "reliability": reliability(labels, scores, weights),
            "kept": {f"{least:.2f}": count_above(scores[~labels], least) for least in THRESHOLDS},
            "kept_at_threshold": count_above(scores[~labels], threshold),
        }
    return figures


def examples(
    scores: dict[Weighting, np.ndarray],
    descriptions: Sequence[str],
    captions: Sequence[str],
    threshold: float,
    seed: int,
) -> str:
    """Return example texts for a person to judge, with high, low and random scores, for both class weightings.

    With the class weighting `natural`, every text had the same weight in training; with `balanced`, captions and
    descriptions had the same total weight. Each list of examples shows a text only once.
    scores: Dict from class weighting to the scores of N texts, (N,): first all descriptions, then all captions.
    threshold: Some lists show descriptions above this score, others descriptions below it. seed: Decides the random
    examples.
    """
    lines: list[str] = []
    for weighting, values in scores.items():
        description_scores, others = values[: len(descriptions)], values[len(descriptions) :]
        above, below = np.flatnonzero(description_scores > threshold), np.flatnonzero(description_scores <= threshold)
        parts = {
            "descriptions with the highest scores": np.argsort(-description_scores, kind="stable"),
            f"descriptions above {threshold:g}, drawn at random": np.random.default_rng(seed).permutation(above),
            f"descriptions just above {threshold:g}": above[np.argsort(description_scores[above], kind="stable")],
            f"descriptions just below {threshold:g}": below[np.argsort(-description_scores[below], kind="stable")],
        }
        for title, order in parts.items():
            lines += [f"{weighting}: {title}", *_format_texts(order, description_scores, descriptions), ""]
        lowest = np.argsort(others, kind="stable")
        lines += [f"{weighting}: captions with the lowest scores", *_format_texts(lowest, others, captions), ""]
    return "\n".join(lines)


def _format_texts(order: np.ndarray, scores: np.ndarray, texts: Sequence[str]) -> list[str]:
    """Return lines that show EXAMPLES different texts and their scores. order: Indices of the texts, sorted."""
    first: dict[str, float] = {}
    for number in order:
        first.setdefault(texts[number], scores[number])
        if len(first) == EXAMPLES:
            break
    return [f"  {value:.3f}  {text}" for text, value in first.items()]


def summary(report: dict[str, Any]) -> list[str]:
    """Return the results of a classification as lines for the terminal."""
    described, captioned = report["descriptions"], report["captions"]
    other = sum(count for language, count in report["languages"].items() if language != "en")
    model = report["model"]
    lines = [
        f"descriptions: {described['read']} read, {described['scored']} scored, {described['empty']} empty after "
        f"cleaning, {other} not in English",
        f"captions: {captioned['scored']} scored, which belong to {counted(captioned['clips'], 'clip')}",
        f"embeddings: {model['name']}, {model['dim']} dimensions; {counted(model['computed'], 'text')} computed now, "
        f"{model['distinct_texts'] - model['computed']} already stored",
    ]
    threshold = report["settings"]["threshold"]
    for weighting, figures in report["weightings"].items():
        lines.append(
            f"{weighting + ':':10}ROC AUC {figures['roc_auc']:.4f}, "
            f"average precision {figures['average_precision']:.4f}, Brier {figures['brier']:.4f}; "
            f"{counted(figures['kept_at_threshold'], 'description')} above {threshold:g}"
        )
    return lines


def draw(
    folder: Path, labels: np.ndarray, scores: dict[Weighting, np.ndarray], figures: dict[str, Any], threshold: float
) -> None:
    """Draw the results of a classification as PNG files, whose names are in FIGURES, in a folder.

    Args:
        folder: Folder for the files.
        labels: (N,) for N texts, True for captions, False for descriptions.
        scores: Dict from class weighting (natural or balanced) to the score of each text, (N,).
        figures: Measures of the scores, such as the ROC AUC, as weighting_figures returns them.
        threshold: Score above which a description is kept, marked in the drawings.
    """
    drawn = (_draw_roc_pr(labels, scores, figures), _draw_reliability(figures), _draw_scores(labels, scores, threshold))
    for name, figure in zip(FIGURES, (*drawn, _draw_count_above(figures, threshold)), strict=True):
        with replacing(folder / name) as temporary:
            figure.savefig(temporary, format="png")


def _draw_roc_pr(labels: np.ndarray, scores: dict[Weighting, np.ndarray], figures: dict[str, Any]) -> "Figure":
    """Draw the ROC curve, and the curve of precision over recall, for both class weightings."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    figure = _empty_figure()
    left, right = figure.subplots(1, 2)
    left.set(xlabel="descriptions taken for captions", ylabel="captions found", title="ROC")
    right.set(xlabel="recall of captions", ylabel="precision: share of captions", title="precision and recall")
    for weighting, values in scores.items():
        colour = _COLOURS[weighting]
        wrong, right_share, _ = roc_curve(labels, values)
        left.plot(wrong, right_share, color=colour, label=_legend(weighting, "AUC", figures, "roc_auc"))
        precision, recall, _ = precision_recall_curve(labels, values)
        right.plot(recall, precision, color=colour, label=_legend(weighting, "AP", figures, "average_precision"))
    left.plot([0, 1], [0, 1], color="grey", linestyle=":")
    right.axhline(labels.mean(), color="grey", linestyle=":")
    for axes in (left, right):
        axes.legend(loc="lower center")
    return figure


def _legend(weighting: str, short: str, figures: dict[str, Any], key: str) -> str:
    """Return a curve's legend: class weighting, and value of the measure `key`. short: Printed name of the measure."""
    return f"{weighting}, {short} {figures[weighting][key]:.4f}"


def _draw_reliability(figures: dict[str, Any]) -> "Figure":
    """Draw the reliability diagram: for each tenth of the range of scores, the share of captions among the texts."""
    figure = _empty_figure()
    axes = figure.add_subplot(
        xlabel="mean score of texts in each tenth of the score range",
        ylabel="share of captions in each tenth",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
    for weighting, values in figures.items():
        means, shares = ([row[name] for row in values["reliability"]] for name in ("score", "captions"))
        label = _legend(weighting, "Brier", figures, "brier")
        axes.plot(means, shares, marker="o", color=_COLOURS[weighting], label=label)
    axes.legend()
    return figure


def _draw_scores(labels: np.ndarray, scores: dict[Weighting, np.ndarray], threshold: float) -> "Figure":
    """Draw two histograms: of the scores of captions, and of the scores of descriptions."""
    figure = _empty_figure()
    for axes, (weighting, values) in zip(figure.subplots(1, 2, sharey=True), scores.items(), strict=True):
        axes.set(xlabel="score", yscale="log", title=weighting)
        for name, chosen in (("descriptions", ~labels), ("captions", labels)):
            axes.hist(values[chosen], bins=np.linspace(0, 1, 51), histtype="step", label=name)
        axes.axvline(threshold, color="black", linestyle=":", label=f"{threshold:g}")
        axes.legend(loc="upper center")
    figure.axes[0].set_ylabel("texts")
    return figure


def _draw_count_above(figures: dict[str, Any], threshold: float) -> "Figure":
    """Draw the number of descriptions above each of THRESHOLDS, and mark the chosen `threshold`."""
    figure = _empty_figure()
    axes = figure.add_subplot(xlabel="threshold", ylabel="descriptions above it")
    for weighting, values in figures.items():
        points = values["kept"]
        axes.plot([*map(float, points)], [*points.values()], marker=".", color=_COLOURS[weighting], label=weighting)
    axes.axvline(threshold, color="black", linestyle=":", label=f"{threshold:g}")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _empty_figure() -> "Figure":
    """Return a new, empty matplotlib figure."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # its first import logs messages about fonts
    from matplotlib.figure import Figure

    return Figure(figsize=(9, 4.5), dpi=150, layout="constrained")
