"""The text of a recipe's plan, as `check` prints it."""

import re
from typing import Any

from system.plan.plan import plan as planned
from system.recipe.schema import Recipe


def plan(recipe: Recipe, *arguments: Any, **settings: Any) -> str:
    """Return the plan's text, with the arguments of system.plan.plan.plan."""
    return str(planned(recipe, *arguments, **settings))


def fact(text: str, name: str) -> str:
    """Return the fact of the only row with this name in a plan's text."""
    (found,) = re.findall(rf"^  {re.escape(name)}  +(\S.*)$", text, re.MULTILINE)
    return str(found)
