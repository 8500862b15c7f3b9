"""Keys that meta.yaml must have, and their types.

Other keys are allowed and not checked. Sources: see RESULT and EXTERNAL in editions.py; of 2026, the task's template
with its comments, as a participant filled it in (secondary).
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, create_model

from data_tools.settings import faults_of
from submission.editions import ABBREVIATION, EXTERNAL, RESULT, Edition


class Part(BaseModel):
    """A mapping in meta.yaml.

    Values are checked without conversion, and further keys are allowed.
    """

    model_config = ConfigDict(strict=True, extra="allow")


def _require_value(value: Any) -> Any:
    if value in (None, ""):
        raise ValueError("the value is missing")
    return value


Required = Annotated[Any, AfterValidator(_require_value)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Abbreviation = Annotated[Text, Field(max_length=ABBREVIATION)]


class Affiliation(Part):
    """An institute."""

    abbreviation: Text
    institute: Text
    department: Text | None = None
    location: Text


class Author(Part):
    """An author; exactly one is corresponding."""

    lastname: Text
    firstname: Text
    email: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$")]
    corresponding: bool | None = False
    affiliation: Affiliation


def _with_one_corresponding(authors: list[Author]) -> list[Author]:
    if sum(author.corresponding is True for author in authors) != 1:
        raise ValueError("exactly one author must have corresponding: true")
    return authors


Authors = Annotated[list[Author], Field(min_length=1), AfterValidator(_with_one_corresponding)]


def _part(**kinds: Any) -> type[Part]:
    fields: dict[str, Any] = {key: (kind, ...) for key, kind in kinds.items()}
    return create_model("Part", __base__=Part, **fields)


DESCRIPTION = ("input_sampling_rate", "acoustic_features", "machine_learning_method", "loss_function", "optimizer")
Clips = _part(
    description=_part(**dict.fromkeys(DESCRIPTION, Required)),
    complexity=_part(total_parameters=Annotated[int, Field(ge=0)]),
    external_datasets=list[_part(**dict.fromkeys(EXTERNAL, Any))],  # type: ignore[misc]
)
Moments = _part(
    model=_part(
        **dict.fromkeys(("audio_models", "text_models", "LLMs", "loss_function"), list[Any]),
        trainable_parameters=Required,
        freezed_parameters=Required,  # the template's spelling
    ),
    dataset=_part(data_augmentation=Any, external_data_resources=list[Any], audio_captions=Annotated[int, Field(ge=0)]),
    ensemble=bool,
)


def figure_keys(edition: Edition) -> dict[str, str]:
    """Return each metric's key in meta.yaml, such as R1 for R@1."""
    if edition.output == "windows":
        return {name: f"Recall{name[1:]}" for name in edition.metrics if name.startswith("R1@")}
    return {name: name.replace("@", "") for name in edition.metrics}


def meta_faults(meta: Any, label: str, edition: Edition) -> list[str]:
    """Return each fault that the official validator would refuse."""
    of_moments = edition.output == "windows"
    figure = Annotated[float, Field(ge=0, le=100 if of_moments else 1)]  # of moments in per cent
    model = _part(
        submission=_part(label=Literal[label], name=Required, abbreviation=Abbreviation, authors=Authors),
        system=Moments if of_moments else Clips,
        results=_part(**{RESULT: _part(**dict.fromkeys(figure_keys(edition).values(), figure))}),
    )
    try:
        model.model_validate(meta)
    except ValidationError as error:
        return [f"meta.yaml: {fault}" for fault in faults_of(error)]
    return []
