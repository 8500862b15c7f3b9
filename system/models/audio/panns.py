"""PANNs on waveforms: settings.

A network of PANNs on waveforms, trained or frozen, followed by an embedding layer.
"""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from data_tools.settings import Size
from system.experts import Expert, Waveform
from system.experts.base import Resampled
from system.models.audio.base import AudioSettings, Encoder
from system.models.audio.segmented import SpecAugment
from system.models.base import Facts
from system.networks.published import ADDRESSES, RATE


class Panns(AudioSettings, Resampled):
    """A network of PANNs on 32 kHz waveforms. Its output is pooled over frequency, then over time. Two linear layers
    with a ReLU between them follow: to `hidden` values, then to the size of text embeddings.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2, and its public code.
    """

    kind: Literal["panns"]
    network: Literal["resnet38", "cnn14"]  # published network
    weights: str | None  # the published checkpoint; null: from scratch
    trainable: bool  # false: frozen
    max_seconds: float = Field(gt=0)  # training uses a random part of longer clips, ranking the whole clip
    frequency_pooling: Literal["mean", "max_mean"]  # mean: the public code; max_mean: the paper
    time_pooling: Literal["mean", "max", "max_mean"]  # of the frames, into one vector
    dropout: float = Field(ge=0, lt=1)  # between the network's blocks
    spec_augment: SpecAugment | None  # stripes of the log-mel that are masked in training
    hidden: Size  # of the layer after the network

    file_settings: ClassVar[frozenset[str]] = frozenset({"weights"})

    @field_validator("trainable")
    @classmethod
    def _require_weights_or_training(cls, trainable: bool, info: ValidationInfo) -> bool:
        """Raise an error for a frozen network without published weights, which would stay random."""
        if not trainable and info.data.get("weights", "") is None:
            raise ValueError(
                "trainable is false, but weights is null: a network without published weights must be trained; "
                "set trainable: true"
            )
        return trainable

    @property
    def experts(self) -> dict[str, Expert]:
        """Dict whose only entry describes the encoder's input: 16-bit waveforms instead of an expert's frames."""
        return {"waveform": Waveform(kind="waveform", sample_rate=32_000, resampling=self.resampling)}

    @property
    def training_frames(self) -> int:
        """Maximum number of samples per clip in training; a random part of this length is cut out of longer clips."""
        return max(1, round(self.max_seconds * RATE))

    @property
    def depends_on_batch(self) -> bool:
        """Whether a clip's embedding depends on the other clips of a training batch."""
        return self.trainable

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Dict from the name of each part of the encoder to whether the part has trainable parameters."""
        return {"network": self.trainable, "mlp": True}

    def pretrained(self) -> Path | None:
        """Return the file or folder of published weights; None for a network that is trained from scratch."""
        return None if self.weights is None else Path(self.weights)

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting to path, for every setting with the path of a published weight file."""
        return {} if self.weights is None else {"weights": Path(self.weights)}

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return ADDRESSES[self.network]

    def build(self, out: int) -> Encoder:
        """Build the encoder with untrained weights. out: Number of values per embedding."""
        from system.models.audio.panns_encoder import PannsEncoder

        ((name, _),) = self.experts.items()
        augment = None if self.spec_augment is None else self.spec_augment.model_dump()
        return PannsEncoder(
            name,
            out,
            network=self.network,
            weights=self.pretrained(),
            trainable=self.trainable,
            training_samples=self.training_frames,
            pooling=(self.frequency_pooling, self.time_pooling),
            dropout=self.dropout,
            spec_augment=augment,
            hidden=self.hidden,
        )

    def plan_facts(self) -> Facts:
        """Return a description of the encoder for the verb `check`, and a list of its missing files."""
        source = "from scratch" if self.weights is None else f"from {self.weights}"
        return f"{self.network}, {'trained' if self.trainable else 'frozen'}, {source}", self.file_problems()
