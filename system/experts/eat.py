"""EAT, frozen.

EAT, frozen: one frame per segment, or about 6.25 per second.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from system.experts.segmented import Network, SegmentExpert
from system.networks.eat_published import (
    LICENCE,
    LONGEST,
    PARAMETERS,
    RATE,
    SHORTEST,
    VARIANTS,
    Columns,
    Name,
    Vector,
    frame_count,
)


class EatExpert(SegmentExpert):
    """Frames (T, D) of EAT, of 160 ms at 16 kHz. A frame is the mean of the tokens of 8 bands, or a segment's vector.
    D: 768 (base), 1,024 (large). A token is the network's output for one patch of the log-mel, at one time and in one
    band.

    Source: Chen et al. (2024); github.com/cwx-worst-one/EAT at 06c1c34. On the examples in tests/golden, frames differ
    from the original's by at most a relative 1e-4 (base; large was not compared). The classifier of a fine-tuned file
    is left out.
    """

    kind: Literal["eat"]
    network: Name  # published network
    weights: str  # the published file: the hub's model.safetensors, or a file of fairseq
    columns: Columns  # of the input; 1024: zeros follow a shorter clip; multiple_of_16: as if the clip were alone
    vector: Vector  # of a segment: the class token, or the mean of the patch tokens

    usual: ClassVar[dict[str, Any]] = {
        "network": "base",
        "weights": "EAT-base_epoch30_pretrain.safetensors",
        "columns": 1024,
        "vector": "cls",
        "segment_seconds": 10.0,
        "output": "clip",
    }
    licence: ClassVar[str] = LICENCE
    rate: ClassVar[int] = RATE
    parameters: ClassVar[int] = PARAMETERS

    @property
    def dim(self) -> int:
        """Number of values in a frame."""
        return VARIANTS[self.network].dim

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return SHORTEST, LONGEST[self.columns]

    @property
    def frame_rate_in_segment(self) -> float:
        """Number of frames per second of audio within a segment."""
        return frame_count(self.segment_seconds) / self.segment_seconds

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting name to the path of the weight file."""
        return {"weights": Path(self.weights)}

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from setting name to the web address of the published weight file."""
        return {"weights": VARIANTS[self.network].address}

    def load_network(self) -> Network:
        """Build EAT with its published weights."""
        from system.networks.eat import Eat

        network = Eat(self.network, self.columns, self.vector)
        network.load_published(Path(self.weights))
        return network
