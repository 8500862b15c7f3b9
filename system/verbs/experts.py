"""Verb experts: list audio models.

List every kind of expert with its weight files. Never imports torch.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from data_tools.cli import add_json
from data_tools.settings import kinds_of, print_report
from system.experts import Expert
from system.experts.base import ExpertSettings
from system.recipe.load import load_recipe
from system.verbs.json_output import ExpertReport, ExpertsReport, WeightFile

FACTS = ("expert", "Hz", "dim", "frames/s", "parameters")
FILES = ("weights of", "file", "", "licence", "source")


def default_experts(folder: Path) -> dict[str, ExpertSettings]:
    """Return a dict from each kind of expert to an expert of this kind with its default settings.

    folder: Folder of the weight files, which have their published names.
    """
    experts = [kind.with_weights_in(folder) for kind in kinds_of(Expert) if issubclass(kind, ExpertSettings)]
    return {expert.kind: expert for expert in experts}


def format_tables(experts: dict[str, ExpertSettings]) -> str:
    """Format a table of experts, and a table of their weight files, as text."""
    facts: list[Sequence[str]] = [FACTS]
    files: list[Sequence[str]] = [FILES]
    for name, expert in experts.items():
        rates = str(expert.rate), str(expert.dim), f"{expert.frames_per_second:.2f}"
        parameters = "of the model" if expert.hub_model else f"{expert.parameters:,}"
        facts.append((name, *rates, parameters))
        for setting, path in expert.weight_files().items():
            found = "found" if path.is_file() else "MISSING"
            licence = expert.licence or "not recorded"
            files.append((f"{name}.{setting}", str(path), found, licence, _source(expert, setting)))
    return "\n".join([*_align_rows(facts), *(["", *_align_rows(files)] if len(files) > 1 else [])])


def _align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `experts` to its parser."""
    parser.description = "List the frozen audio models."
    listed = "list this recipe's experts (default: all kinds of experts, with weight files in data/weights)"
    parser.add_argument("recipe", nargs="?", type=Path, help=listed)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `experts`: print the kinds of audio models and their weight files. Returns: The exit status."""
    if arguments.recipe is None:
        experts = default_experts(Path("data/weights"))
    else:
        experts = dict(load_recipe(arguments.recipe).recipe.model.audio.experts)
    if arguments.json:
        print_report(ExpertsReport(experts=[_report(name, expert) for name, expert in experts.items()]))
        return 0
    print(format_tables(experts))
    if arguments.recipe is None:
        print("\nWeight files have their published names. A recipe may name other folders than data/weights.")
    return 0


def _report(name: str, expert: ExpertSettings) -> ExpertReport:
    """Return the facts about an expert for the output with --json."""
    return ExpertReport(
        name=name,
        rate=expert.rate,
        dim=expert.dim,
        frames_per_second=expert.frames_per_second,
        parameters=expert.parameters,
        files=[
            WeightFile(
                setting=setting,
                path=str(path),
                found=path.is_file(),
                licence=expert.licence,
                source=_source(expert, setting),
            )
            for setting, path in expert.weight_files().items()
        ],
    )


def _source(expert: ExpertSettings, setting: str) -> str:
    """Return the address of the weight file in the expert's `setting`, or a text that describes where to get it."""
    return expert.published_addresses().get(setting, expert.weight_source())
