"""What `lbar check` prints about a recipe or a study."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from data_tools.cli import counted
from data_tools.errors import KitError
from system.check.check import WARNING, Problem, Row, check, find_data, to_fix
from system.experiments.studies import describe_progress, folder_of, load_study
from system.recipe.load import load_recipe


def print_check(path: Path, changes: list[str], runs: Path, step: bool = False, device: str | None = None) -> bool:
    """Print what a recipe or a study needs, and what to fix; return whether it can run."""
    if step and path.name.endswith(".study.yaml"):
        raise KitError("--step measures a recipe, not a study; name the study's recipe")
    is_study = path.name.endswith(".study.yaml")
    lines, problems = _study(path, changes, runs) if is_study else _recipe(path, changes, runs, step, device)
    found = to_fix(problems)
    print(*lines, sep="\n")
    if found:
        print("to fix, the first one first:", *(f"  {kind}  {line}" for kind, line in found), sep="\n")
    ok = all(kind == WARNING for kind, _ in found)
    if ok:
        print("nothing is missing")
    return ok


def _recipe(
    path: Path, changes: list[str], runs: Path, step: bool, device: str | None
) -> tuple[list[str], list[Problem]]:
    recipe = load_recipe(path, changes).recipe
    data = find_data(recipe)
    found = list(check(recipe, data, runs))
    lines = [f"recipe {recipe.name}, seed {recipe.seed}", *_rows(found)]
    if step:
        from system.check.measure import measure
        from system.compute.device import device_of

        lines += [f"  step {line}" for line in measure(recipe, data, device_of(device))]
    return lines, [one for one in found if isinstance(one, Problem)]


def _study(path: Path, changes: list[str], runs: Path) -> tuple[list[str], list[Problem]]:
    """Check the first cell of a study, and what differs in the others."""
    study, cells = load_study(path, changes, runs)
    folders = [folder_of(study, *key, runs) for key in cells]
    recipes = {cell: cells[cell, study.seeds[0]].recipe for cell in study.cells}
    found = {cell: list(check(one, find_data(one), runs, folders)) for cell, one in recipes.items()}
    first, *others = found
    lines = [f"study {study.name}: {counted(len(recipes), 'cell')} x {counted(len(study.seeds), 'seed')}"]
    lines += [f"cell {first}:", *_rows(found[first])]
    problems = [one for one in found[first] if isinstance(one, Problem)]
    for cell in others:
        new = [one for one in found[cell] if one not in found[first]]
        lines += [f"cell {cell}:", *_rows(new)]
        problems += [one._replace(where=f"cell {cell}, {one.where}") for one in new if isinstance(one, Problem)]
    return [*lines, f"study {study.name}: {describe_progress(folders)}"], problems


def _rows(found: Iterable[Row | Problem]) -> Iterator[str]:
    rows = [one for one in found if isinstance(one, Row)]
    width = max((len(row.name) for row in rows), default=0)
    yield from (f"  {row.name:{width}}  {row.fact}" for row in rows)
