"""Read about.yaml.

In this file, participants state facts for a package that are not in the runs: people, names, web addresses.

authors:
  - {lastname: ..., firstname: ..., email: ..., corresponding: true,
     affiliation: {abbreviation: ..., institute: ..., department: ..., location: ...}}
systems:                       # one for each submitted system, in their order
  - {name: ..., abbreviation: ..., output: blind.npy, description: {loss_function: none, optimizer: none}}
sources:                       # data sets and pre-trained models without an address in the runs; null: not published
  freesound: {url: https://freesound.org}
annotations: metadata_eval.csv # only 2025: relevant clips for the results; default: the clip of each caption
source_code: null
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from data_tools.documents.strict import Strict, faults_of
from data_tools.documents.yaml12 import parse_yaml
from data_tools.errors import DataError
from data_tools.files import require_file
from submission.errors import SubmissionError

FILL_IN = "FILL IN"  # placeholder in a template for facts that only the participant knows


def _require_visible(text: str) -> str:
    """Return `text` unchanged; raises ValueError if it is empty, contains FILL_IN, or has control characters."""
    if FILL_IN in text:
        raise ValueError(f"the text still contains {FILL_IN!r}; replace it by the value")
    if not text.strip() or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise ValueError("the text is empty or has control characters, such as a line break; write one line of text")
    return text


def _require_email(text: str) -> str:
    """Return `text` unchanged; raises ValueError if it is not an e-mail address."""
    if not re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s.]+", text):
        raise ValueError(f"{text!r} is not an e-mail address such as name@place.org; correct it")
    return text


Text = Annotated[str, AfterValidator(_require_visible)]


def _require_fact(value: Any) -> Any:
    """Return a value unchanged if it is a number or one line of text; raises ValueError for other values."""
    if isinstance(value, str):
        return _require_visible(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not allowed here; write text or a number")
    return value


Fact = Annotated[Any, AfterValidator(_require_fact)]


class Affiliation(Strict):
    abbreviation: Text
    institute: Text
    department: Text | None
    location: Text


class Author(Strict):
    lastname: Text
    firstname: Text
    email: Annotated[Text, AfterValidator(_require_email)]
    corresponding: bool = False
    affiliation: Affiliation


class System(Strict):
    """The participant's facts about one system of the package.

    Attributes:
        name: Name for the results page of the challenge.
        abbreviation: Short name for the results page.
        output: File to submit: a score matrix (.npy), the edition's CSV, or a file of moments (.jsonl). Its path is
            relative to the folder of about.yaml. None: the run's scores of the blind set or, if the run has none, of
            the ranked split.
        scored: Score matrix or file of moments for the results in meta.yaml; None: that of the run.
        parameters: Number of parameters of all models together; None: the number in the runs.
        description: Values for the block `description` of meta.yaml, by key; they replace the values of the run.
    """

    name: Text
    abbreviation: Text
    output: Text | None = None
    scored: Text | None = None
    parameters: Annotated[int, Field(ge=1)] | None = None
    description: dict[str, Fact] = Field(default_factory=dict)


class Address(Strict):
    url: Text | None


class About(Strict):
    authors: Annotated[list[Author], Field(min_length=1)]
    systems: Annotated[list[System], Field(min_length=1)]
    sources: dict[str, Address] = Field(default_factory=dict)
    annotations: Text | None = None
    source_code: Text | None = None

    @property
    def corresponding(self) -> Author:
        """The author who is marked as corresponding author."""
        return next(author for author in self.authors if author.corresponding)


def about_template(
    systems: Sequence[tuple[str, Sequence[str], Sequence[str]]], sources: Iterable[str], of_moments: bool
) -> str:
    """Return a template of about.yaml that has FILL_IN in place of the missing facts.

    Args:
        systems: For each system three values: the names of its runs, the required keys among `output`, `scored` and
            `parameters`, and the keys of its description that are not in the runs.
        sources: Data sets and models whose address is not in the runs.
        of_moments: Whether the systems find moments; otherwise they rank clips.
    """
    files = "file of windows (.jsonl)" if of_moments else "scores (.npy) or CSV"
    quoted = json.dumps(FILL_IN)
    lines = [
        "# Facts for the package that are not in the runs. Replace each FILL IN inside its quotes, or write null.",
        "authors:  # exactly one has corresponding: true",
        f"  - {{lastname: {quoted}, firstname: {quoted}, email: {quoted}, corresponding: true,",
        f"     affiliation: {{abbreviation: {quoted}, institute: {quoted}, department: null, location: {quoted}}}}}",
        f"systems:  # in the order of the runs; `output`: path of the {files} of the blind set, relative to this file",
    ]
    if any("scored" in keys for _, keys, _ in systems):
        scored = "file of windows (.jsonl)" if of_moments else "scores (.npy)"
        lines.append(f"  # `scored`: path of the {scored} of the split that you report, relative to this file")
    for runs, keys, described in systems:
        ranked = "" if "output" in keys or runs.endswith(".npy") else ", which has ranked the blind set"
        lines.append(f"  # {runs}{ranked}")
        values = [f"{key}: {quoted}" for key in ("name", "abbreviation", *keys)]
        if described:
            values.append(f"description: {{{', '.join(f'{key}: {quoted}' for key in described)}}}")
        lines.append(f"  - {{{', '.join(values)}}}")
    if sources := list(sources):
        lines.append("sources:  # url: address of the data set or model, in quotes; null if it is not published")
        lines += [f"  {json.dumps(name, ensure_ascii=False)}: {{url: {quoted}}}" for name in sources]
    elif any(runs.endswith(".npy") for runs, _, _ in systems):
        lines.append("sources: {}  # external data and models, each with its address, such as {clotho: {url: null}}")
    if not of_moments:
        lines.append(
            "annotations: null  # only for 2025: the organisers' metadata_eval.csv, if the results should use it"
        )
    return "\n".join([*lines, "source_code: null  # the address of your code, in quotes", ""])


def read_about(path: Path, n_systems: int) -> About:
    """Read about.yaml. Raises SubmissionError with all missing or wrong facts, one per line."""
    require_file(path, "lbar submit pack RUN --template ABOUT.yaml writes a template of this file")
    try:
        document = parse_yaml(path.read_bytes())
    except DataError as error:
        raise SubmissionError(f"{path}: {error}") from None
    if not isinstance(document, dict) or not document.keys() & About.model_fields.keys():
        raise SubmissionError(
            f"{path}: the file must have the keys authors and systems; lbar submit pack RUN --template "
            "ABOUT.yaml writes a template of this file"
        )
    try:
        about = About.model_validate(document)
    except ValidationError as error:
        raise SubmissionError("\n".join(f"{path}: {fault}" for fault in faults_of(error))) from None
    problems = []
    if sum(author.corresponding for author in about.authors) != 1:
        problems.append("authors: write corresponding: true for exactly one author")
    if (described := len(about.systems)) != n_systems:
        problems.append(
            f"systems: {described} systems are described, but {n_systems} are submitted; describe each, in order"
        )
    if problems:
        raise SubmissionError("\n".join(f"{path}: {problem}" for problem in problems))
    return about
