"""Settings of several kinds, which their key `kind` tells apart."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, get_args

from pydantic_core import PydanticKnownError

_MODULES: dict[Any, Mapping[str, str]] = {}  # by base class: the module of each kind


def all_kinds(base: Any) -> dict[str, Any]:
    """Import the kit's kinds of `base`; return all that are known.

    `base` may also be a subclass of the one with a table, such as AudioNetwork of ExpertSettings.
    """
    for known, modules in _MODULES.items():
        for module in modules.values() if issubclass(base, known) else ():
            import_module(module)
    return kinds_of(base)


def kinds_of(base: Any) -> dict[str, Any]:
    """Return the known subclasses of `base`, by their kinds."""
    found: dict[str, Any] = {}
    for one in base.__subclasses__():
        if "kind" in one.__annotations__:  # else settings that several kinds share
            found |= dict.fromkeys(get_args(one.model_fields["kind"].annotation), one)
        found |= kinds_of(one)
    return found


def by_kind(base: Any, modules: Mapping[str, str] = MappingProxyType({})) -> Callable[[Any], Any]:
    """Return a validator that reads settings by their key `kind`.

    It makes them an instance of the subclass of `base` that has this kind.

    Args:
        modules: By kind, those that are imported when the kind is named.
    """
    _MODULES[base] = modules

    def read(value: Any) -> Any:
        if isinstance(value, base):
            return value
        if not isinstance(value, dict) or "kind" not in value:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        kind, known = value["kind"], dict.fromkeys([*modules, *kinds_of(base)])
        if not isinstance(kind, str) or kind not in known:
            expected = ", ".join(f"'{one}'" for one in known)
            facts = {"discriminator": "'kind'", "tag": str(kind), "expected_tags": expected}
            raise PydanticKnownError("union_tag_invalid", facts)
        if kind in modules:
            import_module(modules[kind])
        return kinds_of(base)[kind].model_validate(value)

    return read
