"""Shipped recipes: their list, and copies to begin with."""

import re
from pathlib import Path

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


def ideas() -> dict[str, str]:
    """Return {name of a shipped recipe: its first line}."""
    return {
        name: path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        for name, path in shipped_recipes().items()
    }


def copy_recipe(name: str, source: str) -> str:
    """Copy a shipped recipe to NAME.yaml; return the next steps.

    Args:
        source: Name of the shipped recipe, or the last part of it if that is unique.
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
    return f"wrote {out}, a copy of {found[0]}; next: lbar check {out}, and lbar download {out} if files are missing"
