"""about.yaml: facts of a package that only the participants know.

See PACKAGE.md.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from data_tools.errors import DataError
from data_tools.files import require_file
from data_tools.settings import parse_yaml
from submission.editions import ABBREVIATION
from submission.errors import SubmissionError

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
NamePart = Annotated[Text, Field(pattern=r"^[\w '’.-]+$")]  # part of the label, and so of file names


class Part(BaseModel):
    """A mapping without unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Affiliation(Part):
    """An institute."""

    abbreviation: NamePart
    institute: Text
    department: Text | None
    location: Text


class Author(Part):
    """An author; exactly one is corresponding."""

    lastname: NamePart
    firstname: Text
    email: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")]
    corresponding: bool = False
    affiliation: Affiliation


class System(Part):
    """Facts about one system.

    Attributes:
        output: File of the blind set: scores, a CSV or windows.
        scored: Scores or windows of the split that is reported.
        parameters: Number of parameters, if the runs do not have it.
        description: Values of the block `description` of meta.yaml.
    """

    name: Text
    abbreviation: Annotated[Text, Field(max_length=ABBREVIATION)]
    output: Text | None = None
    scored: Text | None = None
    parameters: Annotated[int, Field(ge=1)] | None = None
    description: dict[str, Any] = {}


class Address(Part):
    """The address of a data set or model.

    None if it is not published.
    """

    url: Text | None


def _with_one_corresponding(authors: list[Author]) -> list[Author]:
    if sum(author.corresponding for author in authors) != 1:
        raise ValueError("write corresponding: true for exactly one author")
    return authors


class About(Part):
    """Content of about.yaml."""

    authors: Annotated[list[Author], Field(min_length=1), AfterValidator(_with_one_corresponding)]
    systems: Annotated[list[System], Field(min_length=1)]
    sources: dict[str, Address] = {}
    annotations: Text | None = None
    source_code: Text | None = None

    @property
    def corresponding(self) -> Author:
        """The corresponding author."""
        return next(author for author in self.authors if author.corresponding)


def read_about(path: Path, n_systems: int) -> About:
    """Read about.yaml.

    Raises SubmissionError with all missing or wrong facts, one per line.
    """
    require_file(path, "PACKAGE.md has an example")
    try:
        about = About.model_validate(parse_yaml(path.read_bytes()))
    except DataError as error:
        raise SubmissionError(f"{path}: {error}") from None
    except ValidationError as error:
        faults = (f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise SubmissionError("\n".join(faults)) from None
    if len(about.systems) != n_systems:
        raise SubmissionError(f"{path}: systems: {len(about.systems)} described, {n_systems} submitted; describe each")
    return about
