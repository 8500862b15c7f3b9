"""Published models that embed sounds and sentences in one space.

They are CLAP, PE-AV and PE-A-Frame.
"""

import re
from typing import Any

from data_tools.classify.model_files import config_of, local_folder
from data_tools.errors import KitError

FRAME_MODEL = "PeAudioFrameLevelModel"
EXAMPLES = "laion/clap-htsat-unfused (CLAP), facebook/pe-av-small (PE-AV) or facebook/pe-a-frame-small (PE-A-Frame)"
# config.json of names on the hub, until it is on this machine
_NAMES: dict[str, dict[str, Any]] = {
    r"laion/(clap-htsat|larger_clap)[\w-]*": {"model_type": "clap"},
    r"facebook/pe-av-[\w-]+": {"model_type": "pe_audio_video"},
    r"facebook/pe-a-frame-[\w-]+": {"model_type": "pe_audio", "architectures": [FRAME_MODEL]},
}


def published_model_settings(name: str) -> dict[str, Any]:
    """Return the recipe settings under `model` of a published model.

    CLAP scores clips by cosines, PE-AV by logits of clips, PE-A-Frame by logits of frames, 25 a second.

    Args:
        name: Hub name or folder.

    Raises:
        KitError: The model is of another type, or its type is not known on this machine.
    """
    config = read_config(name)
    has_frames, sizes = FRAME_MODEL in (config.get("architectures") or ()), config.get("text_config") or {}
    match config.get("model_type"):
        case "clap":
            kind, seconds, dim, score = "clap", 10, config.get("projection_dim", 512), "cosine"
        case "pe_audio" | "pe_audio_video":
            kind, seconds, dim = "pe_audio", 30, sizes.get("hidden_size", 1024)
            score = "frame_dot_products" if has_frames else "dot_product"
        case other:
            said = f"model {name} (type {other}) does not compare sounds with sentences"
            raise KitError(f"{said}; name a model such as {EXAMPLES}")
    network = {"kind": kind, "weights": name, "segment_seconds": seconds, "output": "frames" if has_frames else "clip"}
    frozen = {"trainable": False, "head": "none"}
    # A segment weighs as much as it lasts.
    audio = {"kind": "segments", "network": network, "max_seconds": 30, "pooling": "seconds", **frozen}
    return {"audio": audio, "text": {"kind": kind, "model": name, "dim": int(dim), **frozen}, "score": {"kind": score}}


def read_config(name: str) -> dict[str, Any]:
    """Read a model's config.json, or guess it from the name.

    Raises:
        KitError: It is not known.
    """
    if (config := config_of(name, "model")) is not None:
        return config
    if local_folder(name, "model") is not None:
        raise KitError(f"model {name} has no readable config.json; name a model such as {EXAMPLES}")
    facts = next((facts for pattern, facts in _NAMES.items() if re.fullmatch(pattern, name)), None)
    if facts is None:
        raise KitError(f"model {name} is neither a folder nor in the hub's cache; {how_to_fetch(name)}")
    return facts


def how_to_fetch(name: str) -> str:
    """Say how to get a model that is not here."""
    return f"fetch it while online with lbar download {name}, or name a folder that contains the model"
