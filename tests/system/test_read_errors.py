"""Reads that fail: only a missing file is left out; every other error ends the command with its reason, and resumes."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

from submission.formats.score_matrix import read_scores

CODES = {name: getattr(errno, name) for name in ("EIO", "ENOENT")}
FAILED = "development 003.wav"


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
@pytest.mark.parametrize("call", ["open", "read"])
def test_failed_reads_are_reported_by_every_verb_without_traceback(
    name: str, call: str, library: Path, tmp_path: Path
) -> None:
    manifest = tiny.make_world(tmp_path / "world", {"development": 8, "validation": 4, "evaluation": 12}, 2)
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    features = verb(library, call, CODES[name], "system", "run", "--until=features", recipe)
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
