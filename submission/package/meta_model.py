"""Keys of meta.yaml.

Pydantic models that check meta.yaml: the keys that it must have in an edition, and the types of their values.

Sources: those that submission/editions.py states for each edition (items `result` and `external` of the attribute
`sources`). Other keys of meta.yaml are allowed and not checked.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from data_tools.documents.problems import shown
from submission.editions import AnyEdition, Edition

MESSAGES = {  # by pydantic's type of the error
    "missing": "{key} is missing",
    "model_type": "{key} is {value}, not a mapping",
    "list_type": "{key} is {value}, not a list",
    "bool_type": "{key} is {value}, not true or false",
    "string_type": "{key} is {value}, not text",
    "int_type": "{key} is {value}, not a whole number",
    "float_type": "{key} is {value}, not a number from 0 to {highest}",
    "less_than_equal": "{key} is {value}, not a number from 0 to {highest}",
    "greater_than_equal": "{key} is {value}, not a number of 0 or more",
    "literal_error": "{key} is {value}, but the name of the system's folder is {expected}; both must be equal",
    "string_too_long": "{key} is {value}, which has more than {max_length} characters; shorten it",
    "too_short": "{key} is an empty list; add the authors",
    "value_error": "{key}: {error}",
}


class Part(BaseModel):
    """A mapping in meta.yaml. Values are checked without conversion, and further keys are allowed."""

    model_config = ConfigDict(strict=True, extra="allow")


def _require_value(value: Any) -> Any:
    """Return the value of a key in meta.yaml unchanged; raises ValueError if the value is empty."""
    if value in (None, ""):
        raise ValueError("the value is missing; fill it in")
    return value


Required = Annotated[Any, AfterValidator(_require_value)]
Count = Annotated[int, Field(ge=0)]


class Affiliation(Part):
    abbreviation: Required
    institute: Required
    location: Required


class Author(Part):
    lastname: Required
    firstname: Required
    email: Required
    affiliation: Affiliation
    corresponding: Any = False


def _with_one_corresponding(authors: list[Author]) -> list[Author]:
    """Return the list of authors unchanged; raises ValueError unless exactly one is the corresponding author."""
    if (count := sum(author.corresponding is True for author in authors)) != 1:
        raise ValueError(f"{count} authors have corresponding: true; exactly one author must have it")
    return authors


Authors = Annotated[list[Author], Field(min_length=1), AfterValidator(_with_one_corresponding)]


class Description(Part):
    input_sampling_rate: Required
    acoustic_features: Required
    machine_learning_method: Required
    loss_function: Required
    optimizer: Required


class Complexity(Part):
    total_parameters: Count


class MomentsModel(Part):
    audio_models: list[Any]
    text_models: list[Any]
    LLMs: list[Any]
    trainable_parameters: Required
    freezed_parameters: Required  # the template's spelling
    loss_function: list[Any]


class MomentsData(Part):
    data_augmentation: Any
    external_data_resources: list[Any]
    audio_captions: Count


def figure_keys(edition: AnyEdition) -> dict[str, str]:
    """Return a dict from each metric to its key in meta.yaml, e.g. from R@1 to R1, or from R1@0.7 to Recall1@0.7."""
    if isinstance(edition, Edition):
        metrics = [*(f"R@{k}" for k in edition.recall_ks), *(f"mAP@{k}" for k in edition.map_ks)]
        return {metric: metric.replace("@", "") for metric in metrics}
    recalls = [metric for metric in edition.metrics if metric.startswith("R1@")]
    primary_first = sorted(recalls, key=lambda metric: metric != edition.metric)
    return {metric: f"Recall{metric[1:]}" for metric in primary_first}


def meta_faults(meta: Any, label: str, edition: AnyEdition) -> list[str]:
    """Return a message for each fault of meta.yaml that the official validator would refuse.

    meta: Content of the file. label: Name of the system's folder, which the file must repeat as its label.
    """
    highest = 1 if isinstance(edition, Edition) else 100  # figures of clips are shares, those of moments are per cent
    try:
        _build_meta_model(label, edition, highest).model_validate(meta)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        return [
            _fault_message(item, highest) for item in faults if item["type"] != "invalid_key"
        ]  # such keys are not checked
    return []


def _fault_message(item: Mapping[str, Any], highest: int) -> str:
    """Return a message for one validation error of meta.yaml. highest: Largest allowed value of a metric."""
    key, value = ".".join(map(str, item["loc"])) or "meta.yaml", item["input"]
    kind = "missing" if value in (None, "") else item["type"]
    number_or_type = repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"
    described = shown(value) if isinstance(value, str) else number_or_type
    message = MESSAGES.get(kind, "{key} is {value}, which is not allowed here; correct it")
    return message.format(**item.get("ctx", {}), key=key, value=described, highest=highest)


def _build_meta_model(label: str, edition: AnyEdition, highest: int) -> type[Part]:
    """Build the pydantic model of a correct meta.yaml for an edition. highest: Largest allowed value of a metric."""
    figure = Annotated[float, Field(ge=0, le=highest)]
    figures = _model_with_keys(**dict.fromkeys(figure_keys(edition).values(), figure))
    abbreviation = Annotated[str, Field(max_length=edition.abbreviation)]
    submission = _model_with_keys(label=Literal[label], name=Required, abbreviation=abbreviation, authors=Authors)
    if isinstance(edition, Edition):
        data_set: Any = _model_with_keys(**dict.fromkeys(edition.external, Any))
        system = _model_with_keys(description=Description, complexity=Complexity, external_datasets=list[data_set])
    else:
        system = _model_with_keys(model=MomentsModel, dataset=MomentsData, ensemble=bool)
    return _model_with_keys(submission=submission, system=system, results=_model_with_keys(**{edition.result: figures}))


def _model_with_keys(**kinds: Any) -> type[Part]:
    """Return a pydantic model whose required keys are the names in `kinds`, with their types."""
    fields: dict[str, Any] = {key: (kind, ...) for key, kind in kinds.items()}
    return create_model("Part", __base__=Part, **fields)
