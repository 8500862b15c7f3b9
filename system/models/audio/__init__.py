"""The audio encoders.

To add one, write its file here and add a line to KINDS. A file is imported when a recipe names its kind.
"""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny

from system.kinds import by_kind
from system.models.audio.base import AudioSettings

KINDS = {  # kind: module
    "crnn": "system.models.audio.crnn",
    "gru": "system.models.audio.crnn",
    "embeddings": "system.models.audio.heads",
    "expert_heads": "system.models.audio.heads",
    "frame_transformer": "system.models.audio.heads",
    "pooled_mlp": "system.models.audio.heads",
    "segments": "system.models.audio.segments",
}
Audio: TypeAlias = Annotated[SerializeAsAny[AudioSettings], BeforeValidator(by_kind(AudioSettings, KINDS))]
