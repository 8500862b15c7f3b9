"""What the settings of every encoder, of audio or of text, say beside what it computes. Never imports torch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ValidationInfo

from data_tools.datasets.download import FETCH_AGAIN, content_problem, file_problem
from data_tools.documents.strict import Size, Strict


def _check_head_count(heads: int, info: ValidationInfo) -> int:
    for size in ("width", "dim"):
        if info.data.get(size, heads) % heads:
            raise ValueError(f"{heads} heads do not divide {size} {info.data[size]}")
    return heads


Heads = Annotated[
    Size, AfterValidator(_check_head_count)
]  # of attention; its field stands below that of `width`, or `dim`


class EncoderKind(Strict):
    """Settings of one kind of encoder, as a recipe gives them.

    file_settings: those that say where files lie on this machine; a trained model may be opened with others.
    """

    kind: str

    file_settings: ClassVar[frozenset[str]] = frozenset()

    @property
    def gives_series(self) -> bool:
        """Whether an embedding is a series, of frames or of words, instead of one vector."""
        return False

    @property
    def sees_whole_batch(self) -> bool:
        """Whether an embedding is another one in a part of a training batch, as with trained batch norms: cached
        gradients would not be the same."""
        return False

    @property
    def seen_by_share(self) -> str | None:
        """What of a batch decides its embeddings beside batch norms and the padded length of frames: of several
        processes each sees its share of that alone. None for nothing."""
        return None

    @property
    def knows_captions(self) -> bool:
        """Whether its published weights have learned from captioned clips, which may be among those that are ranked."""
        return False

    @property
    def is_published(self) -> bool:
        """Whether all of its weights are published ones, so that it says something before it is trained."""
        return False

    def weight_files(self) -> dict[str, Path]:
        """Its published files, by the setting that names each; an exported model does not hold them."""
        return {}

    def published_address(self) -> str:
        """Where these files are published."""
        return ""

    def file_checksums(self) -> dict[str, str]:
        """sha256 of files that decide what it computes and that a run's checkpoints do not hold, by name."""
        return {}

    def missing_files(self) -> Iterator[tuple[str, str]]:
        """The setting and a sentence for each published file that is absent."""
        for name, path in self.weight_files().items():
            if not path.is_file():
                yield name, f"{self.kind}: no file {path}; published at {self.published_address()}; put it there"
            elif problem := content_problem(path) or file_problem(path):
                yield name, f"{self.kind}: {path} {problem}; {FETCH_AGAIN}"

    def plan_lines(self) -> Iterator[str]:
        """For `check`: what it is made from, and whether that is there."""
        yield from ()
