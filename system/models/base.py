"""The common interface of the settings of audio and text encoders."""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ValidationInfo

from data_tools.settings import Size
from system.audio.base import Needing


def _check_head_count(heads: int, info: ValidationInfo) -> int:
    """Return the number of attention heads; raise an error unless the layer's width is a multiple of it."""
    for size in ("width", "dim"):
        if info.data.get(size, heads) % heads:
            raise ValueError(f"{size} {info.data[size]} is not a multiple of heads {heads}; change {size} or heads")
    return heads


Heads = Annotated[
    Size, AfterValidator(_check_head_count)
]  # of attention; its field comes after that of `width` or `dim`


def excluded(names: Iterable[str]) -> Any:
    """Return dotted names of settings, such as network.weights, as pydantic's `exclude`."""
    found: dict[str, Any] = {}
    for first, _, rest in (name.partition(".") for name in names):
        found[first] = {rest} if rest else True
    return found


class EncoderKind(Needing):
    """Settings of one kind of encoder, as in a recipe.

    file_settings: Names of the settings that contain paths on this machine. A trained model may be opened with other
    paths.
    """

    kind: str

    file_settings: ClassVar[frozenset[str]] = frozenset()

    @property
    def embeds_series(self) -> bool:
        """Whether the embedding of a clip or text is a series (one vector per frame or word) instead of one vector."""
        return False

    @property
    def depends_on_batch(self) -> bool:
        """Whether an embedding depends on the other clips or captions of a training batch.

        Trained batch norms are one cause. If true, a batch that is embedded in chunks would get other gradients.
        """
        return False

    @property
    def trained_on_captions(self) -> bool:
        """Whether the published weights were trained on captioned clips, perhaps including the ranked clips."""
        return False

    @property
    def is_published(self) -> bool:
        """Whether all weights of the encoder are published, so that it is useful before any training."""
        return False

    def file_checksums(self) -> dict[str, str]:
        """Return a dict from file name to sha256, for every file that determines the encoder's output.

        Weights that are stored in a run's checkpoints are left out.
        """
        return {}

    @property
    def description(self) -> str:
        """What `check` says about the encoder."""
        return self.kind
