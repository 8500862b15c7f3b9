"""Audio models of the Hugging Face hub, by transformers.

They are AST, CLAP, and Perception Encoder (PE-AV, PE-A-Frame). The model's own feature extractor gets a clip's samples
without padding, and computes on the CPU. No code of the hub is run. Deviations: CLAP models that combine crops of
longer clips (`enable_fusion`) do not; clips are cut into segments.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers.models.pe_audio.modeling_pe_audio import PeAudioContrastiveHead, PeAudioPreTrainedModel

from data_tools.classify.model_files import AUDIO_SETTINGS, config_of, fetch, weight_files
from data_tools.errors import KitError, first_line
from system.audio import Need, file_sha256
from system.audio.network import AudioNetwork, Layers, frames_within
from system.devices import on_device

# S segments, L frames of D values

WHAT = "audio model"


class PeSounds(PeAudioPreTrainedModel):  # type: ignore[misc]
    """The audio side of a Perception Encoder.

    It has the vectors of PeAudioModel and the frames of PeAudioFrameLevelModel, without the text side of both.
    """

    def __init__(self, config: transformers.PeAudioConfig) -> None:
        super().__init__(config)
        self.audio_encoder = transformers.PeAudioEncoder(config.audio_config)
        self.audio_head = PeAudioContrastiveHead(config.audio_config.hidden_size, config.text_config.hidden_size)
        self.post_init()

    def forward(self, input_values: Tensor, padding_mask: Tensor | None = None) -> Any:
        output = self.audio_encoder(input_values=input_values, padding_mask=padding_mask, return_dict=True)
        output.last_hidden_state = self.audio_head(output.last_hidden_state)
        output.pooler_output = self.audio_head(output.pooler_output)
        return output


class PeTexts(PeAudioPreTrainedModel):  # type: ignore[misc]
    """The text side of a Perception Encoder.

    Its embeddings (N, D) are in one space with those of sounds; it also has the scale and the bias for logits. The
    embedding is computed from the tensor at token 0 that enters the final norm of the text model, as in the original
    code and in transformers 5.0. A hook leaves the norm out, since the `hidden_states` of transformers 5.1 to 5.24 only
    have the tensor after it.

    Source: facebookresearch/perception_models, core/audio_visual_encoder.
    """

    def __init__(self, config: transformers.PeAudioConfig) -> None:
        super().__init__(config)
        self.text_model = transformers.AutoModel.from_config(config.text_config)
        self.text_audio_head = PeAudioContrastiveHead(config.text_config.hidden_size, config.text_config.hidden_size)
        self.text_audio_logit_scale = nn.Parameter(torch.zeros(1))
        self.text_audio_logit_bias = nn.Parameter(torch.zeros(1))
        self.post_init()
        self.text_model.final_norm.register_forward_hook(lambda _, inputs, output: inputs[0])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        states = self.text_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.text_audio_head(states[:, 0])


class HubNetwork(AudioNetwork):
    """Settings of a hub model.

    A subclass names its classes in transformers.
    """

    weights: str  # hub name or folder of the model

    types: ClassVar[tuple[str, ...]]  # model_type in its config.json
    extractor: ClassVar[Any]
    model: ClassVar[Any]
    vector: ClassVar = "pooler_output"  # name of the vectors (S, D) in the model's output

    @property
    def config(self) -> dict[str, Any]:
        """Content of the model's config.json; empty without one."""
        return config_of(self.weights, WHAT) or {}

    def needs(self) -> list[Need]:
        return [Need("weights", self.weights, model=WHAT)]

    def require_files(self) -> None:
        super().require_files()
        require_type(self.weights, self.types, WHAT)

    def checksums(self) -> dict[str, str]:
        folder = require_type(self.weights, self.types, WHAT)
        files = [*(folder / name for name in AUDIO_SETTINGS), *weight_files(folder)]
        return {path.name: file_sha256(path) for path in files if path.is_file()}

    def layers(self) -> "HubLayers":
        return HubLayers(self, require_type(self.weights, self.types, WHAT))

    def load_into(self, layers: Layers) -> None:
        assert isinstance(layers, HubLayers)
        found = load_model(self.model, fetch(self.weights, WHAT), config=layers.config)
        layers.model.load_state_dict(found.state_dict())

    def read_config(self, folder: Path) -> Any:
        return self.model.config_class.from_pretrained(folder, trust_remote_code=False)

    @abstractmethod
    def series(self, states: Tensor, layers: "HubLayers") -> tuple[Tensor, int]:
        """Return the frames in a model's last states.

        Returns:
            The frames (S, L, D), and the samples that they cover.
        """


class Ast(HubNetwork):
    """AST: the pooled output of a segment, or its frames.

    Frames are means over frequency.
    """

    kind: Literal["ast"]

    rate: ClassVar = 16_000
    frame_rate: ClassVar = 10.1 / 1.024
    seconds: ClassVar = (0.1, 10.24)
    types: ClassVar = ("audio-spectrogram-transformer",)
    extractor: ClassVar = transformers.ASTFeatureExtractor
    model: ClassVar = transformers.ASTModel

    @property
    def dim(self) -> int:
        return int(self.config.get("hidden_size", 768))

    def series(self, states: Tensor, layers: "HubLayers") -> tuple[Tensor, int]:
        config = layers.config
        rows = (config.num_mel_bins - config.patch_size) // config.frequency_stride + 1
        return states[:, 2:].unflatten(1, (rows, -1)).mean(1), config.max_length * self.rate // 100


