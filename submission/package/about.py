"""What no run knows and a package must say: people, names of the systems, addresses of data. A YAML file of their own.

authors:
  - {lastname: ..., firstname: ..., email: ..., corresponding: true,
     affiliation: {abbreviation: ..., institute: ..., department: ..., location: ...}}
systems:                       # one for each that is handed in, in their order
  - {name: ..., abbreviation: ..., output: blind.npy}
sources:                       # data sets and pre-trained models whose address no run knows; null: not published
  freesound: {url: https://freesound.org}
annotations: metadata_eval.csv # of 2025: what the results count as relevant; left out: each caption's own clip
source_code: null
"""

import unicodedata
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from data_tools.errors import DataError
from data_tools.yaml12 import parse_yaml
from submission.errors import SubmissionError


def _visible(text: str) -> str:
    if not text.strip() or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise PydanticCustomError("visible", "is empty or has characters that cannot be seen; write one line of text")
    return text


Text = Annotated[str, AfterValidator(_visible)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Affiliation(_Part):
    abbreviation: Text
    institute: Text
    department: Text | None
    location: Text


class Author(_Part):
    lastname: Text
    firstname: Text
    email: Text
    corresponding: bool = False
    affiliation: Affiliation


class System(_Part):
    """name, abbreviation: as the results page will show them. output: what is handed in, a score matrix (.npy) or the
    edition's CSV, beside this file; None: what the run ranked. scored: the score matrix its figures are of; None: the
    run's own."""

    name: Text
    abbreviation: Text
    output: Text | None = None
    scored: Text | None = None


class Address(_Part):
    url: Text | None


class About(_Part):
    authors: Annotated[list[Author], Field(min_length=1)]
    systems: Annotated[list[System], Field(min_length=1)]
    sources: dict[str, Address] = {}
    annotations: Text | None = None
    source_code: Text | None = None

    @property
    def corresponding(self) -> Author:
        return next(author for author in self.authors if author.corresponding)


def read_about(path: Path, n_systems: int) -> About:
    """Read the file. Raises SubmissionError naming every fact that is missing or wrong, a line each."""
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise SubmissionError(f"{path}: must say authors and systems; see submission/package/about.py")
    try:
        about = About.model_validate(document)
    except ValidationError as error:
        raise SubmissionError(
            "\n".join(
                f"{path}: {'.'.join(map(str, item['loc'])) or 'the file'}: {_describe(item['type'], item['msg'])}"
                for item in error.errors()
            )
        ) from None
    problems = []
    if sum(author.corresponding for author in about.authors) != 1:
        problems.append("authors: exactly one must say corresponding: true")
    if len(about.systems) != n_systems:
        problems.append(
            f"systems: {n_systems} are handed in and {len(about.systems)} described; describe each, in order"
        )
    if problems:
        raise SubmissionError("\n".join(f"{path}: {problem}" for problem in problems))
    return about


def _describe(kind: str, message: str) -> str:
    """What is wrong with a fact, in the words of one who writes the file."""
    words = {
        "missing": "is missing",
        "extra_forbidden": "is no fact that is asked for; take it out, or correct its name",
    }
    return words.get(kind, message.replace("valid dictionary", "mapping of names to facts"))


def read_yaml(path: Path) -> Any:
    """Raises SubmissionError for a file that is missing or no YAML."""
    if not path.is_file():
        raise SubmissionError(f"{path}: no such file; it says who hands in what: see submission/package/about.py")
    try:
        return parse_yaml(path.read_bytes())
    except DataError as error:
        raise SubmissionError(f"{path}: {error}") from None
