"""Fetch the published files that a recipe needs."""

from pathlib import Path

from data_tools.classify.model_files import fetch
from data_tools.datasets.download import download
from data_tools.errors import KitError
from system.audio import Need
from system.recipe.load import SUFFIXES, load_recipe

CHECKPOINTS = (".pth", ".pt", ".ckpt", ".tar", ".safetensors", ".zip")


def download_files(recipe: Path, changes: list[str], only_show: bool = False) -> None:
    """Fetch a recipe's missing files, and print their states.

    Args:
        recipe: A recipe, or the name of a hub model.

    Raises:
        KitError: A line per file that cannot be fetched.
    """
    if recipe.suffix not in SUFFIXES or recipe.is_dir():
        if changes:
            raise KitError(f"--set {changes[0]}: {recipe} has no settings; leave it out")
        needs = [Need("model", str(recipe), model="model")]
    else:
        parts = load_recipe(recipe, changes).recipe.model.parts
        needs = [need for part in parts.values() for need in part.needs()]
    errors: list[str] = []
    for need in dict.fromkeys(needs):
        problem = need.problem()
        state = "missing" if problem else "here"
        if not only_show:
            try:
                state = "fetched" if _fetch(need) else "here"
            except KitError as error:
                errors.append(str(error))
                state = "failed"
        place = f"{need.model} in {need.folder()}" if need.model and need.folder() else need.model
        print(f"{state:8} {need.name}  {place or need.cure or f'published at {need.address}'}")
    if errors:
        raise KitError("\n".join(errors))


def _fetch(need: Need) -> bool:
    """Fetch a missing file or model; return whether it was."""
    if need.model:
        was_here = need.folder() is not None
        fetch(need.name, need.model)
        need.require()
        return not was_here
    if not need.path.exists() and (not need.address.startswith(("http://", "https://")) or " " in need.address):
        how = need.cure or f"get it from {need.address}"
        raise KitError(f"{need.name}: the file cannot be fetched automatically; {how}, and put it at this path")
    from system.audio.checkpoint import load_checkpoint

    opened = load_checkpoint if need.path.suffix in CHECKPOINTS else None
    return download(need.address, need.path, need.sha256, opened)
