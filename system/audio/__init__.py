"""Audio networks and other sources of frames, one file each.

To add one, write its file and add a line to KINDS. A file is imported when a recipe names its kind.
"""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny

from system.audio.base import ExpertSettings
from system.kinds import by_kind

KINDS = {  # kind: module
    "atst_frame": "system.audio.atst_frame",
    "beats": "system.audio.beats",
    "eat": "system.audio.eat",
    "efficientat": "system.audio.efficientat",
    "feature_files": "system.audio.stored",
    "ast": "system.audio.hub",
    "clap": "system.audio.hub",
    "pe_audio": "system.audio.hub",
    "logmel": "system.audio.logmel",
    "logmel_slaney": "system.audio.logmel",
    "m2d_clap": "system.audio.m2d_clap",
    "openl3": "system.audio.openl3",
    "panns": "system.audio.panns",
    "passt": "system.audio.passt",
    "vggish": "system.audio.vggish",
    "vggsound": "system.audio.vggsound",
    "waveform": "system.audio.stored",
    "yamnet": "system.audio.yamnet",
}


read_settings = by_kind(ExpertSettings, KINDS)
Expert: TypeAlias = Annotated[SerializeAsAny[ExpertSettings], BeforeValidator(read_settings)]
