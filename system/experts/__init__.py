"""The closed list of experts. A new one is a file beside this one and its class in `Expert`."""

from typing import Annotated

from pydantic import Field

from system.experts.logmel import LogMel
from system.experts.yamnet import Yamnet

Expert = Annotated[LogMel | Yamnet, Field(discriminator="kind")]
