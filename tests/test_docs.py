"""README and code agree: every file is in the tree, every command opens, every figure's command is the tested one."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("data_tools", "system", "submission")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_tree_names_every_file_and_no_other(root: Path) -> None:
    readme = (root / "README.md").read_text()
    tree = next(block for block in blocks(readme, "") if "pyproject.toml" in block)
    named = set(re.findall(r"[\w.]+\.(?:py|yaml)", tree))
    there = {path.name for room in ROOMS for path in (root / room).rglob("*.py")} - {
        "__init__.py",
        "__main__.py",
        "base.py",
    }
    there |= {path.name for path in (root / "recipes").rglob("*.yaml")}
    hidden = {"door.py", "errors.py", "strict.py", "options.py"}  # said by their names; no reader looks for them here
    assert there - named - hidden == set()
    assert named - there - {"tiny.py"} == set()


def test_every_command_in_readme_opens(root: Path) -> None:
    readme = (root / "README.md").read_text()
    lines = [line for block in blocks(readme, "sh") for line in block.splitlines()]
    commands = [line.split("#")[0] for line in lines if line.startswith("python ")]
    assert len(commands) > 10
    for command in commands:
        words = shlex.split(command)
        assert words[:2] == ["python", "-m"]
        # With --help behind it a wrong option is still refused: argparse reads from the left.
        done = subprocess.run(
            [sys.executable, "-m", *words[2:], "--help"], capture_output=True, text=True, cwd=root, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_set_up_commands_name_extras_that_exist(root: Path) -> None:
    import tomllib

    readme = (root / "README.md").read_text()
    extras = set(tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {extra for group in re.findall(r'"\.\[([\w,]+)\]"', readme) for extra in group.split(",")}
    assert named == extras


def test_the_new_expert_in_readme_works(root: Path) -> None:
    import numpy as np

    code = next(block for block in blocks((root / "README.md").read_text(), "python") if "class Loudness" in block)
    names: dict[str, object] = {}
    exec(
        "from typing import Literal\nimport numpy as np\nfrom system.experts.base import ExpertSettings, Frames\n"
        + code,
        names,
    )
    expert = names["Loudness"](kind="loudness")  # type: ignore[operator]
    frames = expert.load()([np.full(3300, 0.5, np.float32)])[0]
    assert frames.shape == (3, expert.dim)
    assert frames[:2, 0] == pytest.approx(0.5)
    assert frames[2, 0] == pytest.approx((0.25 * 100 / 1600) ** 0.5)
    assert expert.key().startswith("loudness-")


def test_recipes_are_listed_in_their_readme(root: Path) -> None:
    text = (root / "recipes/README.md").read_text()
    for path in (root / "recipes").rglob("*.yaml"):
        assert f"`{path.relative_to(root / 'recipes')}`" in text, path
