"""Export a model folder.

Another machine can rank with the trained model in this folder, or start a stage from it.

model.safetensors        weights
recipe.json              the recipe with all settings
model.json               origin of the model
vocabulary.json | text/  files of the caption encoder
audio/                   files of an audio encoder from the Hugging Face hub
trained_on.csv           the clips that the model was trained on
modules.json, config_sentence_transformers.json   by which SentenceTransformer opens the folder
README.md                a model card for the Hugging Face hub
"""

import os
import shutil
from pathlib import Path

import torch

from data_tools.errors import KitError
from data_tools.files import replacing_folder, write_json, write_text
from system.bridges.hub import model_card
from system.bridges.sentence_transformer import write_module
from system.recipe.load import imported_files, keep_imports, text_of
from system.runs.checkpoints import save_weights, write_errors
from system.runs.folder import TRAINED_ON
from system.runs.open import Trained, open_trained


def export_run(run: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Write the model of a run to a new folder."""
    export_model(open_trained(Path(run), device=torch.device("cpu")), Path(out))


def export_model(trained: Trained, out: Path) -> None:
    """Write a model to a new or empty folder.

    The folder does not exist before all its files are complete.

    Raises:
        KitError: The folder is not empty, or the model reads embeddings of another program.
    """
    if trained.recipe.model.embedding_files:
        raise KitError(
            f"{trained.folder} uses embeddings of another model, which cannot be exported; copy the recipe and the "
            "embeddings to the other machine instead"
        )
    out = out.resolve()
    if out.exists() and (any(out.iterdir()) or out == Path.cwd()):
        raise KitError(f"{out} is not empty, or is the current folder; name a new or empty folder")
    with replacing_folder(out) as folder:
        with write_errors(folder):
            trained.model.text.save_assets(folder)
            trained.model.audio.save_assets(folder)
        write_text(folder / "recipe.json", text_of(trained.recipe))
        keep_imports(imported_files(trained.recipe.imports, trained.folder), folder)
        save_weights(trained.model.state_dict(), folder / "model.safetensors")
        if (trained.folder / TRAINED_ON).exists():
            shutil.copyfile(trained.folder / TRAINED_ON, folder / TRAINED_ON)
        write_json(folder / "model.json", trained.facts.document())
        write_text(folder / "README.md", model_card(trained, out))
        if not trained.recipe.model.score.of_series:  # a vector per clip and text
            write_module(folder, trained.model.unit_length)
