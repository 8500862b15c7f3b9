"""Audio models of the Hugging Face hub, by transformers: AST, CLAP, and Perception Encoder (PE-AV, PE-A-Frame).

The model's own feature extractor gets a clip's samples without padding, and computes on the CPU. No code of the hub is
run. Deviations: CLAP models that combine crops of longer clips (`enable_fusion`) do not; clips are cut into segments.
"""

import contextlib
import io
import logging
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import transformers
from transformers.models.pe_audio.modeling_pe_audio import PeAudioContrastiveHead, PeAudioPreTrainedModel

from data_tools.classify.model_files import AUDIO_SETTINGS, fetch, weight_files
from data_tools.errors import DataError, KitError, first_line
from data_tools.files import read_json
from system.audio.base import Need, file_sha256
from system.audio.network import AudioNetwork, Layers, frames_within, groups_of_equal_length
from system.compute.device import on_device

WHAT = "audio model"
GET_AGAIN = "download or save the model again"


class HubNetwork(AudioNetwork):
    """Settings of a hub model. A subclass names its classes in transformers."""

    weights: str  # hub name or folder of the model

    types: ClassVar[tuple[str, ...]]  # model_type in its config.json
    extractor: ClassVar[str]

    @property
    def config(self) -> dict[str, Any]:
        """The content of the model's config.json; empty if it is not on this machine."""
        try:
            return dict(read_json(self.folder / "config.json")) if self.folder else {}
        except (OSError, DataError):
            return {}

    @property
    def dim_known(self) -> bool:
        return bool(self.config)

    def needs(self) -> list[Need]:
        return [Need("weights", self.weights, model=WHAT)]

    def weight_files(self) -> dict[str, Path]:
        return {"weights": Path(self.weights)}

    @property
    def folder(self) -> Path | None:
        """The model's folder on this machine."""
        return self.needs()[0].folder()

    def require_files(self) -> None:
        super().require_files()
        self.require_type()

    def require_type(self) -> None:
        """Raise KitError for a model of another type."""
        try:
            found = read_json(fetch(self.weights, WHAT) / "config.json").get("model_type")
        except FileNotFoundError:
            raise KitError(f"{WHAT} {self.weights} has no config.json; name the folder of a model") from None
        if found not in self.types:
            said = f"its model_type is {found}, not {' or '.join(self.types)}; change kind"
            raise KitError(f"{WHAT} {self.weights}: {said}")

    def checksums(self) -> dict[str, str]:
        self.require_type()
        folder = fetch(self.weights, WHAT)
        files = [*(folder / name for name in AUDIO_SETTINGS), *weight_files(folder)]
        return {path.name: file_sha256(path) for path in files if path.is_file()}

    def layers(self) -> "HubLayers":
        self.require_type()
        return HubLayers(self, fetch(self.weights, WHAT))

    def load_into(self, layers: Layers) -> None:
        assert isinstance(layers, HubLayers)
        layers.load_folder(fetch(self.weights, WHAT))

    @property
    @abstractmethod
    def model_class(self) -> Any:
        """The class of the model in transformers."""

    def read_config(self, folder: Path) -> Any:
        return self.model_class.config_class.from_pretrained(folder, trust_remote_code=False)

    @abstractmethod
    def vectors_of(self, output: Any) -> torch.Tensor:
        """Return the vectors (S, D) in a model's output."""

    @abstractmethod
    def frames_of(self, output: Any, layers: "HubLayers", lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the frames (S, L, D) in a model's output, and how many begin within each clip."""


class Ast(HubNetwork):
    """AST: the pooled output of a segment; frames are means over frequency."""

    kind: Literal["ast"]

    rate: ClassVar[int] = 16_000
    frame_rate: ClassVar[float] = 10.1 / 1.024
    seconds: ClassVar[tuple[float, float]] = (0.1, 10.24)
    types: ClassVar[tuple[str, ...]] = ("audio-spectrogram-transformer",)
    extractor: ClassVar[str] = "ASTFeatureExtractor"

    @property
    def dim(self) -> int:
        return int(self.config.get("hidden_size", 768))

    @property
    def model_class(self) -> Any:
        return transformers.ASTModel

    def vectors_of(self, output: Any) -> torch.Tensor:
        return output.pooler_output

    def frames_of(self, output: Any, layers: "HubLayers", lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        config = layers.config
        rows = (config.num_mel_bins - config.patch_size) // config.frequency_stride + 1
        frames = output.last_hidden_state[:, 2:].unflatten(1, (rows, -1)).mean(1)
        return frames, frames_within(lengths, config.max_length * self.rate // 100, frames.shape[1])


class ClapAudio(HubNetwork):
    """CLAP: the projection of a segment; frames are means over frequency before it."""

    kind: Literal["clap"]

    rate: ClassVar[int] = 48_000
    frame_rate: ClassVar[float] = 3.2
    seconds: ClassVar[tuple[float, float]] = (0.1, 10.0)
    mixes_batch: ClassVar[bool] = True
    trained_on_captions: ClassVar[bool] = True
    types: ClassVar[tuple[str, ...]] = ("clap", "clap_audio_model")
    extractor: ClassVar[str] = "ClapFeatureExtractor"

    @property
    def dim(self) -> int:
        config = self.config.get("audio_config") or self.config
        return int(config.get("projection_dim", 512) if self.output == "clip" else config.get("hidden_size", 768))

    @property
    def model_class(self) -> Any:
        return transformers.ClapAudioModelWithProjection

    def vectors_of(self, output: Any) -> torch.Tensor:
        return output.audio_embeds

    def frames_of(self, output: Any, layers: "HubLayers", lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frames = output.last_hidden_state.mean(2).transpose(1, 2)
        return frames, frames_within(lengths, layers.extractor.nb_max_samples, frames.shape[1])


class PeAudio(HubNetwork):
    """Perception Encoder: embeddings of segments (PE-AV) or of frames of 0.04 s (PE-A-Frame), beside those of texts."""

    kind: Literal["pe_audio"]

    rate: ClassVar[int] = 48_000
    frame_rate: ClassVar[float] = 25.0
    seconds: ClassVar[tuple[float, float]] = (0.1, 600.0)
    mixes_batch: ClassVar[bool] = True  # by padding
    trained_on_captions: ClassVar[bool] = True
    types: ClassVar[tuple[str, ...]] = ("pe_audio", "pe_audio_video")
    extractor: ClassVar[str] = "PeAudioFeatureExtractor"

    @property
    def dim(self) -> int:
        return int((self.config.get("text_config") or {}).get("hidden_size", 1024))

    @property
    def model_class(self) -> Any:
        return PeSounds

    def read_config(self, folder: Path) -> Any:
        return read_pe_config(folder)

    def vectors_of(self, output: Any) -> torch.Tensor:
        return output.pooler_output

    def frames_of(self, output: Any, layers: "HubLayers", lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hop, frames = layers.extractor.hop_length, output.last_hidden_state
        return frames, ((lengths + hop - 1) // hop).clamp(1, frames.shape[1])


class HubLayers(Layers):
    """The feature extractor and the model of a folder."""

    def __init__(self, settings: HubNetwork, folder: Path) -> None:
        super().__init__()
        self.settings = settings
        with reading(folder, "settings"):
            extractor = getattr(transformers, settings.extractor)
            self.extractor = extractor.from_pretrained(folder, trust_remote_code=False)
            self.config = settings.read_config(folder)
            self.model = settings.model_class(self.config)
        if self.extractor.sampling_rate != settings.rate:
            raise KitError(f"{WHAT} {folder}: its feature extractor has another sample rate; {GET_AGAIN}")

    def load_folder(self, folder: Path) -> None:
        """Load the published weights of a folder."""
        with reading(folder, "weights"):
            whole, said = self.settings.model_class.from_pretrained(
                folder, config=self.config, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
            )
        if missing := [*said["missing_keys"], *(key for key, *_ in said.get("mismatched_keys", ()))]:
            raise KitError(f"{WHAT} {folder} lacks {len(missing)} tensors, such as {missing[0]}; {GET_AGAIN}")
        self.model.load_state_dict(whole.state_dict())

    def save_assets(self, folder: Path) -> None:
        """Save the settings of model and feature extractor, to build the model again from them."""
        self.config.save_pretrained(folder / "audio")
        self.extractor.save_pretrained(folder / "audio")

    def compute(self, waves: torch.Tensor, lengths: torch.Tensor) -> Any:
        """Compute the model's output for segments."""
        shortest = round(self.settings.seconds[0] * self.settings.rate)
        pairs = zip(waves.float().cpu().numpy(), lengths.tolist(), strict=True)
        samples = [np.pad(wave[:length], (0, max(0, shortest - length))) for wave, length in pairs]
        inputs = self.extractor(samples, sampling_rate=self.settings.rate, return_tensors="pt")
        if "is_longer" in inputs:  # if no segment is, the extractor draws one
            inputs["is_longer"] = torch.zeros_like(inputs["is_longer"])
        return self.model(**{name: on_device(value, waves.device) for name, value in inputs.items()})

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.settings.vectors_of(self.compute(waves, lengths))
        groups = list(groups_of_equal_length(lengths.tolist(), waves.numel()))  # without padding
        found = torch.cat([self.settings.vectors_of(self.compute(waves[rows], lengths[rows])) for rows in groups])
        return found[torch.tensor([row for rows in groups for row in rows]).argsort().to(found.device)]

    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute frames; the segments of one call must have equal lengths in evaluation."""
        shortest = round(self.settings.seconds[0] * self.settings.rate)
        return self.settings.frames_of(self.compute(waves, lengths), self, lengths.clamp(min=shortest))


@contextlib.contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Read files of a model: a damaged one raises KitError, and transformers is silent."""
    with silence_transformers():
        try:
            yield
        except Exception as error:  # the library raises many kinds
            raise KitError(f"{WHAT} {folder}: its {what} cannot be read ({first_line(error)}); {GET_AGAIN}") from error


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Silence progress bars and reports of the library transformers."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def read_pe_config(folder: Path) -> transformers.PeAudioConfig:
    """Read the configuration of a PE model's audio and text encoders.

    Deviation: PeAudioModel.from_pretrained ignores the text settings of a checkpoint of type pe_audio_video.
    """
    kind = read_json(folder / "config.json").get("model_type")
    whole = transformers.PeAudioVideoConfig if kind == "pe_audio_video" else transformers.PeAudioConfig
    found = whole.from_pretrained(folder, trust_remote_code=False)
    config = found.audio_config if kind == "pe_audio_video" else found
    return transformers.PeAudioConfig(text_config=config.text_config, audio_config=config.audio_config)


class PeSounds(PeAudioPreTrainedModel):  # type: ignore[misc]
    """The audio encoder of PeAudioModel (vectors) and PeAudioFrameLevelModel (frames), without their text encoder."""

    config: transformers.PeAudioConfig
    base_model_prefix = "audio_model"
    main_input_name = "input_values"

    def __init__(self, config: transformers.PeAudioConfig) -> None:
        super().__init__(config)
        self.audio_encoder = transformers.PeAudioEncoder(config.audio_config)
        self.audio_head = PeAudioContrastiveHead(config.audio_config.hidden_size, config.text_config.hidden_size)
        self.post_init()

    def forward(self, input_values: torch.Tensor, padding_mask: torch.Tensor | None = None) -> Any:
        output = self.audio_encoder(input_values=input_values, padding_mask=padding_mask, return_dict=True)
        output.last_hidden_state = self.audio_head(output.last_hidden_state)
        output.pooler_output = self.audio_head(output.pooler_output)
        return output
