"""Score descriptions.

The verb `classify`: reads descriptions and captions, writes a folder of scores, figures and examples.
"""

import argparse
import csv
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_tools.classify.clean import RULES, Cleaned, clean
from data_tools.classify.crossfit import CrossFit, Fitting, Texts, cross_fit
from data_tools.classify.embed import DEFAULT_MODEL, SentenceEncoder, open_embeddings
from data_tools.classify.inputs import Caption, Description, open_descriptions, read_captions
from data_tools.classify.model_files import PACKAGES
from data_tools.classify.report import FIGURES, draw, examples, summary, weighting_figures
from data_tools.cli import each
from data_tools.errors import DataError
from data_tools.files import replacing, require_file, write_text

COLUMNS = ("freesound_id", "score_natural", "score_balanced", "language", "text", "rules")


class Described(NamedTuple):
    id: str
    uploader: str | None
    cleaned: Cleaned


def classify(
    descriptions: Iterable[Description],
    captions: Sequence[Caption],
    encoder: SentenceEncoder,
    out: Path,
    fitting: Fitting,
    threshold: float = 0.2,
) -> dict[str, Any]:
    """Clean, embed and score descriptions, and write the results into a folder; return the content of report.json.

    scores.csv has one row per description, in the given order. Its columns are freesound_id, score_natural,
    score_balanced (6 decimals, in [0, 1]), language, text (cleaned), rules (names of the rules that changed the text,
    joined by ";"). For score_natural, every text had the same weight in training; for score_balanced, captions and
    descriptions had the same total weight. A description without a letter after cleaning is neither learnt from nor
    scored. Its text is empty, its scores are 0, and it only counts in the number of empty descriptions.
    threshold: Used only for counts, examples and figures; there, "kept" means a score above the threshold.
    Raises DataError if no description contains a word, and if a class has too few texts for training.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "cleaning"):
        shown = each(descriptions, "cleaning", "description")
        described = [Described(item.id, item.uploader, clean(item.text)) for item in shown]
        captioned = [(item.clip, clean(item.text)) for item in captions]
    scored = [item for item in described if item.cleaned.text]
    learnt = [(clip, cleaned.text) for clip, cleaned in captioned if cleaned.text]
    if not scored:
        raise DataError("no description contains a word, so none can be classified; check the file and --text-column")

    words = [*(item.cleaned.text for item in scored), *(text for _, text in learnt)]
    with _timed(seconds, "embedding"):
        embeddings = open_embeddings(out / "embeddings", encoder)
        computed = embeddings.add(words, encoder)
    with _timed(seconds, "training and scoring"):
        texts = _grouped_texts(scored, learnt, embeddings.rows(words))
        fit = cross_fit(embeddings.vectors(), texts, fitting)
    _write_scores(out / "scores.csv", described, fit)

    report: dict[str, Any] = {
        "descriptions": {
            "read": len(described),
            "empty": len(described) - len(scored),
            "scored": len(scored),
            "uploaders": len({item.uploader for item in described if item.uploader}),
        },
        "captions": {"read": len(captions), "scored": len(learnt), "clips": len({clip for clip, _ in captioned})},
        "rules": {
            "descriptions": _rule_counts(item.cleaned for item in described),
            "captions": _rule_counts(cleaned for _, cleaned in captioned),
        },
        "languages": dict(Counter(item.cleaned.language for item in described).most_common()),
        "model": {
            "name": encoder.name,
            "fingerprint": encoder.fingerprint,
            "dim": encoder.dim,
            "distinct_texts": len(set(words)),
            "computed": computed,
        },
        "settings": {**asdict(fitting), "threshold": threshold},
        "left_out_of_training": fit.left_out,
        "weightings": weighting_figures(texts.labels, fit, threshold),
        "seconds": seconds,
    }
    judged = examples(fit.scores, words[: len(scored)], words[len(scored) :], threshold, fitting.seed)
    write_text(out / "examples.txt", judged)
    with _timed(seconds, "figures"):
        draw(out, texts.labels, fit.scores, report["weightings"], threshold)
    write_text(out / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    return report


def _grouped_texts(descriptions: Sequence[Described], captions: Sequence[tuple[str, str]], rows: np.ndarray) -> Texts:
    """Return descriptions and (clip, caption) pairs as Texts, grouped by uploader or clip.

    Equal descriptions without an uploader form a group too. All texts of a group are scored by a network that learnt
    none of them.
    rows: For each description, then for each caption, its row in the array of embeddings.
    """
    keys = [("by", item.uploader) if item.uploader else ("text", item.cleaned.text) for item in descriptions]
    keys += [("clip", clip) for clip, _ in captions]
    numbers: dict[tuple[str, str], int] = {}
    groups = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(keys))
    return Texts(np.arange(len(keys)) >= len(descriptions), rows, groups)


def _write_scores(path: Path, described: Sequence[Described], fit: CrossFit) -> None:
    """Write the scores of all descriptions as a CSV file, one row each."""
    pairs = zip(fit.scores["natural"], fit.scores["balanced"], strict=True)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for id, _, (text, rules, language) in described:
            natural, balanced = next(pairs) if text else (0.0, 0.0)
            writer.writerow([id, f"{natural:.6f}", f"{balanced:.6f}", language, text, ";".join(rules)])


def _rule_counts(cleaned: Iterable[Cleaned]) -> dict[str, int]:
    """Return a dict from each cleaning rule to the number of texts that it changed; `empty`: texts without a letter."""
    counts = Counter(name for item in cleaned for name in item.rules)
    return {name: counts[name] for name in (*RULES, "empty")}


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Measure the duration of a block and store it in `seconds` under `name`."""
    began = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - began, 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `classify` to its parser."""
    add = parser.add_argument
    add("descriptions", type=Path, help="the descriptions: a store made by crawl, or a .csv file")
    add("--captions", type=Path, nargs="+", required=True, help="captions to learn from (.csv or .jsonl manifest)")
    add(
        "--out",
        type=Path,
        required=True,
        help="output folder; embeddings that an earlier call stored in it are used again",
    )
    add(
        "--model",
        default=DEFAULT_MODEL,
        help=f"a sentence-transformers model: folder, package ({', '.join(PACKAGES)}), or name on the "
        "Hugging Face hub (default: %(default)s)",
    )
    threshold = "score above which a text counts as a caption in the report (default: 0.2)"
    add("--threshold", type=float, default=0.2, help=threshold)
    add(
        "--folds",
        type=int,
        default=Fitting.folds,
        help=f"number of folds of cross-fitting, 2 or more (default: {Fitting.folds})",
    )
    add("--epochs", type=int, default=Fitting.epochs, help=f"epochs of training (default: {Fitting.epochs})")
    add("--seed", type=int, default=0, help="random seed of the folds and networks (default: 0)")
    add(
        "--text-column",
        default="description",
        help="in a .csv file: column with the descriptions (default: description)",
    )
    add("--id-column", help="in a .csv file: column with the ids (default: id; without it, rows are numbered)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `classify`: score how much descriptions are like captions; return the exit status."""
    fitting = _fitting_settings(arguments)
    require_file(arguments.descriptions, "make a store with lbar data crawl")
    captions, left_out = read_captions(arguments.captions)
    descriptions = open_descriptions(arguments.descriptions, arguments.text_column, arguments.id_column)
    first = list(islice(descriptions, 1))  # faults of the file are reported before a model is loaded
    encoder = SentenceEncoder(arguments.model)
    report = classify(chain(first, descriptions), captions, encoder, arguments.out, fitting, arguments.threshold)
    print(*summary(report), sep="\n")
    if left_out:
        print(f"captions of test splits that were left out: {left_out}")
    print(f"wrote {arguments.out}: scores.csv, report.json, examples.txt, {', '.join(FIGURES)}")
    return 0


def _fitting_settings(arguments: argparse.Namespace) -> Fitting:
    """Return the settings for training the classifier, from the options. Raises DataError for values out of range."""
    if not 0 < arguments.threshold < 1:
        raise DataError(f"--threshold {arguments.threshold:g}: use a value between 0 and 1")
    for name, least in (("folds", 2), ("epochs", 1), ("seed", 0)):
        if getattr(arguments, name) < least:
            raise DataError(f"--{name} {getattr(arguments, name)}: use {least} or more")
    return Fitting(arguments.folds, arguments.epochs, arguments.seed)
