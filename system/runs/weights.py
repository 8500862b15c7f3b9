"""Files that determine a model's weights.

The verbs `check` and `run` use this list to decide if a trained model exists.
"""

from pathlib import Path

from data_tools.errors import KitError
from submission.runs.reading import finish_hint


def trained_files(folder: Path) -> list[Path]:
    """Return the files that identify a trained model's weights: those of an export, or `done.json` of each stage.

    folder: Folder of a run with finished stages, or of an exported model.
    Raises KitError if the folder has no trained model.
    """
    exported = folder / "model.safetensors"
    if exported.exists():
        return [exported]
    if done := sorted(folder.glob("*/done.json")):
        return done
    if (folder / "result.json").exists():
        raise KitError(f"{folder} is a run without trained stages; export its model, and name the exported folder")
    raise KitError(f"{folder} is neither a finished run nor an exported model; {finish_hint(folder)}")
