"""YAML as it is read here: one document of plain values, and no key twice."""

from typing import Any

import yaml

from submission.errors import SubmissionError

SHOWN_CHARACTERS = 200


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but for keys that are given twice: it keeps the last one and drops the others unseen."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        content: dict[Any, Any] = super().construct_mapping(node, deep)
        return content


def parse_yaml(data: bytes) -> Any:
    """Raises SubmissionError, which begins with `not YAML`, for bytes that are none."""
    try:
        return yaml.load(data, Loader=_Loader)
    except Exception as error:  # values that a tag forces meet the loader with KeyError, IndexError, and more
        raise SubmissionError(f"not YAML ({' '.join(str(error).split())[:SHOWN_CHARACTERS]})") from None
