"""The audio models of the hub that load by name, by the `model_type` of their config.json. Never imports torch.

Read in transformers 5.23: one row a type is all that a new one takes, where its output has one of the three forms."""

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
    "pe_audio_encoder",
]

SHORTEST = 0.1  # seconds: less is filled with silence
LONGEST = 600.0  # seconds, of models that take any length


@dataclass(frozen=True)
class Row:
    """model, extractor: classes of transformers. rate: in Hz. max_seconds: the longest input; `None` where any is
    computed. vector: where its vector of an input is: in an output of that name, or the mean of its tokens. aliases:
    other values of `model_type` that hold such a model."""

    model: str
    extractor: str = "Wav2Vec2FeatureExtractor"
    rate: int = 16_000
    max_seconds: float | None = None
    vector: Literal["pooler_output", "audio_embeds", "mean"] = "mean"
    aliases: tuple[str, ...] = ()

    @property
    def limits(self) -> tuple[float, float]:
        """The shortest and the longest segment, in seconds."""
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
    "pe_audio_encoder": Row(
        "PeAudioEncoder", "PeAudioFeatureExtractor", 48_000, None, "pooler_output", ("pe_audio", "pe_audio_video")
    ),
}

# Frames a second, of AST and CLAP those of all frequencies together.
TOKENS_PER_SECOND: dict[Type, float] = dict.fromkeys(ROWS, 50.0) | {
    "audio-spectrogram-transformer": 10.1 / 1.024,
    "clap_audio_model": 3.2,
    "pe_audio_encoder": 25.0,
}


def type_problem(config: dict[str, Any], wanted: Type) -> str | None:
    """What a config.json says that the row `wanted` is not for; None where it is."""
    found = config.get("model_type")
    if found == wanted or found in ROWS[wanted].aliases:
        return None
    if found in ROWS:
        return f"its config.json says model_type {found}, not {wanted}; write type: {found}"
    fitting = next((one for one, row in ROWS.items() if found in row.aliases), None)
    if fitting is not None:
        return f"its config.json says model_type {found}; write type: {fitting}"
    return f"its config.json says model_type {found}, which is none of {', '.join(ROWS)}"
