"""Audio models of the hub, frozen.

Audio models of the hub, frozen: one frame per segment, or the model's tokens.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from data_tools.classify.model_files import AUDIO_SETTINGS, WEIGHTS, fetch, local_folder, weight_files
from data_tools.errors import DataError
from system.experts.base import file_sha256
from system.experts.segmented import Network, SegmentExpert
from system.networks.hugging_face_types import ROWS, TOKENS_PER_SECOND, Type


class HuggingFaceExpert(SegmentExpert):
    """Frames (T, D) of an audio model of the library transformers, with the feature extractor of the model.

    With output `clip`, a segment has one vector: CLAP's projection, the pooled output of AST and Perception Encoder
    (PE), or the mean of the tokens of other models. With output `frames`, the tokens are the frames, for AST and CLAP
    averaged over frequency.
    """

    kind: Literal["hugging_face"]
    model: str  # hub name or folder
    type: Type  # model_type of its config.json; for a complete CLAP model: clap_audio_model
    size: int = Field(gt=0)  # D, checked when it is loaded

    usual: ClassVar[dict[str, Any]] = {
        "model": "laion/clap-htsat-unfused",
        "type": "clap_audio_model",
        "size": 512,
        "segment_seconds": 10.0,
        "output": "clip",
    }

    @classmethod
    def with_weights_in(cls, folder: Path) -> Self:
        """Return the usual settings of this kind. folder: Not used, since the weights come from a hub model."""
        return cls.model_validate({"kind": "hugging_face", **cls.usual})

    @property
    def rate(self) -> int:
        """Sample rate of the input waves, in Hz."""
        return ROWS[self.type].rate

    @property
    def dim(self) -> int:
        """Number of values in a frame."""
        return self.size

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return ROWS[self.type].limits

    @property
    def frame_rate_in_segment(self) -> float:
        """Frame rate within a segment, in frames per second of audio."""
        return TOKENS_PER_SECOND[self.type]

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting name to the path of the weight file."""
        try:
            folder = local_folder(self.model, "audio model") or Path(self.model)
        except DataError:
            folder = Path(self.model)
        return {"model": next(iter(weight_files(folder)), folder / WEIGHTS[0])}

    def weight_source(self) -> str:
        """Return a text for error messages: where to get missing weights."""
        return (
            f"{self.model} is neither a folder with a model nor in the cache of the Hugging Face hub; "
            "correct the name, or fetch the model while online"
        )

    @property
    def hub_model(self) -> str:
        """Name or folder of the Hugging Face model."""
        return self.model

    def count_parameters(self) -> int:
        """Return the number of frozen parameters, computed from the model's configuration files without its weights."""
        import torch

        from system.networks.hugging_face import build_from_folder

        folder = fetch(self.model, "audio model")
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in build_from_folder(self.type, folder).parameters())

    def checksums(self) -> dict[str, str]:
        """Return a dict from `model` or file name to sha256, for all weight files and settings files of the model."""
        folder = fetch(self.model, "audio model")
        settings = [folder / name for name in AUDIO_SETTINGS]
        others = [*settings, *weight_files(self.weight_files()["model"].parent)[1:]]
        return super().checksums() | {path.name: file_sha256(path) for path in others if path.is_file()}

    def load_network(self) -> Network:
        """Load the Hugging Face model. Raises DataError if its frames do not have the size in the setting `size`."""
        from system.networks.hugging_face import build_from_folder

        folder = fetch(self.model, "audio model")
        network = build_from_folder(self.type, folder)
        found = network.dim if self.output == "clip" else network.frame_dim
        if found != self.size:
            raise DataError(
                f"expert {self.kind}: the model {self.model} has {found} values per frame, but size is {self.size}; "
                f"set size: {found}"
            )
        network.load_published(folder)
        return network
