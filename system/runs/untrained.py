"""Open models by their published weights.

Such models need no training: a Hugging Face model of audio and text, or the model of a recipe without stages.
"""

from pathlib import Path

import torch

from data_tools.classify.model_files import local_folder
from data_tools.errors import KitError
from submission.runs.record import ModelFacts
from system.compute.device import device_of, moved
from system.models.published import how_to_fetch, published_model_settings
from system.models.settings import Model
from system.recipe import schema
from system.recipe.load import as_change, load_recipe
from system.runs.names import is_recipe
from system.runs.open import Trained, build_model, expert_identities, untrained_origin


def open_untrained(
    name: Path,
    changes: list[str] | None = None,
    device: torch.device | None = None,
    banks: Path = Path("banks"),
) -> Trained:
    """Open the model of a recipe, or a Hugging Face model, with its published weights.

    Args:
        name: A recipe without stages, or a hub name or folder of a model of audio and text.
        changes: Changed settings of the recipe, such as "banks=FOLDER".
        device: Device of the model; None for this machine's default device.
        banks: Folder that caches the vectors of texts. A change of `banks` in `changes` takes precedence.
    Raises: KitError for a recipe with layers that must be trained, for a hub model without audio or text, and for a hub
        model that is not on this machine. Nothing is downloaded.
    """
    if is_recipe(name):
        recipe = _recipe_without_stages(name, [as_change("banks", str(banks)), *(changes or [])])
    elif changes:
        raise KitError(f"--set {changes[0]}: {name} has no settings; write a recipe with model.kind published instead")
    else:
        recipe = _recipe_of_hub(str(name), banks)
    model = moved(build_model(recipe, []), device or device_of())
    model.audio.load_pretrained()
    facts = ModelFacts(
        recipe=recipe.name,
        checkpoint=untrained_origin(recipe),
        experts=expert_identities(recipe),
        text=model.text.identity(),
    )
    return Trained(model, recipe, facts, name)


def _recipe_without_stages(path: Path, changes: list[str]) -> schema.Recipe:
    """Read a recipe whose model needs no training. Raises KitError if its model must be trained."""
    recipe = load_recipe(path, changes).recipe
    if recipe.stages:
        raise KitError(
            f"{path} has stages that must be trained first; train it with lbar run {path}, then name the run's folder"
        )
    if part := recipe.model.first_unpublished_encoder:
        raise KitError(f"{path} has no stages, but its model.{part} has layers that must be trained first; add a stage")
    return recipe


def _recipe_of_hub(name: str, banks: Path) -> schema.Recipe:
    """Return a recipe that only contains a Hugging Face model. Raises KitError if the model is not on this machine."""
    model = Model.model_validate(published_model_settings(name))
    if local_folder(name, "model") is None:
        raise KitError(f"model {name} is not on this machine; {how_to_fetch(name)}")
    return schema.Recipe.model_construct(
        name=name, seed=1, banks=str(banks), data={}, model=model, stages={}, rank={}, teachers={}
    )
