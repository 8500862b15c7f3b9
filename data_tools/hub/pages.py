"""Find values in a parquet file.

Finds the position of each value of a column of bytes, so that one value can be read without the rest of the column.

Source of the format: github.com/apache/parquet-format (README.md, Encodings.md, src/main/thrift/parquet.thrift) and
github.com/google/snappy, format_description.txt.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from data_tools.audio.members import Member, Packed, decompressed, read_span
from data_tools.audio.parts import AudioError
from data_tools.errors import DataError

if TYPE_CHECKING:
    import pyarrow.parquet

DATA, DICTIONARY, DATA_2 = 0, 2, 3  # types of pages; type 1 was never used
PLAIN, INDICES = 0, (2, 8)  # encodings of a page's values: themselves, or indices in the dictionary
CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd", "BROTLI": "brotli"}  # parquet's names and pyarrow's
BLOCK = 1 << 16  # bytes that snappy's encoders compress without reference to earlier ones
HEADER = 1 << 12  # bytes of a page's header to read at first


class _Page(NamedTuple):
    """A page of a column. fields: Of its header. start, length: Place of its content in the file."""

    fields: dict[int, Any]
    start: int
    length: int


class _Values(NamedTuple):
    """Values of a page. content: The bytes that hold them. parts: (start, size) of each value in these bytes."""

    content: "_Content"
    parts: list[tuple[int, int]]


class _Content(NamedTuple):
    """Content of a page in a parquet file.

    Attributes:
        start: Offset of the content in the file.
        length: Number of bytes of the content in the file.
        total: Number of bytes after decompression.
        data: All bytes of the content: compressed if `marks` is given, otherwise decompressed.
        codec: Name of the compression; None if the content is not compressed.
        marks: For snappy, the offsets in `data` at which blocks begin that can be decompressed alone; None if only the
            whole content can be decompressed.
    """

    start: int
    length: int
    total: int
    data: bytes | memoryview
    codec: str | None = None
    marks: list[int] | None = None

    def part(self, at: int, count: int) -> bytes:
        """Return a part of the decompressed content: `count` bytes from byte `at` on, or fewer at the end."""
        if not self.codec or not self.marks:
            return bytes(self.data[at : at + count])
        begin, end, packed = self._blocks(at, min(count, self.total - at))
        return decompressed(bytes(self.data[begin:end]), self.codec, packed.total)[
            packed.skip : packed.skip + packed.size
        ]

    def _blocks(self, at: int, size: int) -> tuple[int, int, Packed]:
        """Return begin and end of the blocks with `size` bytes from `at` on, and the compression of these bytes."""
        assert self.codec
        assert self.marks
        first, last = at // BLOCK, -(-(at + size) // BLOCK)
        total = min(last * BLOCK, self.total) - first * BLOCK
        return self.marks[first], self.marks[last], Packed(self.codec, total, at - first * BLOCK, size)

    def member(self, path: Path, name: str, at: int, size: int) -> Member:
        """Return the Member (file position) of `size` bytes from the decompressed byte `at` on."""
        if not self.codec:
            return Member(path, name, self.start + at, size)
        if not self.marks:
            return Member(path, name, self.start, self.length, Packed(self.codec, self.total, at, size))
        begin, end, packed = self._blocks(at, size)
        return Member(path, name, self.start + begin, end - begin, packed)


def members_of_column(path: Path, file: "pyarrow.parquet.ParquetFile", column: int) -> Iterator[Member | None]:
    """Yield a Member, without a name, for each row's value in a column of bytes: its place in the file. None: no value.

    Raises DataError for a column of lists, and for an encoding or compression that is not supported; AudioError for a
    damaged file.
    """
    schema = file.schema.column(column)
    if schema.max_repetition_level:
        raise DataError(
            f"{path}: the column {schema.path} has several values per row; choose a column with one audio file per row"
        )
    for group in range(file.num_row_groups):
        chunk = file.metadata.row_group(group).column(column)
        if not chunk.num_values:
            continue
        dictionary: _Values | None = None
        for page in _read_pages(path, chunk):
            if page.fields[1] == DICTIONARY:
                dictionary = _plain_values(path, _read_content(path, chunk, page), 0)
            elif page.fields[1] in (DATA, DATA_2):
                yield from _row_members(path, chunk, page, schema.max_definition_level, dictionary)


def _read_pages(path: Path, chunk: Any) -> Iterator[_Page]:
    """Yield the pages of a column in one group of rows, each with its header. chunk: The column's metadata."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    while at < end:
        fields, size = _read_header(path, at, end)
        if size + fields[3] > end - at or fields[3] < 0:
            raise _damaged_error(path)
        yield _Page(fields, at + size, fields[3])
        at += size + fields[3]


