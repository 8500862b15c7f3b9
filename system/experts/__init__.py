"""The closed list of experts. A new one is a file beside this one and its class in `Expert`."""

from typing import Annotated

from pydantic import Field

from system.experts.logmel import LogMel
from system.experts.openl3 import OpenL3
from system.experts.panns import PannsCnn14
from system.experts.resnet38 import PannsResNet38
from system.experts.slaney import LogMelSlaney
from system.experts.vggish import Vggish
from system.experts.vggsound import VggSound
from system.experts.waveform import Waveform
from system.experts.yamnet import Yamnet

Expert = Annotated[
    LogMel | LogMelSlaney | Yamnet | OpenL3 | PannsCnn14 | PannsResNet38 | VggSound | Vggish | Waveform,
    Field(discriminator="kind"),
]

__all__ = [
    "Expert",
    "LogMel",
    "LogMelSlaney",
    "OpenL3",
    "PannsCnn14",
    "PannsResNet38",
    "VggSound",
    "Vggish",
    "Waveform",
    "Yamnet",
]
