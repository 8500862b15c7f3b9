"""Verb recipes: list, copy, explain keys.

List the shipped recipes, copy a shipped recipe, or print the reference of all keys.
"""

import argparse
import difflib
import json
import re
import textwrap
from pathlib import Path

from data_tools.cli import add_json
from data_tools.errors import KitError
from data_tools.files import write_text
from data_tools.settings import print_report
from system.recipe.load import load_recipe
from system.recipe.reference import Section, at_path, paths, sections
from system.recipe.schema import Recipe
from system.verbs.download import published_files
from system.verbs.json_output import RecipesReport, ShippedRecipe

SHIPPED = Path(__file__).parents[2] / "recipes"
NAME = re.compile("[a-z][a-z0-9_]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `recipes` to its parser."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    shown = actions.add_parser("list", help="print the shipped recipes, with a short description of each")
    add_json(shown)
    shown.set_defaults(action=_print_shipped)
    new = actions.add_parser("new", help="write NAME.yaml, a copy of a shipped recipe with a new name")
    new.add_argument("name", help="the new recipe's name: lower-case letters, digits and _")
    new.add_argument(
        "--from",
        dest="source",
        default="clotho",
        help="the shipped recipe to copy; `recipes list` prints all names (default: clotho)",
    )
    new.set_defaults(action=_copy_recipe)
    keys = actions.add_parser("keys", help="print type, range, default and meaning of every key of a recipe")
    keys.add_argument(
        "path", nargs="?", default="", help="print only this key, such as stages.optimizer (default: all keys)"
    )
    form = keys.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print the reference as Markdown (default: plain text)")
    form.add_argument("--json", action="store_true", help="print the JSON schema of a recipe, for editors")
    keys.set_defaults(action=_print_keys)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `recipes`: list or copy shipped recipes, or print the keys of recipes. Returns: The exit status."""
    arguments.action(arguments)
    return 0


def _shipped_files() -> dict[str, Path]:
    """Return a dict from the name of each shipped recipe, such as take_it_easy/honest, to its file.

    Raises KitError if the folder recipes/ is not next to the package.
    """
    paths = {
        path.relative_to(SHIPPED).with_suffix("").as_posix(): path
        for path in sorted(SHIPPED.rglob("*.yaml"))
        if not path.name.endswith(".study.yaml")
    }
    if not paths:
        raise KitError(f"{SHIPPED}: no recipes in this folder; copy recipes/ from the kit's repository to it")
    return paths


def _print_shipped(arguments: argparse.Namespace) -> None:
    """Print the names of the shipped recipes, with a short description of each."""
    reports = [
        ShippedRecipe(
            name=name, path=str(path), idea=path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        )
        for name, path in _shipped_files().items()
    ]
    if arguments.json:
        print_report(RecipesReport(recipes=reports))
        return
    width = max(len(recipe.name) for recipe in reports)
    for recipe in reports:
        print(f"{recipe.name:{width}}  {recipe.idea}")


def _copy_recipe(arguments: argparse.Namespace) -> None:
    """Copy the shipped recipe `--from` to the current folder, with the new name, and print the next steps."""
    shipped = _shipped_files()
    if arguments.source not in shipped:
        raise KitError(f"--from {arguments.source}: no such shipped recipe; choose one of {', '.join(shipped)}")
    if not NAME.fullmatch(arguments.name):
        raise KitError(f"name {arguments.name!r}: must be lower-case letters, digits and _, beginning with a letter")
    out = Path(f"{arguments.name}.yaml")
    if out.exists():
        raise KitError(f"{out} already exists; choose another name, or delete it")
    text = shipped[arguments.source].read_text(encoding="utf-8")
    text = re.sub("^name: .*$", f"name: {arguments.name}", text, flags=re.M)
    text = re.sub(r"^(#.* )recipes/\S+\.yaml", rf"\g<1>{out}", text, flags=re.M)
    write_text(out, text)
    check = f"lbar check {out}"
    model = load_recipe(out).recipe.model
    of_hub = any(expert.hub_model for expert in model.audio.experts.values())
    fetches = of_hub or any(published_files(model))
    steps = f"lbar download {out}, then {check}" if fetches else check
    print(f"wrote {out}, a copy of {arguments.source}; next: {steps}")


def _print_keys(arguments: argparse.Namespace) -> None:
    """Print the reference of all keys of a recipe, or only of the keys at the given path."""
    if arguments.json:
        print(json.dumps(Recipe.model_json_schema(), indent=1))
        return
    found = sections()
    shown = at_path(found, arguments.path) if arguments.path else found
    if not shown:
        similar = difflib.get_close_matches(arguments.path, paths(found), 3)
        hint = f"similar keys are {', '.join(similar)}" if similar else "leave out the key to print all keys"
        raise KitError(f"{arguments.path}: a recipe has no such key; {hint}")
    if arguments.markdown:
        print("# The keys of a recipe\n\nPrinted by `lbar recipes keys --markdown`.\n")
    print("\n\n".join(map(_format_as_markdown if arguments.markdown else _format_as_text, shown)))


def _title(section: Section) -> str:
    """Return the title of a section of the reference."""
    return f"{section.path or 'a recipe'}{f' (kind: {section.kind})' if section.kind else ''}"


def _format_as_text(section: Section) -> str:
    """Format a section of the reference as text."""
    lines = [_title(section), *([f"  {section.meaning}"] if section.meaning else [])]
    width = max((len(key.name) for key in section.keys), default=0)
    for key in section.keys:
        default = "" if key.default is None else f" (default: {key.default})"
        lines.append(f"  {key.name:{width}}  {key.values}{default}")
        lines += [f"  {'':{width}}  {key.meaning}"] if key.meaning else []
    return "\n".join(lines)


def _format_as_markdown(section: Section) -> str:
    """Format a section of the reference as Markdown."""
    lines = [f"## {_title(section)}", "", *([textwrap.fill(section.meaning, 120), ""] if section.meaning else [])]
    if section.keys:
        lines += ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [f"| {key.name} | {key.values} | {key.default or ''} | {key.meaning} |" for key in section.keys]
    return "\n".join(lines).rstrip()
