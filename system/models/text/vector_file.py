"""Read files of word vectors.

Word vectors in word2vec's binary or text format. They are read from the file at each look-up, to save memory.
"""

import mmap
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_tools.errors import KitError
from data_tools.files import replacing

LONGEST_WORD = 4096  # bytes
REPLACE_FILE = "download or make the file again"

# V words in the file, D values in a vector


class WordVectorFile:
    """Looks up vectors of D values by word in a file with V words.

    .bin: word2vec's binary format. The first line has V and D. Then each word has its bytes, a blank, and D
    little-endian float32 numbers. Files with other names are text, word2vec's or GloVe's: one word and D numbers per
    line. The first line may have V and D. If a word occurs twice, its first vector is used.

    Opening reads the whole file once, and stores 16 bytes per word in memory. Raises KitError, with the position, for
    missing, truncated and other files, and if the vectors or their number do not match the first line. If a vector has
    values that are not finite, reading this vector raises KitError.
    """

    def __init__(self, path: Path, dim: int) -> None:
        """Open the file, and find the position of every word. dim: Required number of values per vector, D."""
        self.path, self.dim = path, dim
        if not path.is_file() or not path.stat().st_size:
            raise KitError(
                f"the word-vector file {path} is missing or empty; name a file in word2vec's formats, such as Google's "
                "GoogleNews-vectors-negative300.bin (code.google.com/archive/p/word2vec, unpack the .gz)"
            )
        self._is_binary = path.suffix == ".bin"
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        hashes, offsets = array("q"), array("q")
        for word, offset in self._binary_words() if self._is_binary else self._text_words():
            hashes.append(hash(word))
            offsets.append(offset)
        found = np.frombuffer(hashes, np.int64)
        order = np.argsort(found, kind="stable")
        self._hashes, self._offsets = found[order], np.frombuffer(offsets, np.int64)[order]

    def __len__(self) -> int:
        """Return the number of words in the file."""
        return len(self._offsets)

    def get(self, word: str) -> np.ndarray | None:
        """Return the (D,) float32 vector of a word; None if the word is not in the file."""
        wanted = word.encode() + b" "
        first, last = (int(np.searchsorted(self._hashes, hash(wanted[:-1]), side)) for side in ("left", "right"))
        for offset in self._offsets[first:last].tolist():
            if self._bytes[offset : offset + len(wanted)] == wanted:
                return self._read_vector(offset + len(wanted))
        return None

    def _read_vector(self, offset: int) -> np.ndarray:
        """Read the vector that begins at the byte `offset` of the file."""
        if self._is_binary:
            return self._require_finite(np.frombuffer(self._bytes, "<f4", self.dim, offset).astype(np.float32), offset)
        end = self._bytes.find(b"\n", offset)
        numbers = self._bytes[offset : end if end >= 0 else len(self._bytes)].split()
        try:
            with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused below
                vector = np.array(numbers, dtype=np.float32)
        except ValueError:
            raise KitError(
                f"{self.path}: the vector at byte {offset} has values that are no numbers; {REPLACE_FILE}"
            ) from None
        if len(vector) != self.dim:
            raise KitError(
                f"{self.path}: the vector at byte {offset} has {len(vector)} values, expected {self.dim}; "
                f"{REPLACE_FILE}"
            )
        return self._require_finite(vector, offset)

    def _require_finite(self, vector: np.ndarray, offset: int) -> np.ndarray:
        """Return the vector unchanged. Raises KitError, with the byte `offset`, if a value is not finite."""
        if not np.isfinite(vector).all():
            raise KitError(f"{self.path}: the vector at byte {offset} has infinite or NaN values; {REPLACE_FILE}")
        return vector

    def _binary_words(self) -> Iterator[tuple[bytes, int]]:
        """Yield every word of a binary file, and the position of the word's first byte."""
        data, size = self._bytes, 4 * self.dim
        count, dim, offset = self._read_first_line()
        if dim is None:
            raise KitError(
                f"{self.path} is not in word2vec's binary format: its first line is not the number of words and the "
                "dimension; name a .bin file of word2vec"
            )
        for n in range(count):
            while data[offset : offset + 1] == b"\n":  # some writers end a vector with a line end
                offset += 1
            blank = data.find(b" ", offset, offset + LONGEST_WORD)
            if blank < 0 or blank + 1 + size > len(data):
                raise KitError(f"{self.path} is truncated: it ends in word {n + 1:,} of {count:,}; {REPLACE_FILE}")
            yield data[offset:blank], offset
            offset = blank + 1 + size
        if rest := len(data) - offset - data[offset : offset + 64].count(b"\n"):
            raise KitError(
                f"{self.path} is damaged: {rest:,} more bytes follow the {count:,} words that its first line states; "
                f"{REPLACE_FILE}"
            )

    def _text_words(self) -> Iterator[tuple[bytes, int]]:
        """Yield every word of a text file, and the position of the word's first byte."""
        data = self._bytes
        count, dim, offset = self._read_first_line()
        if data[-1:] != b"\n":
            raise KitError(f"{self.path} is truncated: it ends within a line; {REPLACE_FILE}")
        lines_read = 0
        while offset < len(data):
            end = data.find(b"\n", offset)
            end = end if end >= 0 else len(data)
            blank = data.find(b" ", offset, end)
            if blank > offset:
                yield data[offset:blank], offset
                lines_read += 1
            elif end > offset:
                raise KitError(
                    f"{self.path}: the line at byte {offset} is not a word and its values, separated by spaces; "
                    f"{REPLACE_FILE}"
                )
            offset = end + 1
        if dim is not None and lines_read != count:
            raise KitError(
                f"{self.path} is damaged: it has {lines_read:,} words, but its first line states {count:,}; "
                f"{REPLACE_FILE}"
            )

    def _read_first_line(self) -> tuple[int, int | None, int]:
        """Return the first line's word count and dimension, and the byte after it; (0, None, 0) if both are missing."""
        end = self._bytes.find(b"\n", 0, 64)
        words = self._bytes[: max(end, 0)].split()
        if len(words) != 2 or not all(word.isdigit() for word in words):
            return 0, None, 0
        count, dim = map(int, words)
        if dim != self.dim:
            raise KitError(
                f"{self.path} has vectors of {dim} values, but text.dim is {self.dim}; set text.dim to {dim}"
            )
        return count, dim, end + 1


def write_word_vectors(path: Path, words: dict[str, np.ndarray]) -> None:
    """Write word vectors to a file in word2vec's binary format.

    words: Dict from word to vector (D,), with at least one word; no word has blanks or line ends.
    """
    dim = len(next(iter(words.values())))
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(f"{len(words)} {dim}\n".encode())
        for word, vector in words.items():
            file.write(word.encode() + b" " + np.asarray(vector, "<f4").tobytes())
