"""Files of published frames in place of audio."""

import numpy as np
import pytest

from data_tools.arrays import holds_frames, read_frames
from data_tools.errors import AudioError

FRAMES = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "int16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_frames_of_any_number_type_keep_their_values(tmp_path, dtype, order):
    np.save(tmp_path / "x.npy", np.asarray(FRAMES, dtype, order=order))
    np.savez_compressed(tmp_path / "x.npz", first=FRAMES.astype(dtype), other=FRAMES[:2].astype(dtype))
    for path, array in ((tmp_path / "x.npy", None), (tmp_path / "x.npz", None), (tmp_path / "x.npz", "first")):
        found = read_frames(path, array)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, FRAMES)
    assert read_frames(tmp_path / "x.npz", "other").shape == (2, 3)


BAD = {
    "one dimension": FRAMES[0],
    "no frames": FRAMES[:0],
    "nan behind the first row": np.where(FRAMES == 11, np.nan, FRAMES),
    "infinite": np.where(FRAMES == 5, -np.inf, FRAMES),
    "above float16": FRAMES * 1e4,
    "text": np.array([["a"]]),
    "objects": np.array([[{}]], dtype=object),
}


@pytest.mark.parametrize("kind", BAD)
def test_arrays_that_are_not_frames_are_refused(tmp_path, kind):
    np.save(tmp_path / "x.npy", BAD[kind])
    np.savez(tmp_path / "x.npz", good=FRAMES, bad=BAD[kind])
    for path, array in ((tmp_path / "x.npy", None), (tmp_path / "x.npz", "bad")):
        with pytest.raises(AudioError, match=f"^{path}: "):
            read_frames(path, array)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_damaged_or_missing_file_is_refused(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    np.save(path, FRAMES) if suffix == "npy" else np.savez(path, FRAMES)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-1], b"", b"<html>" * 99):
        path.write_bytes(content)
        with pytest.raises(AudioError, match=f"^{path}: "):
            read_frames(path)
    path.unlink()
    with pytest.raises(AudioError):
        read_frames(path)
    np.savez(tmp_path / "y.npz", FRAMES)
    with pytest.raises(AudioError):
        read_frames(tmp_path / "y.npz", "absent")


def test_suffix_tells_frames_from_audio():
    assert [holds_frames(name) for name in ("a.npz", "a.NPY", "a.wav", "npz")] == [True, True, False, False]
