"""Audio models of the hub on waveforms, trained or frozen, with an embedding behind them. Never imports torch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from data_tools.classify.model_files import AUDIO_SETTINGS, fetch, folder_problem, local_folder, weight_files
from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError
from system.experts.base import file_sha256
from system.models.audio.segmented import Network, NetworkCost, Segmented
from system.models.costs import block_activations, layer_parameters
from system.networks.hugging_face_types import ROWS, TOKENS_PER_SECOND, Type, type_problem

_UNREADABLE = (OSError, ValueError, LookupError, TypeError, DataError)
ROWS_OF_AST = 12  # tokens of one time


class HuggingFace(Segmented):
    """An audio model of transformers on waveforms in segments; its vector of each, over which the mean is taken, then
    linear to the text size.

    Its own feature extractor hears a clip's samples, not the silence behind them. A vector: CLAP's projection, the
    pooled output of AST and PE, else the mean of tokens. No code of the hub is run.
    """

    kind: Literal["hugging_face"]
    model: str  # hub name or folder
    type: Type  # model_type of its config.json; for a whole CLAP, its part clap_audio_model

    file_settings: ClassVar[frozenset[str]] = frozenset({"model"})

    @property
    def sample_rate(self) -> int:
        return ROWS[self.type].rate

    @property
    def sees_whole_batch(self) -> bool:
        """By CLAP's batch norm, and by what fills inputs up to the longest."""
        return self.trainable and (self.type == "clap_audio_model" or ROWS[self.type].max_seconds is None)

    @property
    def seen_by_share(self) -> str | None:
        fills = self.trainable and ROWS[self.type].max_seconds is None
        return "the length that inputs are filled up to" if fills else None

    @property
    def knows_captions(self) -> bool:
        return self.type == "clap_audio_model"

    @property
    def has_weights(self) -> bool:
        return True

    @property
    def vector_dim(self) -> int:
        return self._sizes()[0]

    @property
    def limits(self) -> tuple[float, float]:
        return ROWS[self.type].limits

    @property
    def title(self) -> str:
        return self.model

    def _config(self) -> dict[str, Any] | None:
        """Of the part that hears; None where it is not here, or no such model."""
        try:
            folder = local_folder(self.model, "audio model") or Path(self.model)
            config: dict[str, Any] = dict(parse_json((folder / "config.json").read_bytes(), "config.json"))
        except _UNREADABLE:
            return None
        return dict(config.get("audio_config", config)) if self.type == "clap_audio_model" else config

    @property
    def size_known(self) -> bool:
        return self._config() is not None

    def _sizes(self) -> tuple[int, list[tuple[float, int, int]]]:
        """Of its vectors; and of each layer the tokens a second, their width and that of its feed-forward. Of a model
        that is not here: as a base model."""
        config = self._config() or {}
        try:
            if self.type == "clap_audio_model":
                width = int(config.get("patch_embeds_hidden_size", 96))
                layers = [
                    (4096 / 4**i / 10, width * 2**i, 4 * width * 2**i)
                    for i, depth in enumerate(config.get("depths", [2, 2, 6, 2]))
                    for _ in range(int(depth))
                ]
                return int(config.get("projection_dim", 512)), layers
            width = int(config.get("d_model", config.get("hidden_size", 768)))
            depth = int(config.get("encoder_layers", config.get("num_hidden_layers", 12)))
            ffn_dim = int(config.get("encoder_ffn_dim", config.get("intermediate_size", 4 * width)))
            rows = ROWS_OF_AST if self.type == "audio-spectrogram-transformer" else 1
            return width, [(rows * TOKENS_PER_SECOND[self.type], width, ffn_dim)] * depth
        except (TypeError, ValueError):  # found when it is loaded
            return 768, []

    def network_cost(self) -> NetworkCost:
        """Of its layers of attention; of convolutions before them nothing is reckoned."""
        row, (_, layers) = ROWS[self.type], self._sizes()
        fixed = row.max_seconds if self.type != "clap_audio_model" else 10.0
        seconds = fixed or self.segment_seconds
        counts = [(rate * seconds, width, ffn_dim) for rate, width, ffn_dim in layers]
        kept = [block_activations(tokens, width, ffn_dim) for tokens, width, ffn_dim in counts]
        window = 64 if self.type == "clap_audio_model" else None  # tokens that attend to each other
        flops = sum(
            2 * tokens * (layer_parameters(width, ffn_dim) + 2 * (window or tokens) * width)
            for tokens, width, ffn_dim in counts
        )
        parameters = sum(layer_parameters(width, ffn_dim) for _, width, ffn_dim in layers)
        return NetworkCost(parameters, sum(kept), max(kept, default=0.0), flops)

    def pretrained(self) -> Path | None:
        return fetch(self.model, "audio model")

    def build_network(self) -> Network:
        from system.networks.hugging_face import HubAudio

        return HubAudio(self.type, fetch(self.model, "audio model"))

    def file_checksums(self) -> dict[str, str]:
        """Of the model's settings and its extractor's; of a frozen one its weights too."""
        folder = fetch(self.model, "audio model")
        settings = [folder / name for name in AUDIO_SETTINGS]
        paths = [*settings, *([] if self.trainable else weight_files(folder))]
        return {path.name: file_sha256(path) for path in paths if path.is_file()}

    def missing_files(self) -> Iterator[tuple[str, str]]:
        """Downloads the model where it is not here; refuses one of another type."""
        try:
            folder = fetch(self.model, "audio model")
            problem = type_problem(parse_json((folder / "config.json").read_bytes(), "config.json"), self.type)
            problem = problem or folder_problem(folder)
        except FileNotFoundError:
            yield "model", f"audio model {self.model}: no config.json; name a folder that holds a model"
        except DataError as error:
            yield "model", str(error)
        else:
            if problem:
                yield "model", f"audio model {self.model}: {problem}"

    def plan_lines(self) -> Iterator[str]:
        try:
            folder = local_folder(self.model, "audio model")
        except DataError:
            folder = None
        missing = "MISSING: no such folder, nor in the hub's cache; python -m system download RECIPE fetches it"
        here = missing if folder is None else f"here, in {folder}"
        if folder is not None and (problem := folder_problem(folder)):
            here = f"MISSING: {folder} {problem}; name a folder that holds a model, or a hub name"
        yield f"audio model {self.model} ({self.type}, {'trained' if self.trainable else 'frozen'}): {here}"
        if not self.size_known:
            yield "  its size is unknown: memory and times of a step below take it for a base model"
