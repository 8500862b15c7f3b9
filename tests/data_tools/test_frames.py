"""Files of frames: read without change; damaged, huge and foreign ones are refused with the file's name."""

import io
import json
import os
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_files import findings
from quick import first_quick

from data_tools.__main__ import main
from data_tools.audio import frames as frames_of_files
from data_tools.audio.frames import read_frames
from data_tools.audio.read import AudioError

FRAMES = np.random.default_rng(0).normal(0, 1, (6, 4)).astype(np.float32)
HEADER = 128  # bytes of the header of a small .npy file


def npy(array: np.ndarray = FRAMES, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def npz(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def npy_of(text: str, content: bytes = b"") -> bytes:
    """An .npy file with any header."""
    header = text.ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + content


def header(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "i1", "<u2"])
def test_npy_and_npz_frames_of_any_format_version_and_number_type_are_read(
    tmp_path: Path, version: tuple[int, int], dtype: str
) -> None:
    array = np.arange(-12 * (dtype[-2] != "u"), 12).reshape(-1, 4).astype(dtype)
    for content in (array, np.asfortranarray(array)):
        (tmp_path / "a.npy").write_bytes(npy(content, version))
        for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            (tmp_path / "a.npz").write_bytes(npz({"x.npy": npy(content, version)}, compression))
            for name in ("a.npy", "a.npz"):
                found = read_frames(tmp_path / name)
                assert found.dtype == np.float32
                assert np.array_equal(found, array)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", first_quick(["a.npz", "a.npy", "v2.npy", "b.npz"], 1))
def test_flipped_header_bit_of_a_frames_file_is_refused_or_changes_no_value(tmp_path: Path, name: str) -> None:
    """b.npz is compressed. Its frames are read if the flipped bit means nothing, such as a bit of the file's date."""
    data = {
        "a.npy": npy(),
        "v2.npy": npy(version=(2, 0)),
        "a.npz": npz({"x.npy": npy()}),
        "b.npz": npz({"x.npy": npy()}, zipfile.ZIP_DEFLATED),
    }[name]
    content = FRAMES.nbytes if name.endswith(".npy") else 0
    refused = 0
    for bit in range(8 * (len(data) - content)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(flipped)
        try:
            found = read_frames(tmp_path / name)
        except AudioError as error:
            refused += 1
            assert str(error).startswith(f"{tmp_path / name}: ")  # noqa: PT017
        else:
            assert np.array_equal(found, FRAMES), bit
    assert refused > 100


NUMBERS = npy()[HEADER:]
BAD = {
    "more rows than bytes": (
        npy_of(header("(9, 4)"), NUMBERS),
        r"float32 of shape \(9, 4\), 144 bytes, but 96 are pres",
    ),
    "fewer rows than bytes": (npy_of(header("(2, 4)"), NUMBERS), r"shape \(2, 4\), 32 bytes, but 96 are present"),
    "terabytes": (npy_of(header("(999999999999, 768)"), NUMBERS), r"at most 268,435,456 values can be read"),
    "negative": (npy_of(header("(-6, -4)"), NUMBERS), "cannot be read as frames|not frames of numbers"),
    "overflow": (npy_of(header("(4294967296, 4294967296)"), NUMBERS), "at most 268,435,456 values"),
    "open bracket": (npy_of(header("(6, 4"), NUMBERS), "cannot be read as frames"),
    "unknown type": (npy_of(header("(6, 4)", "'<q9'"), NUMBERS), "cannot be read as frames"),
    "structure": (npy_of(header("(6, 4)", "[('a', '<f4')]"), NUMBERS), r"not frames of numbers"),
    "array in array": (npy_of(header("(6, 4)", "('<f4', (2,))"), NUMBERS), "cannot be read as frames|not frames"),
    "objects": (
        npy(np.array([[{}]], object)),
        r"contains pickled objects, not frames; save it as an array of numbers",
    ),
    "dates": (npy(np.zeros((2, 2), "M8[s]")), "not frames of numbers"),
    "complex": (npy(FRAMES.astype(complex)), "not frames of numbers"),
    "true and false": (npy(FRAMES > 0), "not frames of numbers"),
    "scalar": (npy(np.float32(1)), r"float32 of shape \(\), not frames"),
    "no values": (npy(FRAMES[:, :0]), r"shape \(6, 0\), not frames"),
    "three axes": (npy(FRAMES[None]), r"shape \(1, 6, 4\), not frames"),
    "too loud": (npy(FRAMES * np.float32(1e30)), "above the maximum of 65,504 \\(float16\\)"),
    "cut in the header": (npy()[:60], "cannot be read as frames"),
    "text": (b"<html>404</html>", "cannot be read as frames"),
    "nothing": (b"", "cannot be read as frames"),
}


@pytest.mark.parametrize("name", BAD)
def test_npy_files_that_are_not_complete_frames_are_refused(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    (tmp_path / "a.npy").write_bytes(content)
    (tmp_path / "a.npz").write_bytes(npz({"x.npy": content}))
    for path in (tmp_path / "a.npy", tmp_path / "a.npz"):
        with pytest.raises(AudioError, match=message) as caught:
            read_frames(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("row", [0, 3, 5])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_frames_with_one_nan_or_infinite_value_are_refused(tmp_path: Path, row: int, value: float) -> None:
    frames = FRAMES.copy()
    frames[row, -1] = value
    np.savez(tmp_path / "a.npz", first=FRAMES, second=frames)
    with pytest.raises(AudioError, match=r"a\.npz: has frames that are not finite"):
        read_frames(tmp_path / "a.npz")
    assert np.array_equal(read_frames(tmp_path / "a.npz", "first"), FRAMES)


def archives() -> dict[str, tuple[bytes, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of a name that comes twice
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", npy())
            archive.writestr("x.npy", npy())
    whole = npz({"x.npy": npy()})
    central = whole.index(b"PK\1\2")
    encrypted = bytearray(whole)
    encrypted[6] |= 1
    encrypted[central + 8] |= 1
    method = bytearray(whole)
    method[8:10] = method[central + 10 : central + 12] = b"\x63\0"
    damaged = bytearray(whole)
    damaged[whole.index(NUMBERS) + 5] ^= 8
    return {
        "no array": (npz({"x.npy": npy(), "readme.txt": b"read me"}), "contains 'readme.txt', which is not an array"),
        "array in name alone": (npz({"x.npy": b"read me"}), "cannot be read as frames"),
        "folder": (npz({"x.npy/": b""}), "which is not an array"),
        "twice": (file.getvalue(), r"has two arrays of the same name \(x\.npy, x\.npy\)"),
        "encrypted": (bytes(encrypted), "cannot be read as frames .*encrypted"),
        "compression": (bytes(method), "cannot be read as frames"),
        "checksum": (bytes(damaged), "cannot be read as frames .*CRC"),
        "empty": (npz({}), "contains no array; copy, download or save the file again"),
        "cut": (whole[:-30], "cannot be read as frames"),
    }


@pytest.mark.parametrize("name", archives())
def test_damaged_npz_file_of_frames_is_refused(tmp_path: Path, name: str) -> None:
    content, message = archives()[name]
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(AudioError, match=message):
        read_frames(tmp_path / "a.npz")


def test_npz_file_that_unpacks_to_gigabytes_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_of_files, "MAX_FRAME_VALUES", 1_000_000)
    (tmp_path / "a.npz").write_bytes(npz({"x.npy": npy(np.zeros((2_000_000, 4), "<f4"))}, zipfile.ZIP_DEFLATED))
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(npy_of(header("(2000000000, 768)")))
        file.truncate(2**42)  # the disk stores nothing of it
    tracemalloc.start()
    for name in ("a.npz", "a.npy"):
        with pytest.raises(
            AudioError, match=rf"{name}: the array is too large \([0-9,]+ bytes\), at most 1,000,000 values"
        ):
            read_frames(tmp_path / name)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_named_pipe_given_as_a_frames_file_is_refused(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"a{suffix}")
    with pytest.raises(AudioError, match="is a pipe or a device; give a regular file"):
        read_frames(tmp_path / f"a{suffix}")


def test_check_lists_damaged_frames_files_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = {name: content for name, (content, _) in BAD.items()}
    for number, content in enumerate([*contents.values(), npy()]):
        (tmp_path / f"{number}.npy").write_bytes(content)
    os.mkfifo(tmp_path / "pipe.npy")
    names = [f"{number}.npy" for number in range(len(contents) + 1)] + ["pipe.npy"]
    lines = [json.dumps({"id": name, "path": name, "captions": ["x"]}) + "\n" for name in names]
    (tmp_path / "m.jsonl").write_text("".join(lines))
    corrupt = [name for named in findings(tmp_path / "m.jsonl")["corrupt audio files"].values() for name in named]
    assert sorted(corrupt) == sorted(set(names) - {f"{len(contents)}.npy"})
    assert main(["check", str(tmp_path / "m.jsonl")]) == 1
    assert "corrupt audio files (21)" in capsys.readouterr().out


@pytest.mark.parametrize("version", [(7, 0), (2, 9), (1, 3)])
def test_npy_file_of_an_unknown_version_is_refused(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((3, 2), np.float32))
    content = bytearray(path.read_bytes())
    content[6:8] = bytes(version)
    path.write_bytes(bytes(content))
    with pytest.raises(AudioError, match="version"):
        read_frames(path, None)


def test_frames_in_fortran_order_keep_their_values(tmp_path: Path) -> None:
    frames = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "a.npy", np.asfortranarray(frames))
    assert read_frames(tmp_path / "a.npy", None).tolist() == frames.tolist()
