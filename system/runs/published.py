"""Convert published retrieval models.

The DCASE 2025 baseline and SALSA (2024) are converted to exported models.

The published files are Lightning checkpoints. Their tensor names were taken from the published code; the conversion was
not tested on the published files.
"""

import argparse
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path, PosixPath
from typing import Any

import torch

from data_tools.errors import KitError
from data_tools.files import require_file
from system.audio.checkpoint import load_checkpoint
from system.models.retrieval import RetrievalModel
from system.recipe import schema
from system.runs.checkpoints import load_tensors
from system.runs.open import Trained, build_model, expert_identities
from system.runs.records import ModelFacts

ADDRESSES = {
    "dcase2025_baseline": "https://cloud.cp.jku.at/index.php/s/6ZTQ3mcwk9AAS4i",
    "salsa2024": (
        "https://cloud.cp.jku.at/index.php/s/ZZkWXQ7f3aXRXYW, in five parts: "
        "cat passt_roberta.ckpt.* > passt_roberta.ckpt"
    ),
}
# Ours by theirs, of the baseline and of SALSA; compiled models have one level more, which is left out.
PREFIXES = {
    "audio_embedding_model.model.model.": "audio.network.",
    "audio_projection.": "audio.head.0.",
    "project_audio.0.": "audio.head.0.",
    "text_embedding_model.": "text.trained.0.model.",
    "sentence_embedding_model.": "text.trained.0.model.",
    "text_projection.": "text.head.",
    "project_sentence.0.": "text.head.",
}
COMPILED = "_orig_mod."


_LIGHTNING = [
    f"{package}.AttributeDict"
    for package in (
        "lightning.fabric.utilities.data",
        "lightning_fabric.utilities.data",
        "lightning.pytorch.utilities.parsing",
        "pytorch_lightning.utilities.parsing",
    )
]


def open_published(path: Path, recipe: schema.Recipe) -> Trained:
    """Build the model of a recipe with the weights of a published checkpoint.

    Tensors without a counterpart in the model are ignored: classifiers, a temperature, and unused parts of SALSA.

    Raises: DataError if the file is missing; KitError if it is not a checkpoint, lacks a tensor of the recipe's model,
        or has a tensor of another shape.
    """
    known = [f"{name}: {address}" for name, address in ADDRESSES.items()]
    require_file(path, f"fetch the checkpoint from its address ({'; '.join(known)})")
    with _allow_lightning_settings():
        tensors = load_checkpoint(path)
    model = build_model(recipe, [])
    load_tensors(model, rename_tensors(tensors, model, path), path)
    facts = ModelFacts(
        recipe=recipe.name,
        checkpoint=path.name,
        experts=expert_identities(recipe),
        text=model.text.identity(),
    )
    return Trained(model, recipe, facts, path.parent / "nothing")


def _allow_lightning_settings() -> AbstractContextManager[None]:
    """Return a context manager that lets torch read Lightning's settings classes in a checkpoint as plain dicts.

    The settings in the checkpoint are not used.
    """
    named: list[Any] = [(OrderedDict, name) for name in _LIGHTNING]
    return torch.serialization.safe_globals([*named, argparse.Namespace, PosixPath])


def rename_tensors(tensors: Mapping[str, torch.Tensor], model: RetrievalModel, path: Path) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors under the model's names for them. Raises KitError if a tensor is missing."""
    found = {}
    for key, value in tensors.items():
        key = key.replace(COMPILED, "")
        prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), None)
        if prefix is not None:
            found[PREFIXES[prefix] + key.removeprefix(prefix)] = value
    wanted = model.state_dict()
    if missing := sorted(wanted.keys() - found.keys()):
        raise KitError(
            f"{path} has no weights for {len(missing)} tensors of the recipe's model, such as {missing[0]}; "
            "name the recipe of this checkpoint with --recipe, or fetch the file again"
        )
    return {name: found[name] for name in wanted}
