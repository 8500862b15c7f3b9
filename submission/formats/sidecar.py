"""Models of the JSON file next to a score matrix."""

from typing import Any

from data_tools.documents.strict import Strict


class LabelledQuery(Strict):
    id: str
    text: str
    relevant: list[str] | None


class LabelledClip(Strict):
    id: str
    file_name: str


class Sidecar(Strict):
    """The whole file."""

    facts: dict[str, Any]
    queries: list[LabelledQuery]
    clips: list[LabelledClip]
    sha256: str | None = None
