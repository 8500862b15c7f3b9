"""Settings of several kinds, which their key `kind` tells apart."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Self, get_args

from pydantic import ConfigDict, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticKnownError

from data_tools.settings import Strict

IMPORTED: list[str] = []  # modules of a user's files; the kinds of the last one count


def _turn(kind: type) -> int:
    return IMPORTED.index(kind.__module__) if kind.__module__ in IMPORTED else -1


class OfKind(Strict):
    """Settings that are one of several kinds.

    Where a base class is the type of a field, any of its subclasses is read, by the key `kind`.
    """

    model_config = ConfigDict(polymorphic_serialization=True)  # the settings of the subclass are written

    modules: ClassVar[Mapping[str, str]] = {}  # by kind, those that are imported when the kind is named

    kind: str  # a subclass that is a kind has a Literal

    @classmethod
    def known_kinds(cls) -> dict[str, type[Self]]:
        """Return this class and its subclasses, by their kinds."""
        found: dict[str, type[Self]] = {}
        if "kind" in cls.__annotations__:  # else settings that several kinds share
            found |= dict.fromkeys(get_args(cls.model_fields["kind"].annotation), cls)
        for one in sorted(cls.__subclasses__(), key=_turn):
            found |= one.known_kinds()
        return found

    @classmethod
    def all_kinds(cls) -> dict[str, type[Self]]:
        """Import the kit's kinds; return all that are known."""
        for module in cls.modules.values():
            import_module(module)
        return cls.known_kinds()

    @model_validator(mode="wrap")
    @classmethod
    def _read_kind(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        if get_args(cls.model_fields["kind"].annotation) or isinstance(value, cls):
            return read(value)
        if not isinstance(value, dict) or "kind" not in value:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        kind = str(value["kind"])
        if kind in cls.modules:
            import_module(cls.modules[kind])
        known = cls.known_kinds()
        if kind in known or kind in (known := cls.all_kinds()):
            return known[kind].model_validate(value)
        expected = ", ".join(f"'{one}'" for one in known)
        facts = {"discriminator": "'kind'", "tag": kind, "expected_tags": expected}
        raise PydanticKnownError("union_tag_invalid", facts)
