"""Models of the JSON file next to a score matrix."""

from typing import Any

from pydantic import Field

from data_tools.documents.strict import Strict


class LabelledQuery(Strict):
    id: str
    text: str
    relevant: list[str] | None


class LabelledClip(Strict):
    id: str
    file_name: str


class Sidecar(Strict):
    """Content of the JSON file next to a score matrix. facts: Origin of the scores; empty for another program's."""

    facts: dict[str, Any] = Field(default_factory=dict)
    queries: list[LabelledQuery]
    clips: list[LabelledClip]
    sha256: str | None = None
