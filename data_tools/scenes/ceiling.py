"""Score of a perfect labeller.

Computes the highest expected score on composed scenes. It is below 1 if several clips have the same label, because a
labeller cannot distinguish them.
"""

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
    """Result for a split. clips: Number of clips. labels: Number of different labels. ceiling: The mAP@10."""

    split: str
    clips: int
    labels: int
    ceiling: float


def ceiling(folder: Path, split: str) -> float:
    """Return the mAP@10 of a system that knows only the label (kind and events) of each scene; ties are random.

    folder: A folder of composed scenes. A caption's own clip is tied with all clips of the split with the same label.
    With g such clips, ranks 1 .. g are equally likely, so the expected AP@10 is (1/g) * sum_{r=1..min(g,10)} 1/r.
    The label is the kind and the events in their order, a background last. In an overlap, the order does not matter.
    Raises DataError for a folder without labels.csv, bad rows, and a split without clips.
    """
    groups = label_groups(folder, split)
    return sum(sum(1 / rank for rank in range(1, min(size, 10) + 1)) for size in groups.values()) / groups.total()


def label_groups(folder: Path, split: str) -> Counter[tuple[str, ...]]:
    """Return the number of clips of a split for each label, a tuple of the kind and the events of a scene.

    Raises DataError as `ceiling` does.
    """
    path = folder / "labels.csv"
    groups: Counter[tuple[str, ...]] = Counter()
    for line, row in read_table(path, LABEL_COLUMNS):
        events = row["events"].split(";")
        if len(events) != KINDS.get(row["kind"]) or not all(events):
            raise DataError(
                f"{path}, line {line}: {row['events']!r} has a wrong number of events for a scene of kind "
                f"{row['kind']!r}; correct it, or make the scenes again"
            )
        if row["split"] == split:
            groups[row["kind"], *(sorted(events) if row["kind"] == "overlap" else events)] += 1
    if not groups:
        raise DataError(f"{path}: no clips in the split {split}; choose another --split")
    return groups


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `ceiling` to its parser."""
    parser.add_argument("folder", type=Path, help="folder of composed scenes")
    parser.add_argument("--split", default="evaluation", help="split of the scenes (default: evaluation)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `ceiling`: print the mAP@10 of a perfect labeller of scenes; return the exit status."""
    groups = label_groups(arguments.folder, arguments.split)
    value = ceiling(arguments.folder, arguments.split)
    report = CeilingReport(split=arguments.split, clips=groups.total(), labels=len(groups), ceiling=value)
    if arguments.json:
        print_report(report)
    else:
        print(
            f"{report.split}: {counted(report.clips, 'clip')}, {counted(report.labels, 'different label')}, "
            f"ceiling mAP@10 {value:.4f}"
        )
    return 0
