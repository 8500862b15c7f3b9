"""What a finished run's files must hold for a package or a report to be made of them.

Runs are written by the other room and may be edited or damaged since; these shapes are what is relied on here, and
whatever else the files hold is left as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

_STRICT = {"strict": True}
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]


@dataclass(frozen=True)
class _Parameters:
    trained: dict[str, Count]
    frozen: dict[str, Count]
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _Expert:
    kind: str
    rate: Annotated[float, Field(gt=0)]
    published: list[str]
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _Set:
    clips: Positive
    captions: Count
    hours: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    licences: dict[str, Count]
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _Source:
    sets: dict[str, _Set]
    trains: list[str]
    published: str | None
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Result:
    """Of result.json."""

    rank: dict[str, dict[str, Any]]
    parameters: _Parameters
    experts: dict[str, _Expert]
    data: dict[str, _Source]
    commits: list[str]
    hardware: str
    sha256: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _Encoder:
    kind: str
    model: str = "trained from scratch"
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _Model:
    audio: _Encoder
    text: _Encoder
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _Loss:
    kind: str
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _Optimizer:
    kind: str
    lr: float
    weight_decay: float | None = None
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _Stage:
    losses: list[_Loss]
    optimizer: _Optimizer
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _ByCheckpoint:
    kind: Literal["checkpoint"]
    stage: str
    checkpoint: str
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class _ByMean:
    kind: Literal["mean"]
    of: Annotated[list[str], Field(min_length=1)]
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Recipe:
    """Of resolved.json."""

    model: _Model
    stages: dict[str, _Stage]
    rank: dict[str, Annotated[_ByCheckpoint | _ByMean, Field(discriminator="kind")]]
    __pydantic_config__ = _STRICT


def faults(data: bytes, shape: type[Result] | type[Recipe]) -> Iterator[str]:
    """What keeps the bytes of a JSON file from this shape, a sentence each."""
    try:
        TypeAdapter(shape).validate_json(data)
    except ValidationError as error:
        for item in error.errors():
            yield f"{'.'.join(map(str, item['loc'])) or 'as a whole'}: {item['msg']}"


def broken_links(result: dict[str, Any], recipe: dict[str, Any]) -> Iterator[str]:
    """Names that lead nowhere, in content that has its shape."""
    for name in result["parameters"]["frozen"]:
        if name not in ("audio", "text") and name not in result["experts"]:
            yield f"parameters.frozen.{name}: no such expert"
    ranked: set[str] = set()
    for name, entry in recipe["rank"].items():
        if entry["kind"] == "checkpoint" and entry["stage"] not in recipe["stages"]:
            yield f"rank.{name}.stage: no stage {entry['stage']!r}"
        for part in entry["of"] if entry["kind"] == "mean" else ():
            if part not in ranked:
                yield f"rank.{name}.of: no earlier entry {part!r}"
        ranked.add(name)
    for name in result["rank"]:
        if name not in ranked:
            yield f"rank.{name}: is in result.json only"
