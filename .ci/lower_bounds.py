"""Prints the lower bound of every dependency as a constraint, so that the oldest supported versions can be tested."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
groups = [project["dependencies"], *project["optional-dependencies"].values()]
for dependency in sorted({dependency for group in groups for dependency in group}):
    if found := re.match(r"([\w-]+)>=([\d.]+)", dependency):
        print("==".join(found.groups()))