class ClapAudio(HubNetwork):
    """CLAP: the projection of a segment, or its frames.

    Frames are means over frequency before the projection.
    """

    kind: Literal["clap"]

    rate: ClassVar = 48_000
    frame_rate: ClassVar = 3.2
    seconds: ClassVar = (0.1, 10.0)
    mixes_batch: ClassVar = True
    trained_on_captions: ClassVar = True
    types: ClassVar = ("clap", "clap_audio_model")
    extractor: ClassVar = transformers.ClapFeatureExtractor
    model: ClassVar = transformers.ClapAudioModelWithProjection
    vector: ClassVar = "audio_embeds"

    @property
    def dim(self) -> int:
        config = self.config.get("audio_config") or self.config
        return int(config.get("projection_dim", 512) if self.output == "clip" else config.get("hidden_size", 768))

    def series(self, states: Tensor, layers: "HubLayers") -> tuple[Tensor, int]:
        return states.mean(2).transpose(1, 2), layers.extractor.nb_max_samples


class PeAudio(HubNetwork):
    """Perception Encoder: embeddings of segments (PE-AV) or frames (PE-A-Frame).

    A frame lasts 0.04 s. The embeddings are in one space with those of texts.
    """

    kind: Literal["pe_audio"]

    rate: ClassVar = 48_000
    frame_rate: ClassVar = 25.0
    seconds: ClassVar = (0.1, 600.0)
    mixes_batch: ClassVar = True  # by padding
    trained_on_captions: ClassVar = True
    types: ClassVar = ("pe_audio", "pe_audio_video")
    extractor: ClassVar = transformers.PeAudioFeatureExtractor
    model: ClassVar = PeSounds

    @property
    def dim(self) -> int:
        return int((self.config.get("text_config") or {}).get("hidden_size", 1024))

    def read_config(self, folder: Path) -> Any:
        return read_pe_config(folder)

    def series(self, states: Tensor, layers: "HubLayers") -> tuple[Tensor, int]:
        return states, states.shape[1] * layers.extractor.hop_length


class HubLayers(Layers):
    """The feature extractor and the model of a folder."""

    pads_by_itself = True

    def __init__(self, settings: HubNetwork, folder: Path) -> None:
        super().__init__()
        self.settings, self.shortest = settings, round(settings.seconds[0] * settings.rate)
        with reading(folder):
            self.extractor = settings.extractor.from_pretrained(folder, trust_remote_code=False)
            self.config = settings.read_config(folder)
            self.model = settings.model(self.config)
        if self.extractor.sampling_rate != settings.rate:
            raise KitError(f"{WHAT} {folder}: its feature extractor has another sample rate; download it again")

    def save_assets(self, folder: Path) -> None:
        """Save the settings that build the model again."""
        self.config.save_pretrained(folder / "audio")
        self.extractor.save_pretrained(folder / "audio")

    def compute(self, waves: Tensor, lengths: Tensor) -> Any:
        """Compute the model's output for segments."""
        pairs = zip(waves.float().cpu().numpy(), lengths.tolist(), strict=True)
        samples = [np.pad(wave[:length], (0, max(0, self.shortest - length))) for wave, length in pairs]
        inputs = self.extractor(samples, sampling_rate=self.settings.rate, return_tensors="pt")
        if "is_longer" in inputs:  # if no segment is, the extractor draws one
            inputs["is_longer"] = torch.zeros_like(inputs["is_longer"])
        return self.model(**{name: on_device(value, waves.device) for name, value in inputs.items()})

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        return self.compute(waves, lengths)[self.settings.vector]

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        frames, size = self.settings.series(self.compute(waves, lengths).last_hidden_state, self)
        return frames, frames_within(lengths.clamp(min=self.shortest), size, frames.shape[1])


def require_type(name: str, types: tuple[str, ...], what: str) -> Path:
    """Return the folder of a model of the given types.

    Raises:
        KitError: The model is of another type.
    """
    folder = fetch(name, what)
    if (found := (config_of(name, what) or {}).get("model_type")) not in types:
        raise KitError(f"{what} {name}: its model_type is {found}, not {' or '.join(types)}; change kind")
    return folder


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn a damaged model into KitError, and silence transformers."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    except Exception as error:  # the library raises many kinds
        raise KitError(f"{folder}: the model cannot be read ({first_line(error)}); download it again") from error


def load_model(model: Any, folder: Path, **settings: Any) -> Any:
    """Load a model of transformers in float32 on the CPU.

    Raises:
        KitError: Weights are missing or damaged.
    """
    settings |= {"dtype": torch.float32, "output_loading_info": True}
    with reading(folder):
        found, said = model.from_pretrained(folder, trust_remote_code=False, **settings)
    if missing := [*said["missing_keys"], *(key for key, *_ in said.get("mismatched_keys", ()))]:
        raise KitError(f"{folder}: the model lacks {len(missing)} tensors, such as {missing[0]}; download it again")
    return found


def read_pe_config(folder: Path) -> transformers.PeAudioConfig:
    """Read the configuration of a PE model's two encoders.

    PeAudioModel.from_pretrained would ignore the text settings of a checkpoint of type pe_audio_video.
    """
    found = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    config = found.audio_config if found.model_type == "pe_audio_video" else found
    return transformers.PeAudioConfig(text_config=config.text_config, audio_config=config.audio_config)
