"""The text encoders.

To add one, write its file here and add a line to KINDS. A file is imported when a recipe names its kind.
"""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny

from system.kinds import by_kind
from system.models.text.encoder import TextSettings

KINDS = {  # kind: module
    "clap": "system.models.text.joint",
    "pe_audio": "system.models.text.joint",
    "embeddings": "system.models.text.given",
    "published": "system.models.text.published",
    "transformer": "system.models.text.small",
    "word_vectors": "system.models.text.words",
}
Text: TypeAlias = Annotated[SerializeAsAny[TextSettings], BeforeValidator(by_kind(TextSettings, KINDS))]
