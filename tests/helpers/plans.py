"""The text of a recipe's plan, as `check` prints it."""

import re
from typing import Any

from system.plan.lines import problem_summary, section_lines
from system.plan.plan import plan as make_plan
from system.recipe.schema import Recipe


def plan(recipe: Recipe, *arguments: Any, **settings: Any) -> str:
    """Return the plan's text, with the arguments of system.plan.plan.plan."""
    made = make_plan(recipe, *arguments, **settings)
    return "\n".join([made.title, *section_lines(made.rows), *problem_summary(made.problems)])


def fact(text: str, name: str) -> str:
    """Return the fact of the only row with this name in a plan's text."""
    (found,) = re.findall(rf"^  {re.escape(name)}  +(\S.*)$", text, re.MULTILINE)
    return str(found)
