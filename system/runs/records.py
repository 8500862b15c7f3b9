"""Models of files that only `system` reads.

provenance.json of a run, and what a score matrix or an export says of its model. Those of results are in
submission/runs/record.py.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from data_tools.settings import read_shaped
from submission.runs.reading import repair_hint
from submission.runs.record import FittedScore, Record


class Provenance(Record):
    """Inputs of a run: code, recipe, data and machine.

    Attributes:
        changes: Settings that the option --set changed.
        manifests: Dict from data source to the checksum of its manifest.
        contents: Dict from data source to a checksum of all its audio.
        experts: Dict from expert to the values that identify its model.
        text: Fingerprint that identifies a pre-trained text encoder.
        starts: Trained models at the start of the training: dict from the folder of each model to the checksums of its
            files.
        teachers: Dict from teacher to the checksums of the files that identify its weights.
        augment: Checksums of the files that are read for random changes of the training data (augmentation), and of
            files that name the relevant clips of validation queries.
        started_in: Folder to which paths in the recipe are relative; it is itself relative to the run's folder.
    """

    recipe: str | None = None
    seed: int | None = None
    changes: list[str] = Field(default_factory=list)
    commits: list[str]
    began: str = ""
    command: list[str] = Field(default_factory=list)
    python: str | None = None
    torch: str | None = None
    machine: str | None = None
    cores: int | None = None
    threads: int | None = None
    gpu: str | None = None
    manifests: dict[str, str]
    experts: dict[str, dict[str, Any]]
    text: str | None
    starts: dict[str, str]
    teachers: dict[str, dict[str, str]] = Field(default_factory=dict)
    augment: dict[str, str] = Field(default_factory=dict)
    audio: dict[str, str] = Field(default_factory=dict)
    contents: dict[str, str] = Field(default_factory=dict)
    started_in: str | None = None


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
