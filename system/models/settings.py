"""Settings of a model.

The settings of a model in a recipe: its encoders of clips and captions, and its score. Never imports torch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationError, model_validator

from data_tools.embeddings import Kind, read_vectors
from data_tools.errors import KitError
from data_tools.settings import Strict, mistakes
from system.models.audio import Audio, AudioEmbeddings
from system.models.base import EncoderKind
from system.models.published import published_model_settings
from system.models.score import Score
from system.models.text import Text, TextEmbeddings

Files = Annotated[list[str], Field(min_length=1)]
OF_EMBEDDINGS = (AudioEmbeddings, TextEmbeddings)  # kinds that read what another program computed


class Model(Strict):
    audio: Audio  # the encoder of clips
    text: Text  # the encoder of captions
    score: Score  # score of an embedded clip and an embedded caption
    learned_temperature: Annotated[float, Field(gt=0, le=1)] | None = None  # start value of a learned temperature

    @model_validator(mode="after")
    def _require_matching_parts(self) -> "Model":
        """Return the settings; raise an error unless the two encoders and the score can be combined."""
        if error := mistakes(self._setting_errors()):
            raise error
        return self

    def _setting_errors(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the key and an error message of each encoder setting that does not fit the score.

        A score needs either series of embeddings, or one embedding per clip and text.
        """
        score = self.score
        wanted = {"audio": score.of_series, "text": score.of_words}
        for name, part, series in self._encoders:
            if wanted[name] and not part.embeds_series:
                yield (
                    (name,),
                    f"score {score.kind} needs an encoder that returns {series}; set a kind of encoder that has the "
                    f"setting `embedding: {series}`",
                )
            if part.embeds_series and not wanted[name]:
                yield (name, "embedding"), f"score {score.kind} needs one embedding, not {series}; set embedding: mean"
        scores = self.text.frozen_scores
        if scores and not self.text.is_trained and score.kind not in scores:
            fitting = " or ".join(scores)
            yield ("score",), f"the frozen text encoder {self.text.kind} needs score {fitting}, not {score.kind}"
        for key, text in self.audio.setting_errors(self.text.dim):
            yield ("audio", key), text

    @property
    def _encoders(self) -> list[tuple[str, EncoderKind, str]]:
        """(name, settings, parts) per encoder. parts: Items that a series of embeddings has, "frames" or "words"."""
        return [("audio", self.audio, "frames"), ("text", self.text, "words")]

    @property
    def embeds_in_chunks(self) -> bool:
        """Whether a training batch may be embedded in chunks with the same result.

        Gradient caching (`grad_cache_chunk`) requires this.
        """
        return not any(part.depends_on_batch for _, part, _ in self._encoders)

    @property
    def batch_properties(self) -> list[str]:
        """Properties of the whole batch that change embeddings, such as "the length to which clips are padded".

        With several processes, each process only uses the properties of the chunks that it embeds. Therefore, the
        trained model differs from that of one process.
        """
        return [said for _, part, _ in self._encoders if (said := part.batch_property)]

    @property
    def trains(self) -> dict[str, bool]:
        """Dict from the name of each part of the model to whether the part has trainable parameters.

        The parts are those of RetrievalModel.parts.
        """
        parts = self.audio.trained_parts
        return {"audio": any(parts.values()) or not parts, **parts, "text": self.text.is_trained}

    @property
    def first_unpublished_encoder(self) -> str | None:
        """Name of the first encoder with layers without published weights; None if all layers have published weights.

        Layers without published weights are useless before training.
        """
        return next((name for name, part, _ in self._encoders if not part.is_published), None)

    @property
    def embedding_files(self) -> dict[str, Path]:
        """Dict from recipe key, such as model.text.files.0, to path, for embedding files made by other programs."""
        given = {name: part.files for name, part, _ in self._encoders if isinstance(part, OF_EMBEDDINGS)}
        return {f"model.{name}.files.{i}": Path(one) for name, files in given.items() for i, one in enumerate(files)}

    def missing_files(self) -> list[str]:
        """Return an error message for each missing weight file of the encoders.

        Missing files of experts are reported by the experts.
        """
        return [
            f"{text}, or change the setting with --set model.{name}.{key}=..."
            for name, part, _ in self._encoders
            for key, text in part.missing_files()
        ]


class PublishedModel(Strict):
    """A published model of audio and text: CLAP, PE-AV, PE-A-Frame or EmbeddingGemma 2. This kind is short for all
    settings of the model's two encoders and its score; runs store these settings. The model needs no training.
    """

    kind: Literal["published"]
    model: str  # hub name or folder


class EmbeddingsModel(Strict):
    """Embeddings that another program computed, compared by their cosine. This kind is short for all settings of two
    encoders of kind `embeddings`; runs store these settings. No training and no audio are needed.
    """

    kind: Literal["embeddings"]
    audio: str | Files  # file or files with the embeddings of clips (.npz)
    text: str | Files  # file or files with the embeddings of captions and queries
    model: str = "another model"  # that computed them, as declared in a package
    model_parameters: Annotated[int, Field(ge=0)] = 0  # of that model; 0: not counted


def _settings_tag(values: object) -> str:
    """Return "published", "embeddings" or "model": the class that reads the recipe's settings under `model`."""
    kind = values.get("kind") if isinstance(values, dict) else None
    return kind if kind in ("published", "embeddings") else "model"


def _expand_settings(model: Model | PublishedModel | EmbeddingsModel) -> Model:
    """Convert any of the three forms of model settings to the full settings of encoders and score."""
    if isinstance(model, Model):
        return model
    settings = _expand_published(model) if isinstance(model, PublishedModel) else _expand_embeddings(model)
    return Model.model_validate(settings)


def _expand_published(model: PublishedModel) -> dict[str, Any]:
    """Return the settings of encoders and score of a published model. Raises ValidationError if it is unsuitable."""
    try:
        return published_model_settings(model.model)
    except KitError as error:
        raise cast(ValidationError, mistakes([(("model",), str(error))])) from error


def _expand_embeddings(model: EmbeddingsModel) -> dict[str, Any]:
    """Return the settings of both encoders and the score, for a model that reads its embeddings from files.

    Raises ValidationError for files that cannot be read.
    """
    kinds: dict[str, Kind] = {"audio": "clip", "text": "caption"}
    settings: dict[str, Any] = {"score": {"kind": "cosine"}}
    for name, kind in kinds.items():
        given = getattr(model, name)
        files = [given] if isinstance(given, str) else given
        try:
            dim = read_vectors(files, kind).dim
        except KitError as error:
            raise cast(ValidationError, mistakes([((name,), str(error))])) from error
        settings[name] = {"kind": "embeddings", "files": files, "dim": dim, "model": model.model}
    settings["audio"]["model_parameters"] = model.model_parameters
    return settings


if TYPE_CHECKING:
    RecipeModel = Model
else:
    RecipeModel = Annotated[
        Annotated[Model, Tag("model")]
        | Annotated[PublishedModel, Tag("published")]
        | Annotated[EmbeddingsModel, Tag("embeddings")],
        Discriminator(_settings_tag),
        AfterValidator(_expand_settings),
    ]
