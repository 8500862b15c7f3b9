"""The text encoders.

To add one, write its file here and import it below.
"""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny

from system.kinds import by_kind
from system.models.text.encoder import TextSettings
from system.models.text.given import TextEmbeddings as TextEmbeddings
from system.models.text.joint import JointText as JointText
from system.models.text.published import Published as Published
from system.models.text.small import Transformer as Transformer
from system.models.text.words import WordVectors as WordVectors

Text: TypeAlias = Annotated[SerializeAsAny[TextSettings], BeforeValidator(by_kind(TextSettings))]
