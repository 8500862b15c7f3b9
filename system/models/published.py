"""Settings of published models.

A published model embeds sounds and sentences in one space, so that it ranks clips without training. Never imports
torch.
"""

import re
from typing import Any

from data_tools.classify.model_files import config_of, local_folder
from data_tools.errors import KitError
from system.networks.hugging_face_types import ROWS

CLAP_SECONDS, PE_SECONDS, GEMMA_SECONDS = 10, 30, 30  # of a segment; longer clips are cut
EXAMPLES = "laion/clap-htsat-unfused (CLAP), facebook/pe-av-small (PE-AV) or facebook/pe-a-frame-small (PE-A-Frame)"
FRAME_MODEL = "PeAudioFrameLevelModel"
# Model types and embedding sizes of names on the hub, used until their config.json is on this machine.
_NAMES: dict[str, dict[str, Any]] = {
    r"laion/(clap-htsat|larger_clap)[\w-]*": {"model_type": "clap", "projection_dim": 512},
    r"facebook/pe-av-[\w-]+": {"model_type": "pe_audio_video", "text_config": {"hidden_size": 1024}},
    r"facebook/pe-a-frame-[\w-]+": {"model_type": "pe_audio", "text_config": {"hidden_size": 1024}},
    r"google/embeddinggemma-2[\w-]*": {
        "model_type": "embedding_gemma2",
        "text_config": {"embedding_dim": 768},
        "audio_config": {},
    },
}


def published_model_settings(name: str) -> dict[str, Any]:
    """Return the recipe settings under `model` for a published model of audio and text.

    name: Hub name or folder. The score, and the length of the segments into which clips are cut, depend on the model:
    CLAP: Cosines of the projected embeddings; segments of 10 s, whose mean represents a longer clip.
    PE-AV: Logits of clips; segments of 30 s.
    PE-A-Frame: Logits of frames, 25 per second.
    EmbeddingGemma 2: Cosines; segments of 30 s.
    Raises KitError for a model of another type, and for a model whose type is not known on this machine.
    """
    config = find_config(name)
    if problem := type_problem(name, config):
        raise KitError(problem)
    if config["model_type"] == "clap":
        return _clap_settings(name, int(config.get("projection_dim", 512)))
    if config["model_type"] == "embedding_gemma2":
        return _gemma_settings(name, int((config.get("text_config") or {}).get("embedding_dim", 768)))
    dim = int((config.get("text_config") or {}).get("hidden_size", 1024))
    return _pe_settings(name, dim, is_pe_a_frame(name, config))


def find_config(name: str) -> dict[str, Any]:
    """Return a published model's configuration: the content of config.json, or else a few built-in values.

    If config.json is not on this machine, the type and the embedding size of the model are looked up by its Hugging
    Face name. Raises KitError if the name is unknown, too.
    """
    if (config := config_of(name, "model")) is not None:
        return config
    if local_folder(name, "model") is not None:
        raise KitError(f"model {name} has no readable config.json; name a model of audio and text, such as {EXAMPLES}")
    facts = next((facts for pattern, facts in _NAMES.items() if re.fullmatch(pattern, name)), None)
    if facts is None:
        raise KitError(f"model {name} is neither a folder nor in the hub's cache; {how_to_fetch(name)}")
    return facts


def how_to_fetch(name: str) -> str:
    """Return advice for messages: how to get a model that is not on this machine."""
    return f"fetch it while online with lbar download {name}, or name a folder that contains the model"


def type_problem(name: str, config: dict[str, Any]) -> str | None:
    """Return an error message if a config.json does not describe a model of audio and text; None if it does."""
    found = config.get("model_type")
    if found in ("clap", "pe_audio", "pe_audio_video"):
        return None
    if found == "embedding_gemma2" and config.get("audio_config") is not None:
        return None
    known: list[str] = list(ROWS)
    missing = "text" if found in known and found != "embedding_gemma2" else "audio"
    return (
        f"model {name} (type {found}) has no {missing} encoder, so it cannot compare sounds with sentences; name a "
        f"model of audio and text, such as {EXAMPLES}, a run, an exported model, or a recipe without stages"
    )


def is_pe_a_frame(name: str, config: dict[str, Any]) -> bool:
    """Return whether a PE model is a PE-A-Frame, which embeds frames, by its config.json or its name."""
    return FRAME_MODEL in (config.get("architectures") or ()) or "pe-a-frame" in name.lower()


def _clap_settings(name: str, dim: int) -> dict[str, Any]:
    """Return the recipe settings of a CLAP model. dim: Size of its projected embeddings."""
    audio = {"kind": "hugging_face", "type": "clap_audio_model", **_frozen_audio_settings(name, CLAP_SECONDS)}
    text = {"kind": "clap", "model": name, "dim": dim, "trainable": False, "projection": "none"}
    return {"audio": audio, "text": text, "score": {"kind": "cosine"}}


def _gemma_settings(name: str, dim: int) -> dict[str, Any]:
    """Return the recipe settings of an EmbeddingGemma 2 model. dim: Size of its embeddings."""
    audio = {"kind": "hugging_face", "type": "embedding_gemma2", **_frozen_audio_settings(name, GEMMA_SECONDS)}
    text = {"kind": "embedding_gemma2", "model": name, "dim": dim, "trainable": False, "projection": "none"}
    return {"audio": audio, "text": text, "score": {"kind": "cosine"}}


def _pe_settings(name: str, dim: int, has_frames: bool) -> dict[str, Any]:
    """Return the recipe settings of a PE-AV model, or, if `has_frames`, of PE-A-Frame. dim: Size of its embeddings."""
    audio = {"kind": "hugging_face", "type": "pe_audio", **_frozen_audio_settings(name, PE_SECONDS)}
    if has_frames:
        audio |= {"kind": "hugging_face_frames", "segment_pooling": "mean"}
    text = {"kind": "pe_audio", "model": name, "dim": dim, "trainable": False, "projection": "none"}
    return {"audio": audio, "text": text, "score": {"kind": "frame_dot_products" if has_frames else "dot_product"}}


def _frozen_audio_settings(name: str, seconds: int) -> dict[str, Any]:
    """Return the settings of a frozen audio model on segments of `seconds` seconds, without a trained layer.

    Segments follow each other. In the mean of a clip's segments, each segment is weighted by its duration.
    """
    lengths = {"segment_seconds": seconds, "hop_seconds": seconds, "max_seconds": 30}
    return {"model": name, "trainable": False, **lengths, "segment_pooling": "seconds", "hidden": None, "head": "none"}
