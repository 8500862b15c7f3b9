"""The audio networks and other sources of frames, one file each.

To add one, write its file and add a line to KINDS. A file is imported when a recipe names its kind.
"""

from importlib import import_module
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny
from pydantic_core import PydanticKnownError

from system.audio.base import ExpertSettings

KINDS = {  # kind: module and class
    "atst_frame": "system.audio.atst_frame:AtstFrame",
    "beats": "system.audio.beats:Beats",
    "eat": "system.audio.eat:Eat",
    "efficientat": "system.audio.efficientat:EfficientAT",
    "feature_files": "system.audio.stored:FeatureFiles",
    "ast": "system.audio.hub:Ast",
    "clap": "system.audio.hub:ClapAudio",
    "pe_audio": "system.audio.hub:PeAudio",
    "logmel": "system.audio.logmel:LogMel",
    "logmel_slaney": "system.audio.logmel:LogMelSlaney",
    "m2d_clap": "system.audio.m2d_clap:M2dClap",
    "openl3": "system.audio.openl3:OpenL3",
    "panns": "system.audio.panns:Panns",
    "passt": "system.audio.passt:Passt",
    "vggish": "system.audio.vggish:Vggish",
    "vggsound": "system.audio.vggsound:VggSound",
    "waveform": "system.audio.stored:Waveform",
    "yamnet": "system.audio.yamnet:Yamnet",
}


def kind_class(kind: str) -> type[ExpertSettings]:
    """Import the settings of a kind."""
    module, _, name = KINDS[kind].partition(":")
    found: type[ExpertSettings] = getattr(import_module(module), name)
    return found


def read_settings(value: Any) -> ExpertSettings:
    """Read settings by their `kind`."""
    if isinstance(value, ExpertSettings):
        return value
    if not isinstance(value, dict) or "kind" not in value:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
    if value["kind"] not in KINDS:
        expected = ", ".join(f"'{kind}'" for kind in KINDS)
        facts = {"discriminator": "'kind'", "tag": str(value["kind"]), "expected_tags": expected}
        raise PydanticKnownError("union_tag_invalid", facts)
    return kind_class(value["kind"]).model_validate(value)


Expert: TypeAlias = Annotated[SerializeAsAny[ExpertSettings], BeforeValidator(read_settings)]
