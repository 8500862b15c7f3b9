"""Settings of frozen word vectors."""

from pathlib import Path
from typing import ClassVar, Literal

from data_tools.settings import Size
from system.models.base import Facts
from system.models.text.base import Encoder, TextSettings


class WordVectors(TextSettings):
    """A frozen vector per word, scaled to length 1; or the mean of the unscaled vectors, scaled to length 1. The
    vectors are read from a file in word2vec's binary or text format.

    unknown: Words missing from the file get a random vector of length 1. `each`: a vector per word; it depends only on
    the word's letters, so that it is the same on every machine. `one`: the same vector for all missing words.
    Source: "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), section 4.2.
    """

    kind: Literal["word_vectors"]
    vectors: str  # the file of word vectors
    dim: Size  # D of the file, checked when it is read
    unknown: Literal["each", "one"]
    embedding: Literal["words", "mean"]  # one vector per word, or their mean
    padding: Literal["masked", "counted"]  # counted: padding counts as words in training, as in public code

    file_settings: ClassVar[frozenset[str]] = frozenset({"vectors"})

    @property
    def embeds_series(self) -> bool:
        """Whether an embedding is a series of words instead of one vector."""
        return self.embedding == "words"

    @property
    def depends_on_batch(self) -> bool:
        """Whether a caption's embedding depends on the other captions of a training batch."""
        return self.embedding == "words" and self.padding == "counted"

    @property
    def batch_property(self) -> str | None:
        """Description of a property of a batch, such as padding, that changes embeddings in training; None if none."""
        return "padding that counts as words of captions (`padding: counted`)" if self.depends_on_batch else None

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has trainable parameters."""
        return False

    def weight_files(self) -> dict[str, Path]:
        """Return a dict with one entry: from the setting `vectors` to the path of the file of word vectors."""
        return {"vectors": Path(self.vectors)}

    def published_address(self) -> str:
        """Return the address where the file of word vectors is published."""
        return "code.google.com/archive/p/word2vec (GoogleNews-vectors-negative300.bin.gz, unpacked)"

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder, which reads its vectors from the file and has no trained weights."""
        from system.models.text.word_vectors_encoder import WordVectorsEncoder

        return WordVectorsEncoder(Path(self.vectors), self.dim, self.embedding, self.unknown, self.padding)

    def plan_facts(self) -> Facts:
        """Return a description of the encoder for the verb `check`, and a list of its missing files."""
        return f"word vectors {self.vectors}", self.file_problems()
