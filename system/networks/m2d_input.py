"""M2D: settings of its input.

Settings of M2D's input and output, for the frozen expert and the trained encoder. Never imports torch.
"""

from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import ValidationError, model_validator

from data_tools.settings import Strict, mistakes
from system.networks.m2d_published import DIM, Bands, Geometry, choose_geometry


class M2dInput(Strict):
    """The geometry of an M2D network (its input and patch size), and the number of values per frame."""

    geometry: str | None  # input, such as 80x608p16x16; null: read from the name of the .zip, or of the .pth's folder
    bands: Bands  # of a frame: stacked (3,840 values), as published, or their mean (768)
    if TYPE_CHECKING:
        weights: Any  # of the subclass: the path of the file, or None

    @model_validator(mode="after")
    def _require_geometry(self) -> Self:
        """Raise an error if the input and patch size (geometry) are neither set nor in the weight file's name."""
        try:
            choose_geometry(self.geometry, self.weights)
        except ValueError as error:
            raise cast(ValidationError, mistakes([(("geometry",), str(error))])) from None
        return self

    @property
    def input_geometry(self) -> Geometry:
        """Geometry of the network's input: sizes of the log-mel, its chunks and its patches."""
        return choose_geometry(self.geometry, self.weights)

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return self.input_geometry.limits

    @property
    def frame_size(self) -> int:
        """Number of values in a frame that the network returns."""
        return DIM * self.input_geometry.rows if self.bands == "stacked" else DIM
