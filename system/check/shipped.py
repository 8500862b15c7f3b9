"""The verbs of shipped recipes: their list, and copies to begin with."""

import re
from pathlib import Path
from typing import Annotated

import typer

from data_tools.errors import KitError
from data_tools.files import write_text

SHIPPED = Path(__file__).parents[2] / "recipes"
NAME = re.compile("[a-z][a-z0-9_]*")


def shipped_recipes() -> dict[str, Path]:
    """Return the shipped recipes by name, such as take_it_easy/honest."""
    files = [path for path in sorted(SHIPPED.rglob("*.yaml")) if not path.name.endswith(".study.yaml")]
    if not files:
        raise KitError(f"{SHIPPED}: no recipes in this folder; copy recipes/ from the kit's repository to it")
    return {path.relative_to(SHIPPED).with_suffix("").as_posix(): path for path in files}


def list_recipes(context: typer.Context) -> None:
    """List the shipped recipes; `new` copies one."""
    if context.invoked_subcommand is None:
        found = shipped_recipes()
        width = max(map(len, found))
        for name, path in found.items():
            idea = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
            print(f"{name:{width}}  {idea}")


def new(name: str, *, source: Annotated[str, typer.Option("--from")] = "clotho") -> None:
    """Write NAME.yaml, a copy of a shipped recipe.

    Args:
        name: The new recipe's name.
        source: The shipped recipe to copy.
    """
    shipped = shipped_recipes()
    found = [source] if source in shipped else [one for one in shipped if one.rpartition("/")[2] == source]
    if len(found) != 1:
        raise KitError(f"--from {source}: no such shipped recipe; choose one of {', '.join(found or shipped)}")
    if not NAME.fullmatch(name):
        raise KitError(f"name {name!r}: must be lower-case letters, digits and _, beginning with a letter")
    out = Path(f"{name}.yaml")
    if out.exists():
        raise KitError(f"{out} already exists; choose another name, or delete it")
    text = re.sub("^name: .*$", f"name: {name}", shipped[found[0]].read_text(encoding="utf-8"), flags=re.M)
    write_text(out, re.sub(r"^(#.* )recipes/\S+\.yaml", rf"\g<1>{out}", text, flags=re.M))
    print(f"wrote {out}, a copy of {found[0]}; next: lbar check {out}, and lbar download {out} if files are missing")
