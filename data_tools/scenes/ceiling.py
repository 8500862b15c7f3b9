"""The score that nobody can beat on composed scenes without luck, because different clips have the same label."""

import argparse
from collections import Counter
from pathlib import Path

from data_tools.cli import add_json, counted
from data_tools.documents.strict import Report, print_report
from data_tools.errors import DataError
from data_tools.scenes.compose import KINDS
from data_tools.tables import read_table

LABEL_COLUMNS = ("file_name", "split", "kind", "events")


class CeilingReport(Report):
    """clips: of the split. labels: different ones. ceiling: mAP@10."""

    split: str
    clips: int
    labels: int
    ceiling: float


def ceiling(folder: Path, split: str) -> float:
    """mAP@10 of a labeller without error whose ties fall at random, in (0, 1].

    folder: a folder of composed scenes. A caption's own clip is tied with all clips of the split that have the same
    label: with g of them its rank is uniform in 1 .. g, so the expected AP@10 is (1/g) * sum_{r=1..min(g,10)} 1/r.
    The label is the kind and the events: in any order for an overlap, else in order, the background apart.
    Raises DataError for a folder without labels.csv, bad rows, and a split without clips.
    """
    groups = label_groups(folder, split)
    return sum(sum(1 / rank for rank in range(1, min(size, 10) + 1)) for size in groups.values()) / groups.total()


def label_groups(folder: Path, split: str) -> Counter[tuple[str, ...]]:
    """How many clips of a split have each label. Raises DataError as ceiling does."""
    path = folder / "labels.csv"
    groups: Counter[tuple[str, ...]] = Counter()
    for line, row in read_table(path, LABEL_COLUMNS):
        events = row["events"].split(";")
        if len(events) != KINDS.get(row["kind"]) or not all(events):
            raise DataError(
                f"{path}, line {line}: {row['events']!r} are not the events of a scene of kind {row['kind']!r}"
            )
        if row["split"] == split:
            groups[row["kind"], *(sorted(events) if row["kind"] == "overlap" else events)] += 1
    if not groups:
        raise DataError(f"{path}: no clips in the split {split}")
    return groups


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="a folder of composed scenes")
    parser.add_argument("--split", default="evaluation", help="default: evaluation")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    groups = label_groups(arguments.folder, arguments.split)
    value = ceiling(arguments.folder, arguments.split)
    found = CeilingReport(split=arguments.split, clips=groups.total(), labels=len(groups), ceiling=value)
    if arguments.json:
        print_report(found)
    else:
        counts = f"{counted(found.clips, 'clip')}, {counted(found.labels, 'different label')}"
        print(f"{found.split}: {counts}, ceiling mAP@10 {value:.4f}")
    return 0
