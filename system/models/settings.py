"""Settings of a model: two encoders and a score.

Published models embed sounds and sentences in one space: CLAP, PE-AV and PE-A-Frame.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from data_tools.arrays import Kind, read_vectors
from data_tools.classify.model_files import config_of, local_folder
from data_tools.errors import KitError
from data_tools.settings import Strict
from system.audio import Needing
from system.models import EncoderKind
from system.models.audio import AudioSettings
from system.models.scores import ScoreSettings
from system.models.text import TextSettings

FRAME_MODEL = "PeAudioFrameLevelModel"
EXAMPLES = "laion/clap-htsat-unfused (CLAP), facebook/pe-av-small (PE-AV) or facebook/pe-a-frame-small (PE-A-Frame)"
# config.json of names on the hub, until it is on this machine
_NAMES: dict[str, dict[str, Any]] = {
    r"laion/(clap-htsat|larger_clap)[\w-]*": {"model_type": "clap"},
    r"facebook/pe-av-[\w-]+": {"model_type": "pe_audio_video"},
    r"facebook/pe-a-frame-[\w-]+": {"model_type": "pe_audio", "architectures": [FRAME_MODEL]},
}


Files = Annotated[list[str], Field(min_length=1)]


class Model(Strict):
    audio: AudioSettings  # the encoder of clips
    text: TextSettings  # the encoder of captions
    score: ScoreSettings  # score of an embedded clip and an embedded caption

    @property
    def encoders(self) -> dict[str, EncoderKind]:
        """Settings of both encoders, by key."""
        return {"audio": self.audio, "text": self.text}

    @property
    def embeds_in_chunks(self) -> bool:
        """Whether embedding a batch in chunks changes nothing.

        The setting `grad_cache_chunk` needs this.
        """
        return not any(part.depends_on_batch for part in self.encoders.values())

    @property
    def trains(self) -> dict[str, bool]:
        """Whether each part of the model has trainable parameters."""
        parts = self.audio.trained_parts
        return {"audio": any(parts.values()) or not parts, **parts, "text": self.text.is_trained}

    @property
    def first_unpublished_encoder(self) -> str | None:
        """Name of an encoder that is useless before training."""
        return next((name for name, part in self.encoders.items() if not part.is_published), None)

    @property
    def embedding_files(self) -> dict[str, Path]:
        """Paths of given embeddings, by recipe key, such as model.text.files.0."""
        given = {name: getattr(one, "files", ()) for name, one in self.encoders.items()}
        return {f"model.{name}.files.{i}": Path(one) for name, files in given.items() for i, one in enumerate(files)}

    @property
    def parts(self) -> dict[str, Needing]:
        """Settings that may name published files, by key."""
        experts = {f"audio.experts.{name}": one for name, one in self.audio.experts.items()}
        return {**experts, **self.encoders}

    def require_files(self) -> None:
        """Raise KitError for a missing or damaged published file.

        The message begins with its key.
        """
        for key, part in self.parts.items():
            try:
                part.require_files()
            except KitError as error:
                raise KitError(f"model.{key}: {error}") from error


class PublishedModel(Strict):
    """A published model, which needs no training.

    It is a CLAP, PE-AV or PE-A-Frame. This kind is short for the settings of its two encoders and its score; runs store
    these settings.
    """

    kind: Literal["published"]
    model: str  # hub name or folder

    def expand(self) -> dict[str, Any]:
        """Return the settings of encoders and score."""
        return published_model_settings(self.model)


class EmbeddingsModel(Strict):
    """Embeddings that another program computed, compared by their cosine.

    This kind is short for the settings of two encoders of kind `embeddings`; runs store these settings. No training and
    no audio are needed.
    """

    kind: Literal["embeddings"]
    audio: str | Files  # file or files with the embeddings of clips (.npz)
    text: str | Files  # file or files with the embeddings of captions and queries
    model: str = "another model"  # that computed them, as declared in a package
    model_parameters: Annotated[int, Field(ge=0)] = 0  # of that model; 0: not counted

    def expand(self) -> dict[str, Any]:
        """Return the settings of encoders and score."""

        def encoder(given: str | list[str], kind: Kind) -> dict[str, Any]:
            files = [given] if isinstance(given, str) else given
            return {"kind": "embeddings", "files": files, "dim": read_vectors(files, kind).dim, "model": self.model}

        audio = encoder(self.audio, "clip") | {"model_parameters": self.model_parameters}
        return {"audio": audio, "text": encoder(self.text, "caption"), "score": {"kind": "cosine"}}


def _read(value: Any) -> Model:
    """Read a model's settings, or one of their short forms."""
    short: dict[str, Any] = {"published": PublishedModel, "embeddings": EmbeddingsModel}
    if isinstance(value, dict) and (form := short.get(str(value.get("kind")))):
        value = form.model_validate(value).expand()
    return Model.model_validate(value)


if TYPE_CHECKING:
    RecipeModel = Model
else:
    RecipeModel = Annotated[Model | PublishedModel | EmbeddingsModel, BeforeValidator(_read)]


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
