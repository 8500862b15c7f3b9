"""The verb `experts`: what every kind of expert is, costs and needs. Never imports torch."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from data_tools.strict import kinds_of
from system.experts import Expert
from system.experts.base import ExpertSettings
from system.recipe.load import load_recipe

FACTS = ("expert", "Hz", "dim", "frames/s", "parameters", "s per s")
FILES = ("weights of", "file", "", "where it is from")


def usual(folder: Path) -> dict[str, ExpertSettings]:
    """An expert of every kind by its kind, weight files under their published names in a folder."""
    experts = [kind.in_folder(folder) for kind in kinds_of(Expert) if issubclass(kind, ExpertSettings)]
    return {expert.kind: expert for expert in experts}


def table(experts: dict[str, ExpertSettings]) -> str:
    """A row an expert, then a row for each of its weight files."""
    facts: list[Sequence[str]] = [FACTS]
    files: list[Sequence[str]] = [FILES]
    for name, expert in experts.items():
        rates = str(expert.rate), str(expert.dim), f"{expert.frames_per_second:.2f}"
        facts.append((name, *rates, f"{expert.parameters:,}", f"{expert.cost:.4f}"))
        for setting, path in expert.weight_files().items():
            source = expert.published_addresses().get(setting, expert.weight_source())
            files.append((f"{name}.{setting}", str(path), "found" if path.is_file() else "MISSING", source))
    return "\n".join([*_aligned(facts), *(["", *_aligned(files)] if len(files) > 1 else [])])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    per_second = "`s per s`: seconds that two CPU cores take for a second of audio, as measured."
    parser.description = f"List the frozen audio models. {per_second}"
    listed = "list this recipe's experts (default: all kinds, weights in data/weights)"
    parser.add_argument("recipe", nargs="?", type=Path, help=listed)


def run(arguments: argparse.Namespace) -> int:
    if arguments.recipe is None:
        print(table(usual(Path("data/weights"))))
        print("\nThe files' names are the published ones, data/weights a suggestion; a recipe names its own.")
    else:
        print(table(dict(load_recipe(arguments.recipe).recipe.model.audio.experts)))
    return 0
