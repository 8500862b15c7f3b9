"""Reads that fail: only a missing file is left out; every other error ends the command with its reason, and resumes."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny

from data_tools.audio import content_key, read_audio, sound_problem
from data_tools.errors import AudioError
from data_tools.frames import read_frames
from submission.formats.score_matrix import read_scores
from system.features.contents import ContentKeys

CODES = {name: getattr(errno, name) for name in ("EIO", "ESTALE", "EMFILE", "ENOMEM", "EACCES", "ENOENT")}
FAILED = "development 003.wav"


def raising(code: int) -> Callable[..., object]:
    def fails(path: object, *_: object, **__: object) -> object:
        raise OSError(code, os.strerror(code))

    return fails


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("call", ["stat", "open"])
def test_missing_file_raises_audio_error_and_other_read_errors_stay_os_errors(
    name: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"x")
    keys = ContentKeys(tmp_path / "banks")
    expected = AudioError if name == "ENOENT" else OSError
    target = "data_tools.files.hashlib.file_digest" if call == "open" else "pathlib.Path.stat"
    with monkeypatch.context() as patch:
        patch.setattr(target, raising(CODES[name]))
        with pytest.raises(expected) as caught:
            keys(str(path))
    if isinstance(caught.value, OSError):
        assert caught.value.errno == CODES[name]
    if call == "open" and name != "ENOENT":
        assert caught.value.filename == str(path)  # type: ignore[union-attr]
    assert keys(str(path)) == content_key(path), "nothing is remembered of the failure"
    keys.close()


@pytest.mark.parametrize("read", [sound_problem, lambda path: read_audio(path, 16_000)])
def test_unreadable_audio_file_is_not_reported_as_damaged(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libsndfile takes a failed read for the end of the file."""
    whole = tmp_path / "a.wav"
    tiny.make_world(tmp_path / "world", {"development": 1})
    shutil.copy(next((tmp_path / "world/development").iterdir()), whole)
    monkeypatch.setattr("soundfile.SoundFile.read", lambda *_, **__: np.zeros((0, 1), np.float32))
    with pytest.raises(AudioError, match="cut"):
        read(whole)
    monkeypatch.setattr("data_tools.audio.checksum", raising(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        read(whole)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("name", [name for name in CODES if name != "ENOENT"])
def test_unreadable_frames_file_is_not_reported_as_damaged(
    suffix: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a{suffix}"
    frames = np.ones((3, 2), np.float32)
    np.save(path, frames) if suffix == ".npy" else np.savez(path, frames)
    assert read_frames(path).shape == (3, 2)
    monkeypatch.setattr("pathlib.Path.open" if suffix == ".npy" else "zipfile.ZipFile.open", raising(CODES[name]))
    with pytest.raises(OSError, match=os.strerror(CODES[name])) as caught:
        read_frames(path)
    assert caught.value.filename == str(path)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        output = "needs a C compiler (cc) for fail_reads.c"
        pytest.fail(output) if os.environ.get("LBAR_REQUIRE_DATA") else pytest.skip(output)
    made = tmp_path_factory.mktemp("reads") / "fail_reads.so"
    source = Path(__file__).parents[1] / "helpers/fail_reads.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", made, source, "-ldl"], check=True)
    return made


def verb(library: Path, call: str, code: int, *argv: object) -> "subprocess.CompletedProcess[str]":
    failing = {"LD_PRELOAD": str(library), "FAIL_CALL": call, "FAIL_ERRNO": str(code), "FAIL_READS": FAILED}
    command = [sys.executable, "-m", *map(str, argv)]
    settings = os.environ | (failing if call else {})
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("call", ["stat", "open", "read"])
def test_failed_reads_are_reported_by_every_verb_without_traceback(
    name: str, call: str, library: Path, tmp_path: Path
) -> None:
    manifest = tiny.make_world(tmp_path / "world", {"development": 8, "validation": 4, "evaluation": 12}, 2)
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    features = verb(library, call, CODES[name], "system", "features", recipe)
    assert "Traceback" not in features.stderr
    if name == "ENOENT":
        assert features.returncode == 0
        assert "1 broken and skipped" in features.stdout
    else:
        assert features.returncode == 1
        assert f"error: {tmp_path}/world/development/{FAILED}: " in features.stderr
        assert "left out" not in features.stderr
    checked = verb(library, call, CODES[name], "data_tools", "check", manifest)
    assert checked.returncode == 1
    assert FAILED in checked.stdout + checked.stderr
    assert "Traceback" not in checked.stderr


@pytest.mark.slow
def test_run_ended_by_a_read_error_resumes_with_all_clips(library: Path, tmp_path: Path) -> None:
    manifest = tiny.make_world(tmp_path / "world", {"development": 8, "validation": 4, "evaluation": 12}, 2)
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path, only=tiny.stage(epochs=1)))
    failed, whole = ("system", "run", recipe, "--out", tmp_path / "run"), tmp_path / "whole"
    assert verb(library, "read", errno.EIO, *failed).returncode == 1
    assert verb(library, "", 0, *failed).returncode == 0
    assert verb(library, "", 0, "system", "run", recipe, "--out", whole, "--set", f"banks={tmp_path}/b").returncode == 0
    first, second = (read_scores(folder / "scores/evaluation.npy").values for folder in (tmp_path / "run", whole))
    assert np.array_equal(first, second)
