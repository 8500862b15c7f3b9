"""Which files say what weights a trained model has; `check` and `run` agree by this on whether it is there."""

from pathlib import Path

from data_tools.errors import KitError
from submission.runs.reading import to_finish


def trained_files(folder: Path) -> list[Path]:
    """Of a run with finished stages, or of an exported model. KitError where nothing is trained in the folder."""
    exported = folder / "model.safetensors"
    if exported.exists():
        return [exported]
    if done := sorted(folder.glob("*/done.json")):
        return done
    if (folder / "result.json").exists():
        raise KitError(f"{folder} holds no trained stage; export it, and name that folder")
    raise KitError(f"no finished run and no exported model in {folder}; {to_finish(folder)}")
