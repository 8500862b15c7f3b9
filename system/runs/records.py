"""Models of files that only `system` reads.

provenance.json of a run, and what a score matrix or an export says of its model. Those of results are in
submission/runs/record.py.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from data_tools.errors import KitError
from data_tools.settings import read_shaped
from submission.runs.reading import finish_hint, repair_hint
from submission.runs.record import FittedScore, Record


class Provenance(Record):
    """What a run is made of.

    Attributes:
        changes: Settings that the option --set changed.
        commits: Of the code, in order of time.
        inputs: What identifies each thing that the run reads: checksums of manifests (`manifests.SOURCE`), of all audio
            (`contents.SOURCE`), weights (`experts.NAME`, `audio.FILE`, `text`), of teachers and start models by their
            keys in the recipe, and of files of augmentation (`augment.FILE`).
        started_in: Folder to which paths in the recipe are relative, itself relative to the run's folder.
    """

    changes: list[str]
    commits: list[str]
    began: str
    machine: str
    started_in: str
    inputs: dict[str, Any]


class ModelFacts(Record):
    """Facts about a model, stored with its score matrix, and in model.json of an exported model.

    Attributes:
        run: Name of the folder of its run.
        edition: Edition for which its recipe ranks; None if there are several.
        fitted: Fitted numbers of the score that finds moments, in an exported model whose score was fitted.
    """

    recipe: str
    seed: int | None = None
    run: Annotated[str | None, Field(alias="from")] = None
    checkpoint: str
    edition: str | None = None
    fitted: FittedScore | None = None
    commits: list[str] = Field(default_factory=list)
    experts: dict[str, dict[str, Any]]
    text: str | None


def read_provenance(folder: Path) -> Provenance:
    """Read provenance.json of a run."""
    path = folder / "provenance.json"
    return read_shaped(path, Provenance, repair_hint(folder, path))


def trained_files(path: Path) -> list[Path]:
    """Return the files that identify a trained model's weights. Raises KitError if there is none."""
    if path.is_file():  # of embeddings
        return [path]
    if (path / "model.safetensors").exists():
        return [path / "model.safetensors"]
    if done := sorted(path.glob("*/done.json")):
        return done
    if (path / "result.json").exists():
        raise KitError(f"{path} is a run without trained stages; export its model, and name the exported folder")
    raise KitError(f"{path} is neither a finished run nor an exported model; {finish_hint(path)}")
