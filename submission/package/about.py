"""about.yaml: what only the participants know of their package."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from data_tools.errors import KitError
from data_tools.files import require_file
from data_tools.settings import Strict, fault_of, parse
from submission.package.meta_model import Abbreviation, Author, Authors, Text


class System(Strict):
    """Facts about one system.

    Attributes:
        output: File of the blind set: scores, a CSV or windows.
        scored: Scores or windows of the split that is reported.
        parameters: Number of parameters, if the runs do not have it.
        description: Values of the block `description` of meta.yaml.
    """

    name: Text
    abbreviation: Abbreviation
    output: Text | None = None
    scored: Text | None = None
    parameters: Annotated[int, Field(ge=1)] | None = None
    description: dict[str, Any] = Field({})


class Address(Strict):
    """Address of a data set or model; None if unpublished."""

    url: Text | None


class About(Strict):
    """Content of about.yaml."""

    authors: Authors
    systems: Annotated[list[System], Field(min_length=1)]
    sources: dict[str, Address] = Field({})
    annotations: Text | None = None
    source_code: Text | None = None

    @property
    def corresponding(self) -> Author:
        """The corresponding author."""
        return next(author for author in self.authors if author.corresponding)


def read_about(path: Path, n_systems: int) -> About:
    """Read about.yaml.

    Raises KitError with all missing or wrong facts, one per line.
    """
    require_file(path, "PACKAGE.md has an example")
    document = parse(path.read_bytes())
    faults = [f"{path}, line {line}: {text}" for _, line, text in document.problems]
    try:
        if not faults:
            about = About.model_validate(document.value)
    except ValidationError as error:
        for fault in error.errors():
            keys = ".".join(map(str, fault["loc"]))
            faults.append(f"{path}, line {document.line(fault['loc'])}: {keys or 'the file'}: {fault_of(fault)}")
    if faults:
        raise KitError("\n".join(faults))
    if len(about.systems) != n_systems:
        raise KitError(f"{path}: systems: {len(about.systems)} described, {n_systems} submitted; describe each")
    return about
