"""A user's Python files with new kinds, for recipes."""

import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from data_tools.errors import first_line
from data_tools.files import replacing
from data_tools.settings import Keys


def import_kinds(files: Sequence[Path]) -> Iterator[tuple[Keys, str]]:
    """Run the files that a recipe imports; yield mistakes."""
    for number, file in enumerate(files):
        try:
            _import_file(file)
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            yield ("imports", number), f"{file} cannot be imported: {type(error).__name__}: {first_line(error)}"


def _import_file(path: Path) -> None:
    """Run a Python file, unless its content was run before."""
    module = f"imported_{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    spec = spec_from_file_location(module, path)
    if spec is None or spec.loader is None:
        raise ImportError("the file's name must end in .py")
    if module in sys.modules:
        return
    sys.modules[module] = module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[module])
    except BaseException:
        del sys.modules[module]
        raise


def imported_files(names: object, folder: Path | None) -> list[Path]:
    """Return the files of `imports`, or their copies.

    Args:
        folder: Of a run or an exported model, which may have copies.
    """
    found = []
    for number, name in enumerate(names if isinstance(names, list) else []):
        copy = folder / "imports" / _copy_name(number, Path(name)) if folder else Path(name)
        found.append(copy if copy.exists() else Path(name))
    return found


def keep_imports(names: Sequence[str], files: Sequence[Path], folder: Path) -> None:
    """Copy imported files to a run or an exported model.

    Args:
        names: Their names in the recipe.
    """
    for number, (name, file) in enumerate(zip(names, files, strict=True)):
        with replacing(folder / "imports" / _copy_name(number, Path(name))) as part:
            shutil.copyfile(file, part)


def _copy_name(number: int, file: Path) -> str:
    return f"{number}_{file.name}"
