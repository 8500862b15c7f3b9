"""The text that `check` prints of a recipe."""

import re

from system.check.check import check, find_data, to_fix
from system.recipe.schema import Recipe


def plan(recipe: Recipe) -> str:
    found = list(check(recipe, find_data(recipe)))
    facts = [f"  {one.where}  {one.text}" for one in found if not one.kind]
    return "\n".join([*facts, *(" ".join(one) for one in to_fix([one for one in found if one.kind]))])


def fact(text: str, name: str) -> str:
    """Return the fact of the only row with this name."""
    (found,) = re.findall(rf"^  {re.escape(name)}  +(\S.*)$", text, re.MULTILINE)
    return str(found)
