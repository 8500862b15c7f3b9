"""Interface of settings of all encoders.

The common interface of the settings of audio and text encoders. Never imports torch.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, ValidationInfo

from data_tools.classify.model_files import folder_problem, local_folder
from data_tools.datasets.download import FETCH_AGAIN, content_problem, cure_of
from data_tools.settings import Size, Strict


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


Facts: TypeAlias = tuple[str, list[tuple[str, str]]]  # a description; missing files, each with how to get it


def hub_facts(title: str, fact: str, folder: Path | None) -> Facts:
    """Describe a hub model as text; return the text, and problems, [(title, message)], if it is missing or damaged.

    title: Name of the Hugging Face model. fact: The text; the model's folder is added if the model is complete.
    folder: Folder of the model on this machine, or None.
    """
    if folder is None:
        cure = "fetch the model with lbar download RECIPE"
        return fact, [(title, f"the model is neither a folder nor in the hub's cache; {cure}")]
    if problem := folder_problem(folder):
        return fact, [(title, f"{folder}: {problem}; name a folder that contains a model, or a hub name")]
    return f"{fact}, in {folder}", []


class EncoderKind(Strict):
    """Settings of one kind of encoder, as in a recipe.

    file_settings: Names of the settings that contain paths on this machine. A trained model may be opened with other
    paths.
    """

    kind: str

    file_settings: ClassVar[frozenset[str]] = frozenset()
    licence: ClassVar[str] = ""  # of the published weights, as their authors state it; "": not recorded here

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

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting to path, for every setting with the path of a published weight file.

        An exported model does not contain these files.
        """
        return {}

    def published_address(self) -> str:
        """Return the address where the weight files are published; "" for an encoder without such files."""
        return ""

    def file_checksums(self) -> dict[str, str]:
        """Return a dict from file name to sha256, for every file that determines the encoder's output.

        Weights that are stored in a run's checkpoints are left out.
        """
        return {}

    def missing_files(self) -> Iterator[tuple[str, str]]:
        """Yield the setting and an error message for each missing or damaged published file."""
        for name, path in self.weight_files().items():
            if not path.is_file():
                address = self.published_address()
                yield name, f"{self.kind}: the weight file {path} is missing; download it to this path from {address}"
            elif problem := content_problem(path):
                yield name, f"{self.kind}: {path} {problem}; {FETCH_AGAIN}"

    @property
    def hub_model(self) -> str | None:
        """Name of the Hugging Face model that the encoder is built from; None for other encoders."""
        return None

    def file_problems(self) -> list[tuple[str, str]]:
        """Return the path of each missing or damaged weight file, with the advice that `check` prints."""
        source = f"published at {self.published_address()}"
        cures = [(str(path), cure_of(path, source)) for path in self.weight_files().values()]
        return [(path, cure) for path, cure in cures if cure]

    def plan_fault(self) -> str | None:
        """Return why the settings do not fit the encoder's published model on this machine; None if they fit."""
        return None

    def plan_facts(self) -> Facts:
        """Return a description of the encoder for the verb `check`, and a list of its missing files."""
        if self.hub_model is not None:
            return hub_facts(f"{self.kind} {self.hub_model}", self.hub_model, local_folder(self.hub_model))
        return self.kind, self.file_problems()
