"""File trees of the floors' READMEs, from the first lines of their modules.

`python tests/helpers/trees.py` writes them into the READMEs of this checkout.
"""

import ast
import re
from pathlib import Path

FLOORS = ("data_tools", "submission", "system")
BLOCK = re.compile(r"(## What is where\n\n```\n).*?(```)", re.DOTALL)


def title(module: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]


def tree(floor: Path) -> str:
    """Return a line per folder and module of a floor: its name, and its docstring's first line."""
    lines = []
    for path in sorted(floor.rglob("*.py"), key=lambda path: (path.parent, path.name)):
        depth = "  " * (len(path.relative_to(floor).parts) - 1)
        if path.name == "__init__.py" and path.parent != floor:
            name = f"{depth[2:]}{path.parent.name}/"
        elif path.name.startswith("__"):
            continue
        else:
            name = f"{depth}{path.name}"
        lines.append(f"{name:32} {title(path)}".rstrip())
    return "\n".join(lines) + "\n"


def with_tree(floor: Path) -> str:
    """Return a floor's README with its present file tree."""
    text, count = BLOCK.subn(lambda match: match[1] + tree(floor) + match[2], (floor / "README.md").read_text())
    assert count == 1, f"{floor}/README.md has no section `What is where` with a code block"
    return text


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    for name in FLOORS:
        (root / name / "README.md").write_text(with_tree(root / name))
