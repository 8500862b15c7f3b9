"""Audio models of the hub.

Imports torch; transformers only when a model is built.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from data_tools.classify.model_files import AUDIO_SETTINGS
from data_tools.errors import KitError, first_line
from data_tools.files import read_json
from system.compute.device import on_device
from system.networks.hugging_face_types import ROWS, SHORTEST, Type, type_problem
from system.networks.layers import pooled_over_time
from system.networks.segment import SegmentNetwork, count_clip_frames, group_by_length

GET_AGAIN = "download or save the model again"
PARTS = ("pe_audio", "embedding_gemma2")  # types whose models are used in part

# S segments, N samples, L frames, D values


class HubAudio(SegmentNetwork):
    """The feature extractor and the audio model of a folder. The extractor gets only the samples of the clip, without
    the padding of its segment, and pads them in its own way. Input under 0.1 s is first padded with silence. The
    extractor computes in numpy on the CPU.

    In evaluation, models without a fixed input length compute segments of equal length together, which avoids padding.
    Deviations from transformers: if no segment of a batch is long, CLAP's extractor marks a random segment as long
    (`fusion`), and this class marks none. Random masks in training (`apply_spec_augment`), which some configurations
    request, are off. No code from the hub is run.
    """

    def __init__(self, type: Type, extractor: Any, config: Any) -> None:
        """Build the model. extractor, config: Feature extractor and configuration, as objects of transformers."""
        super().__init__()
        self.row, self.model_type, self.extractor = ROWS[type], type, extractor
        config.apply_spec_augment = False
        whole: Any = _model_class(type)(config)
        self.model: Any = whole.get_encoder() if type == "whisper" else whole
        self.config = config
        self.tokenizer: Any = None  # of models that also read tokens around those of the audio
        self.dim = _vector_size(type, config)
        self.frame_dim = int(config.hidden_size) if type == "clap_audio_model" else self.dim

    @property
    def fuses_crops(self) -> bool:
        """Whether the published CLAP model combines crops of a longer clip; this class never combines crops."""
        return self.model_type == "clap_audio_model" and bool(self.config.enable_fusion)

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the vector of each segment with the Hugging Face model."""
        if self.training or (self.row.max_seconds is not None and not self.row.equal_lengths):
            return self._compute_vectors(waves, lengths)
        result = torch.empty(len(waves), self.dim, device=waves.device)
        for indices in group_by_length(lengths.tolist(), waves.shape[1] * len(waves)):
            result[indices] = self._compute_vectors(waves[indices], lengths[indices]).to(result.dtype)
        return result

    def _compute_vectors(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the vectors of segments in one batch."""
        inputs, output = self._run_model(waves, lengths)
        if self.row.vector != "mean":
            result: torch.Tensor = output[self.row.vector]
            return result
        return pooled_over_time(*self._tokens_and_counts(inputs, output, lengths), "mean")

    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the model's tokens as each segment's frames, and the number of its frames before the end of the clip.

        For AST and CLAP, a frame is the mean of the tokens of all frequencies at a time. The segments must have equal
        lengths, or be passed one by one.
        """
        return self._tokens_and_counts(*self._run_model(waves, lengths), lengths)

    def _run_model(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[dict[str, torch.Tensor], Any]:
        """Run the feature extractor and the model on segments; return the inputs and the outputs of the model."""
        shortest = round(SHORTEST * self.row.rate)
        values = waves.float().cpu().numpy()
        samples = [wave[:length] for wave, length in zip(values, lengths.tolist(), strict=True)]
        filled = [np.pad(wave, (0, max(0, shortest - len(wave)))) for wave in samples]
        padding = {"padding": True} if self.row.extractor == "Wav2Vec2FeatureExtractor" else {}  # the others always pad
        inputs = self.extractor(filled, sampling_rate=self.row.rate, return_tensors="pt", **padding)
        if "is_longer" in inputs:
            inputs["is_longer"] = torch.zeros_like(inputs["is_longer"])
        inputs = {name: on_device(value, waves.device) for name, value in inputs.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask")  # of the library's WavLM
            return inputs, self.model(**inputs)

    def _tokens_and_counts(
        self, inputs: dict[str, torch.Tensor], output: Any, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens (S, L, D) of segments, and for each segment the number of tokens that begin in the clip."""
        tokens: torch.Tensor = output.last_hidden_state
        lengths = lengths.clamp(min=round(SHORTEST * self.row.rate))
        if self.model_type == "audio-spectrogram-transformer":
            rows = (self.config.num_mel_bins - self.config.patch_size) // self.config.frequency_stride + 1
            tokens = tokens[:, 2:].unflatten(1, (rows, -1)).mean(1)
            return tokens, count_clip_frames(lengths, self.config.max_length * self.row.rate // 100, tokens.shape[1])
        if self.model_type == "clap_audio_model":
            tokens = tokens.mean(2).transpose(1, 2)
            return tokens, count_clip_frames(lengths, self.extractor.nb_max_samples, tokens.shape[1])
        if self.model_type == "whisper":
            return tokens, count_clip_frames(lengths, self.extractor.n_samples, tokens.shape[1])
        if self.model_type == "pe_audio":
            hop = self.extractor.hop_length
            return tokens, ((lengths + hop - 1) // hop).clamp(1, tokens.shape[1])
        if self.row.equal_lengths:
            return tokens, torch.full_like(lengths, tokens.shape[1]).to(tokens.device)
        if self.model_type == "wav2vec2-bert":
            lengths = self.model._get_feat_extract_output_lengths(inputs["attention_mask"].sum(1))
        else:
            lengths = self.model._get_feat_extract_output_lengths(lengths)
        return tokens, lengths.long().clamp(1, tokens.shape[1]).to(tokens.device)

    def save_assets(self, folder: Path) -> None:
        """Save the settings of model, feature extractor and tokenizer in a folder, to build the model again from them.

        The weights are not saved, since the run's checkpoints have them.
        """
        self.config.save_pretrained(folder / "audio")
        self.extractor.save_pretrained(folder / "audio")
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder / "audio")

    def load_published(self, path: Path) -> None:
        """Load the published weights of a folder into the model."""
        with silence_transformers():
            try:
                config = {"config": _read_config(self.model_type, path)} if self.model_type in PARTS else {}
                whole, said = _model_class(self.model_type).from_pretrained(
                    path, dtype=torch.float32, output_loading_info=True, trust_remote_code=False, **config
                )
            except Exception as error:  # a damaged file can make the library raise any error
                reason = first_line(error)
                raise KitError(f"audio model {path}: its weights cannot be read ({reason}); {GET_AGAIN}") from error
        encoder: nn.Module = whole.get_encoder() if self.model_type == "whisper" else whole
        missing = {*said["missing_keys"], *(key for key, *_ in said.get("mismatched_keys", ()))}
        missing = {key for key in missing if self.model_type != "whisper" or key.startswith("encoder.")}
        if missing:
            some = ", ".join(sorted(missing)[:2])
            raise KitError(f"audio model {path} has no weights for {len(missing)} tensors, such as {some}; {GET_AGAIN}")
        self.model.load_state_dict(encoder.state_dict())
        if self.model_type == "embedding_gemma2":
            self.model.replace_infinite_buffers()


def build_from_folder(type: Type, folder: Path) -> HubAudio:
    """Build the network from the settings in a model's folder, with untrained weights.

    Raises KitError for a model of another type, and for damaged files.
    """
    import transformers

    check_type(folder, type)
    row = ROWS[type]
    with silence_transformers():
        try:
            extractor = getattr(transformers, row.extractor).from_pretrained(folder, trust_remote_code=False)
            config = _read_config(type, folder)
            network = HubAudio(type, extractor, config)
            if type == "embedding_gemma2":
                network.tokenizer = network.model.load_tokenizer(folder)
        except Exception as error:  # the library raises many kinds of errors for damaged or unknown files
            reason = first_line(error)
            raise KitError(f"audio model {folder}: its settings cannot be read ({reason}); {GET_AGAIN}") from error
    if extractor.sampling_rate != row.rate:
        raise KitError(
            f"audio model {folder}: its feature extractor expects {extractor.sampling_rate:,} Hz, but models of type "
            f"{type} need {row.rate:,} Hz; use the extractor that was published with the model"
        )
    return network


def _model_class(type: Type) -> Any:
    """Return the Python class of a model type: a class of transformers, or the kit's class for PE or Gemma."""
    import transformers

    if type == "pe_audio":
        from system.networks.pe_audio import PeSounds

        return PeSounds
    if type == "embedding_gemma2":
        from system.networks.embedding_gemma import GemmaSounds

        return GemmaSounds
    return getattr(transformers, ROWS[type].model)


def _read_config(type: Type, folder: Path) -> Any:
    """Read the configuration of the model in a folder."""
    if type == "pe_audio":
        from system.networks import pe_audio

        return pe_audio.read_config(folder)
    if type == "embedding_gemma2":
        from system.networks import embedding_gemma

        return embedding_gemma.read_config(folder, with_audio=True)
    return _model_class(type).config_class.from_pretrained(folder, trust_remote_code=False)


def _vector_size(type: Type, config: Any) -> int:
    """Return the number of values in the model's vectors."""
    if type == "pe_audio":
        return int(config.text_config.hidden_size)
    if type == "embedding_gemma2":
        return int(config.text_config.embedding_dim)
    if type == "clap_audio_model":
        return int(config.projection_dim)
    if type == "whisper":
        return int(config.d_model)
    return int(getattr(config, "output_hidden_size", None) or config.hidden_size)


def check_type(folder: Path, type: Type) -> None:
    """Raise KitError if the folder has no config.json, another type of model, or no feature extractor."""
    path = folder / "config.json"
    if not path.is_file():
        raise KitError(f"audio model {folder} has no config.json; name the folder of a Hugging Face model")
    reason = type_problem(read_json(path), type)
    if reason:
        raise KitError(f"audio model {folder} is not of type {type}: {reason}")
    _, *extractor = AUDIO_SETTINGS
    if not any((folder / name).is_file() for name in extractor):
        raise KitError(
            f"audio model {folder} has no settings of its feature extractor ({' or '.join(extractor)}); {GET_AGAIN}"
        )


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Context manager that silences progress bars and reports of the library transformers."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
