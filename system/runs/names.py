"""What a name means: a run, an exported model, a recipe, or a model of the Hugging Face hub."""

from pathlib import Path

from data_tools.classify.model_files import PACKAGES
from data_tools.errors import KitError
from submission.runs.reading import finish_hint
from system.recipe.load import SUFFIXES

HUB_FILES = ("config.json", "modules.json")  # one of them is in every folder of a hub model
KIT_FILES = ("model.json", "recipe.json", "resolved.json")  # of exported models and runs


def is_untrained(name: Path) -> bool:
    """Return whether a name means a recipe or a hub model, not a run or an exported model.

    A path that does not exist means a hub model if it is OWNER/NAME, and OWNER is no folder here.
    """
    if name.is_dir():
        return any((name / one).exists() for one in HUB_FILES) and not any((name / one).exists() for one in KIT_FILES)
    if name.exists():
        return is_recipe(name)
    is_hub_name = len(name.parts) == 2 and not name.is_absolute() and name.parts[0] not in (".", "..")
    return str(name) in PACKAGES or (is_hub_name and not name.parent.exists())


def is_recipe(name: Path) -> bool:
    """Return whether a path has the file extension of a recipe, and is not a folder."""
    return name.suffix in SUFFIXES and not name.is_dir()


def trained_files(folder: Path) -> list[Path]:
    """Return the files that identify a trained model's weights. Raises KitError if there is none."""
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    if done := sorted(folder.glob("*/done.json")):
        return done
    if (folder / "result.json").exists():
        raise KitError(f"{folder} is a run without trained stages; export its model, and name the exported folder")
    raise KitError(f"{folder} is neither a finished run nor an exported model; {finish_hint(folder)}")
