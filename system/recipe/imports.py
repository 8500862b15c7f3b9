"""Python files with kinds of the user's own, which a recipe imports."""

import hashlib
import shutil
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from data_tools.errors import first_line
from data_tools.files import replacing
from data_tools.settings import Keys
from system.recipe import schema
from system.recipe.rules import child


def import_kinds(path: Path, recipe: Any) -> Iterator[tuple[Keys, str]]:
    """Run the Python files that a recipe imports; yield the mistakes.

    Args:
        path: Of the recipe. The settings of a run or an export (.json) have copies of the files beside them.
        recipe: Its document.
    """
    for number, name in enumerate(names if isinstance(names := child(recipe, "imports"), list) else []):
        try:
            _import_file(_kept(path.parent, name) if path.suffix == ".json" else Path(name))
        except Exception as error:  # whatever the user's code raises
            yield ("imports", number), f"{name} cannot be imported: {type(error).__name__}: {first_line(error)}"


def _import_file(path: Path) -> None:
    """Run a Python file, unless a file of the same content was run before."""
    module = f"imported_{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    if module not in sys.modules and (spec := spec_from_file_location(module, path)) and spec.loader:
        sys.modules[module] = module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[module])
        except BaseException:
            del sys.modules[module]
            raise


def _kept(folder: Path, name: str) -> Path:
    """Return the copy of an imported file in the folder of a run or an exported model; the file if there is none."""
    copy = folder / "imports" / Path(name).name
    return copy if copy.exists() else Path(name)


def keep_imports(recipe: schema.Recipe, folder: Path, source: Path | None = None) -> None:
    """Copy the Python files that a recipe imports.

    Args:
        source: Folder of a run or an exported model that may have copies.
    """
    for name in recipe.imports:
        with replacing(folder / "imports" / Path(name).name) as part:
            shutil.copyfile(_kept(source, name) if source else Path(name), part)
