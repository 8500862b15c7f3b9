"""Supported types of hub models.

Types of audio models of the hub that can be loaded, by the `model_type` of their config.json. Never imports torch.

Checked with transformers 5.23. A new type only needs a line in the table ROWS if the vector of a sound is its model's
output `pooler_output` or `audio_embeds`, or the mean of the tokens.
"""

from dataclasses import dataclass
from typing import Any, Literal

Type = Literal[
    "audio-spectrogram-transformer",
    "clap_audio_model",
    "whisper",
    "wav2vec2",
    "hubert",
    "wavlm",
    "data2vec-audio",
    "sew",
    "unispeech",
    "unispeech-sat",
    "wav2vec2-bert",
    "pe_audio",
    "embedding_gemma2",
]

SHORTEST = 0.1  # seconds: less is filled with silence
LONGEST = 600.0  # seconds, of models that take any length


@dataclass(frozen=True)
class Row:
    """Settings of one type of audio models on the hub.

    Attributes:
        model, extractor: Names of the classes in transformers.
        rate: Sample rate in Hz.
        max_seconds: Longest input in seconds; None for no limit.
        vector: Name of the model output with the vector of an input, or "mean" for the mean of the input's tokens.
        aliases: Values of `model_type` of larger models that contain a model of this type, such as CLAP.
        equal_lengths: Whether all inputs of a batch must have the same length.
    """

    model: str
    extractor: str = "Wav2Vec2FeatureExtractor"
    rate: int = 16_000
    max_seconds: float | None = None
    vector: Literal["pooler_output", "audio_embeds", "mean"] = "mean"
    aliases: tuple[str, ...] = ()
    equal_lengths: bool = False

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the model accepts, in seconds."""
        return SHORTEST, self.max_seconds or LONGEST


ROWS: dict[Type, Row] = {
    "audio-spectrogram-transformer": Row("ASTModel", "ASTFeatureExtractor", 16_000, 10.24, "pooler_output"),
    "clap_audio_model": Row(
        "ClapAudioModelWithProjection", "ClapFeatureExtractor", 48_000, 10.0, "audio_embeds", ("clap",)
    ),
    "whisper": Row("WhisperModel", "WhisperFeatureExtractor", 16_000, 30.0),
    "wav2vec2": Row("Wav2Vec2Model"),
    "hubert": Row("HubertModel"),
    "wavlm": Row("WavLMModel"),
    "data2vec-audio": Row("Data2VecAudioModel"),
    "sew": Row("SEWModel"),
    "unispeech": Row("UniSpeechModel"),
    "unispeech-sat": Row("UniSpeechSatModel"),
    "wav2vec2-bert": Row("Wav2Vec2BertModel", "SeamlessM4TFeatureExtractor"),
    "pe_audio": Row("PeAudioModel", "PeAudioFeatureExtractor", 48_000, None, "pooler_output", ("pe_audio_video",)),
    "embedding_gemma2": Row(
        "EmbeddingGemma2Model", "Gemma4AudioFeatureExtractor", 16_000, 30.0, "pooler_output", equal_lengths=True
    ),
}

# Frames per second; for AST and CLAP the tokens of all frequencies count as one.
TOKENS_PER_SECOND: dict[Type, float] = dict.fromkeys(ROWS, 50.0) | {
    "audio-spectrogram-transformer": 10.1 / 1.024,
    "clap_audio_model": 3.2,
    "pe_audio": 25.0,
    "embedding_gemma2": 25.0,
}


def type_problem(config: dict[str, Any], wanted: Type) -> str | None:
    """Return why a config.json does not describe a model of type `wanted`, with advice; None if it does."""
    model_type = config.get("model_type")
    if model_type == wanted or model_type in ROWS[wanted].aliases:
        return None
    if model_type in ROWS:
        return f"its config.json says model_type {model_type}, not {wanted}; set type: {model_type}"
    fitting = next((one for one, row in ROWS.items() if model_type in row.aliases), None)
    if fitting is not None:
        return f"its config.json says model_type {model_type}; set type: {fitting}"
    return f"its config.json says model_type {model_type}, which is not supported; supported: {', '.join(ROWS)}"
