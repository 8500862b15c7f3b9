"""Audio models of the hub: settings.

Audio models of the hub on waveforms, trained or frozen, followed by an embedding layer. Never imports torch.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from data_tools.classify.model_files import AUDIO_SETTINGS, config_of, fetch, folder_problem, local_folder, weight_files
from data_tools.errors import DataError
from data_tools.files import read_json
from system.experts.base import file_sha256
from system.models.audio.segmented import Network, Segmented
from system.models.base import Facts, hub_facts
from system.networks.hugging_face_types import ROWS, Type, type_problem

log = logging.getLogger(__name__)

UNKNOWN_DIM = 768  # assumed D of a model whose configuration is not known


class HuggingFace(Segmented):
    """An audio model of the library transformers on segments of waveforms. The vectors of a clip's segments are pooled,
    and mapped to the size of text embeddings by a linear layer.

    The model's own feature extractor gets a clip's samples without padding. The vector of a segment is the projection
    (CLAP), the pooled output (AST, PE, EmbeddingGemma 2), or the mean of the tokens (other models). No code of the hub
    is run.
    """

    kind: Literal["hugging_face"]
    model: str  # hub name or folder
    type: Type  # model_type of its config.json; for a complete CLAP model: clap_audio_model

    file_settings: ClassVar[frozenset[str]] = frozenset({"model"})

    @property
    def sample_rate(self) -> int:
        """Sample rate of the network's input, in Hz."""
        return ROWS[self.type].rate

    @property
    def depends_on_batch(self) -> bool:
        """Whether an embedding depends on the other clips: through batch norms, or padding to the longest clip."""
        return self.trainable and (self.type == "clap_audio_model" or ROWS[self.type].max_seconds is None)

    @property
    def batch_property(self) -> str | None:
        """Description of a property of a batch, such as padding, that changes embeddings in training; None if none."""
        fills = self.trainable and ROWS[self.type].max_seconds is None
        return "the length to which clips are padded" if fills else None

    @property
    def trained_on_captions(self) -> bool:
        """Whether the published weights were trained on captioned clips, as those of CLAP were."""
        return self.type in ("clap_audio_model", "pe_audio", "embedding_gemma2")

    @property
    def has_weights(self) -> bool:
        """Whether the network has published weights."""
        return True

    @property
    def vector_dim(self) -> int:
        """Number of values in the vector that the network returns per segment."""
        config = self._config() or {}
        if self.type in ("pe_audio", "embedding_gemma2"):
            config = config.get("text_config", config)
        if self.type == "embedding_gemma2":
            return int(config.get("embedding_dim", UNKNOWN_DIM))
        keys = (
            ("projection_dim",) if self.type == "clap_audio_model" else ("d_model", "output_hidden_size", "hidden_size")
        )
        found = [config[key] for key in keys if isinstance(config.get(key), int)]
        return found[0] if found else UNKNOWN_DIM

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return ROWS[self.type].limits

    @property
    def title(self) -> str:
        """Name of the network, for messages."""
        return self.model

    def _config(self) -> dict[str, Any] | None:
        """Return the configuration of the model's audio part; None if it is not known."""
        config = config_of(self.model, "audio model")
        return config and dict(config.get("audio_config", config)) if self.type == "clap_audio_model" else config

    @property
    def size_known(self) -> bool:
        """Whether the size of the network's vectors is known."""
        return self._config() is not None

    def pretrained(self) -> Path | None:
        """Return the folder with the model's weights, never None; download it if it is missing."""
        return fetch(self.model, "audio model")

    def build_network(self) -> Network:
        """Build the network from the model's folder, which is downloaded if missing; its weights are untrained."""
        from system.networks.hugging_face import build_from_folder

        network = build_from_folder(self.type, fetch(self.model, "audio model"))
        if network.fuses_crops:
            log.warning(
                "audio model %s was published to combine crops of clips over %g s (enable_fusion); the kit instead "
                "cuts such clips into segments and averages them, as for other CLAP models", self.model, self.limits[1],
            )  # fmt: skip
        return network

    def file_checksums(self) -> dict[str, str]:
        """Return a dict from file name to sha256: setting files and, if the model is frozen, weight files."""
        folder = fetch(self.model, "audio model")
        settings = [folder / name for name in AUDIO_SETTINGS]
        paths = [*settings, *([] if self.trainable else weight_files(folder))]
        return {path.name: file_sha256(path) for path in paths if path.is_file()}

    def missing_files(self) -> Iterator[tuple[str, str]]:
        """Yield "model" and an error message if the model is damaged, unsuitable, or missing and not downloadable.

        Causes are a failed download, a folder without a complete model, and a config.json of another type than the
        setting `type`.
        """
        try:
            folder = fetch(self.model, "audio model")
            problem = type_problem(read_json(folder / "config.json"), self.type)
            problem = problem or folder_problem(folder)
        except FileNotFoundError:
            yield (
                "model",
                f"audio model {self.model} has no config.json in its folder; name the folder of a Hugging Face model",
            )
        except DataError as error:
            yield "model", str(error)
        else:
            if problem:
                yield "model", f"audio model {self.model}: {problem}"

    @property
    def hub_model(self) -> str:
        """Name or folder of the Hugging Face model."""
        return self.model

    def plan_facts(self) -> Facts:
        """Return a description of the encoder for the verb `check`, and a list of its missing files."""
        try:
            folder = local_folder(self.model, "audio model")
        except DataError:
            folder = None
        fact = f"{self.model} ({self.type}), {'trained' if self.trainable else 'frozen'}"
        return hub_facts(f"audio model {self.model}", fact, folder)
