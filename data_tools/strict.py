"""The base of every settings model: closed, strict, frozen; closed lists of kinds; counts and sizes that many have."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Union, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]  # it becomes part of keys and file names
Positive = Annotated[int, Field(ge=1, le=1_000_000)]  # a count: of epochs, steps, items
Size = Annotated[int, Field(ge=1, le=65_536)]  # of a layer; the widest networks there are have 16,384
Depth = Annotated[int, Field(ge=1, le=1_000)]  # layers one behind the other


class Strict(BaseModel):
    """Unknown keys and values of the wrong type are errors; nothing is converted; nothing changes after reading."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def closed_list(names: Mapping[str, Any], base: type[Strict]) -> Any:
    """The union, told apart by `kind`, of all subclasses of `base` among a module's names."""
    kinds = [value for value in names.values() if isinstance(value, type) and issubclass(value, base)]
    return Annotated[Union[tuple(kind for kind in kinds if kind is not base)], Field(discriminator="kind")]  # noqa: UP007


def kinds_of(union: Any) -> tuple[type[Strict], ...]:
    """The classes of a closed list."""
    kinds: tuple[type[Strict], ...] = get_args(get_args(union)[0])
    return kinds


def mistakes(found: Iterable[tuple[tuple[str, ...], str]]) -> ValidationError | None:
    """For a validator to raise: sentences, each about a key below the settings that it checks; None for none."""
    errors = [InitErrorDetails(type=PydanticCustomError("value_error", "{error}", {"error": text}), loc=keys, input={})
              for keys, text in found]  # fmt: skip
    return ValidationError.from_exception_data("settings", errors) if errors else None
