"""Names of runs, recipes and hub models.

Never imports torch.
"""

from pathlib import Path

from data_tools.classify.model_files import PACKAGES
from system.recipe.load import SUFFIXES

HUB_FILES = ("config.json", "modules.json")  # one of them is in every folder of a hub model
KIT_FILES = ("model.json", "recipe.json", "resolved.json")  # of exported models and runs


def is_untrained(name: Path) -> bool:
    """Return whether a path or name means a recipe or a Hugging Face model, not a run or an exported model.

    A path that does not exist counts as a hub model if it has the form OWNER/NAME, and OWNER is not a folder in the
    current folder.
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