def _read_header(path: Path, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Read the header of a parquet page; return its fields by number, and the size of the header in bytes."""
    size = HEADER
    while True:
        data = read_span(path, at, min(size, end - at))
        try:
            return _Thrift(data).read_all()
        except IndexError:
            if len(data) == end - at:
                raise _damaged_error(path) from None
            size *= 16  # it contains the smallest and the largest value


def _damaged_error(path: Path) -> AudioError:
    """Return the error for a parquet file whose pages cannot be read."""
    return AudioError(f"{path}: a page of this parquet file is damaged; copy or download the file again")


class _Thrift:
    """Reader of a structure in Thrift's compact protocol. Raises IndexError at the end of its bytes."""

    def __init__(self, data: bytes) -> None:
        """Store the bytes to decode, `data`, from their beginning."""
        self._data, self._at = data, 0

    def read_all(self) -> tuple[dict[int, Any], int]:
        """Read the structure; return its fields by number, and its size in bytes."""
        return self._struct(), self._at

    def _byte(self) -> int:
        """Read the next byte; return it as a number."""
        self._at += 1
        return self._data[self._at - 1]

    def _number(self) -> int:
        """Read an unsigned number: seven bits per byte, the lowest bits first."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _signed(self) -> int:
        """Read a signed number, whose lowest bit is the sign."""
        value = self._number()
        return (value >> 1) ^ -(value & 1)

    def _struct(self) -> dict[int, Any]:
        """Read the fields of a structure: return a dict from field number to value."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        """Read a value of a type: 3 to 6 whole numbers, 7 a float, 8 bytes, 9 and 10 lists, 12 a structure."""
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._number()
            return [self._value(head & 15) for _ in range(count)]
        if kind == 12:
            return self._struct()
        size = 8 if kind == 7 else self._number()
        self._at += size
        if self._at > len(self._data):
            raise IndexError
        return self._data[self._at - size : self._at]


def _read_content(path: Path, chunk: Any, page: _Page) -> _Content:
    """Read the content of a page; for a DATA_2 page, only its values, without levels."""
    fields = page.fields
    levels = fields[8].get(5, 0) + fields[8].get(6, 0) if 8 in fields else 0
    start, length, total = page.start + levels, page.length - levels, fields[2] - levels
    data: bytes | memoryview = read_span(path, start, length)
    if chunk.compression == "UNCOMPRESSED" or (8 in fields and not fields[8].get(7, True)):
        return _Content(start, length, length, data)
    if chunk.compression not in CODECS:
        raise DataError(
            f"{path}: its compression {chunk.compression} is not supported; write the file again with one of "
            f"{', '.join(CODECS)}"
        )
    codec = CODECS[chunk.compression]
    if codec == "snappy":
        stated = next(index for index, byte in enumerate(data[:6]) if byte < 128) + 1  # bytes that state the length
        start, length, data = start + stated, length - stated, memoryview(data)[stated:]
        if marks := snappy_marks(data):
            return _Content(start, length, total, data, codec, marks)
    try:
        return _Content(start, length, total, decompressed(bytes(data), codec, total), codec)
    except (OSError, ValueError):
        raise _damaged_error(path) from None


def snappy_marks(data: bytes | memoryview) -> list[int] | None:
    """Return the offset in compressed snappy data at which each block of 64 KiB (BLOCK, decompressed) begins.

    The last item of the list is the offset of the data's end. Returns None if blocks cannot be decompressed alone: if a
    block refers to an earlier one, or does not begin where a snappy element begins. Google's encoder and all common
    ones compress each block by itself.
    data: Snappy data without the decompressed length at its beginning.
    """
    at = done = 0
    marks = [0]
    while at < len(data):
        kind, value = data[at] & 3, data[at] >> 2
        if kind == 0:
            more = max(0, value - 59)  # bytes that state a long length
            length = (int.from_bytes(data[at + 1 : at + 1 + more], "little") if more else value) + 1
            at += 1 + more + length
        else:
            size = (0, 1, 2, 4)[kind]
            back = int.from_bytes(data[at + 1 : at + 1 + size], "little") + ((value >> 3) << 8 if kind == 1 else 0)
            if back > done % BLOCK:
                return None
            length = (value & 7) + 4 if kind == 1 else value + 1
            at += 1 + size
        before, done = done, done + length
        if done // BLOCK > before // BLOCK:
            if done % BLOCK or length > BLOCK:
                return None
            marks.append(at)
    return marks if done % BLOCK == 0 else [*marks, at]


def _plain_values(path: Path, content: _Content, start: int) -> _Values:
    """Return the values in a parquet page (encoding PLAIN) from byte `start` on: each value follows its size."""
    parts, at = [], start
    while at < content.total:
        size = int.from_bytes(content.part(at, 4), "little")
        parts.append((at + 4, size))
        at += 4 + size
    if at != content.total:
        raise _damaged_error(path)
    return _Values(content, parts)


def _row_members(
    path: Path, chunk: Any, page: _Page, levels: int, dictionary: _Values | None
) -> Iterator[Member | None]:
    """Yield the file position of each row's value in a parquet page, as a Member; None for a row without a value.

    levels: Definition level of a row with a value. Parquet stores a definition level for each row; it is lower for a
    row without a value. dictionary: Values that the page refers to by index.
    """
    content = _read_content(path, chunk, page)
    try:
        defined, start = _rows_with_value(path, page, content, levels)
        values = _read_values(path, page, content, start, int(defined.sum()), dictionary)
    except IndexError:
        raise _damaged_error(path) from None
    if len(values.parts) != defined.sum():
        raise _damaged_error(path)
    following = iter(values.parts)
    for is_defined in defined:
        yield values.content.member(path, "", *next(following)) if is_defined else None


def _rows_with_value(path: Path, page: _Page, content: _Content, levels: int) -> tuple[np.ndarray, int]:
    """Find the rows of a page that have a value; return a flag per row, and the offset of the values in the page.

    levels: Definition level of a row with a value. Parquet stores a definition level for each row; it is lower for a
    row without a value.
    """
    start = 0
    if 8 in page.fields:
        about = page.fields[8]
        packed, count = read_span(path, page.start + about.get(6, 0), about[5]), about[1]
    elif levels:
        count, size = page.fields[5][1], int.from_bytes(content.part(0, 4), "little")
        packed, start = content.part(4, size), 4 + size
    else:
        packed, count = b"", page.fields[5][1]
    if not packed:
        return np.ones(count, bool), start
    return decode_hybrid(packed, levels.bit_length(), count) == levels, start


def _read_values(
    path: Path, page: _Page, content: _Content, start: int, count: int, dictionary: _Values | None
) -> _Values:
    """Return a page's `count` values, from offset `start` on. dictionary: Values that the page refers to by index."""
    encoding = page.fields[8][4] if 8 in page.fields else page.fields[5][2]
    if encoding in INDICES and dictionary:
        packed = content.part(start, content.total - start)
        indices = decode_hybrid(packed[1:], packed[0], count)
        return _Values(dictionary.content, [dictionary.parts[index] for index in indices])
    if encoding == PLAIN:
        return _plain_values(path, content, start)
    raise DataError(
        f"{path}: the encoding {encoding} of its column of audio is not supported; write it again with the "
        "encoding PLAIN, the default of pyarrow"
    )


def decode_hybrid(data: bytes, width: int, count: int) -> np.ndarray:
    """Decode `count` numbers of `width` bits in parquet's hybrid encoding, which mixes repeated and bit-packed numbers.

    Returns: (count,) int64. Raises IndexError if the data ends too early.
    """
    found: list[np.ndarray] = []
    at = done = 0
    while done < count:
        head = shift = 0
        while True:
            byte = data[at]
            head, shift, at = head | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                break
        if head & 1:
            size = (head >> 1) * width
            bits = np.unpackbits(np.frombuffer(data[at : at + size], np.uint8), bitorder="little")
            numbers = bits[: len(bits) // max(1, width) * width].reshape(-1, width) @ (1 << np.arange(width))
        else:
            size = (width + 7) // 8
            numbers = np.full(head >> 1, int.from_bytes(data[at : at + size], "little"))
        if not len(numbers):
            raise IndexError
        found.append(numbers)
        at, done = at + size, done + len(numbers)
    return np.concatenate(found)[:count].astype(np.int64) if found else np.zeros(0, np.int64)
