"""A kill at every file operation of the verbs that write: the same command then finishes whatever was left.

At every eighth operation, from one that LBAR_SEED draws on.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
from outcomes import digest, lines
from placed_kills import killing
from sandboxes import FAST, Sandbox, falling_scores, serving, stored, write_scores

from submission.formats.score_matrix import read_scores
from system.__main__ import main

pytestmark = pytest.mark.slow
STRIDE = 8


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


@pytest.fixture
def kills(work, tmp_path):
    with killing(work, tmp_path / "kill_at.so") as server:
        yield server


@pytest.fixture
def small(tmp_path):
    """A recipe of one stage of two steps; its banks are full."""
    world = tiny.make_world(tmp_path / "tones", {"development": 8, "validation": 4, "evaluation": 12})
    only = tiny.stage(epochs=2, steps_per_epoch=1, batch_size=4)
    path = tiny.write_recipe(tmp_path / "small.yaml", tiny.recipe(world, tmp_path, only=only))
    assert main(["run", "--until=features", str(path)]) == 0
    return path


def fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def left(folder: Path) -> list[Path]:
    """Temporary files that nobody will ever look for again."""
    return sorted(folder.rglob(".*.part"))


def test_killed_run_resumes_with_the_same_result(kills, work, small, tmp_path):
    whole = tmp_path / "whole"
    uninterrupted = kills.run(["system", "run", small, "--out", whole])  # with the same number of threads
    assert uninterrupted.status == 0, uninterrupted.errors
    expected = digest(whole), lines(whole), read_scores(whole / "scores/evaluation.npy").values.tobytes()

    def check(when: str) -> None:
        scores = read_scores(work / "scores/evaluation.npy").values.tobytes()
        assert (digest(work), lines(work), scores) == expected, when
        assert (work / "recipe.yaml").read_bytes() == small.read_bytes(), when
        assert (work / "submission/evaluation.csv").read_bytes() == (whole / "submission/evaluation.csv").read_bytes()
        assert left(work) == [], when

    command = ["system", "run", small, "--out", work]
    assert kills.everywhere(command, lambda: fresh(work), check, STRIDE) >= 60 // STRIDE


def test_killed_features_verb_resumes_without_damaged_frames(kills, work, small, tmp_path):
    banks = tmp_path / "banks"
    (name,) = (path.name for path in banks.iterdir() if path.is_dir())

    def keys(folder: Path) -> set[str]:
        return {line.split()[0] for index in folder.glob("*.index") for line in index.read_text().splitlines()}

    def check(when: str) -> None:
        assert keys(work / name) == keys(banks / name)
        assert main(["run", "--until=features", str(small), "--set", f"banks={work}"]) == 0, when
        found = [path.name for path in left(work)]  # a bank has no lock: another machine may be writing its bank.json
        assert all(name.startswith(".bank.json.") for name in found), when

    command = ["system", "run", "--until=features", small, "--set", f"banks={work}"]
    assert kills.everywhere(command, lambda: fresh(work), check, STRIDE) >= 30 // STRIDE


@pytest.mark.parametrize(("out", "more"), [("scores.npy", []), ("best.csv", ["--top", "3"])])
def test_rank_verb_run_again_after_a_kill_gives_the_same_result(out, more, kills, work, small, tmp_path):
    run = tmp_path / "run"
    assert main(["run", "--until=training", str(small), "--out", str(run)]) == 0
    rank = ["system", "rank", run, tmp_path / "tones/evaluation", tmp_path / "q.csv", *more]
    (tmp_path / "q.csv").write_text("caption\na deep tone\na shrill hum\n")
    whole = tmp_path / "whole" / out
    uninterrupted = kills.run([*rank, "--cache", tmp_path / "cache", "--out", whole])
    assert uninterrupted.status == 0, uninterrupted.errors

    def check(when: str) -> None:
        if out.endswith(".csv"):
            assert (work / out).read_bytes() == whole.read_bytes(), when
            return
        found, expected = read_scores(work / out), read_scores(whole)  # which are of one checksum each
        assert (found.query_texts, found.clip_ids) == (expected.query_texts, expected.clip_ids), when
        assert np.allclose(found.values, expected.values, rtol=0, atol=1e-6), when  # other clips shared their batches

    command = [*rank, "--cache", work / "cache", "--out", work / out]
    assert kills.everywhere(command, lambda: fresh(work), check, STRIDE) >= 8 // STRIDE


SOUNDS = 60


@pytest.fixture(scope="module")
def site():
    with serving("--sounds", str(SOUNDS)) as variables:
        yield variables


def test_killed_crawl_resumes_with_the_same_store(site, work, tmp_path):
    store = work / "store.sqlite"
    wholes: set[tuple[tuple[object, ...], ...]] = set()

    def check(when: str) -> None:
        wholes.add(tuple(stored(store)))
        assert len(wholes) == 1, when

    with killing(work, tmp_path / "kill_at.so", site) as kills:
        command = ["data_tools", "crawl", store, *FAST]
        assert kills.everywhere(command, lambda: fresh(work), check, STRIDE) >= 30 // STRIDE


def test_killed_fetch_resumes_with_the_same_files(site, work, tmp_path):
    store, out = tmp_path / "store.sqlite", work / "audio"
    scores = write_scores(tmp_path / "scores.csv", falling_scores(Sandbox(SOUNDS)))
    contents: set[tuple[tuple[str, bytes], ...]] = set()

    def check(when: str) -> None:
        kept = sorted(path for path in out.iterdir() if path.suffix in (".flac", ".jsonl", ".csv"))
        contents.add(tuple((path.name, path.read_bytes()) for path in kept))
        assert len(contents) == 1, when
        assert len(list(out.glob("*.flac"))) == 3, when
        assert left(work) == [], when

    with killing(work, tmp_path / "kill_at.so", site) as kills:
        assert kills.run(["data_tools", "crawl", store, *FAST]).status == 0
        fetch = ["data_tools", "fetch", store, "--scores", scores, "--exclude", "none", "--out", out, "--limit", "3"]
        assert kills.everywhere(fetch, lambda: fresh(work), check, STRIDE) >= 20 // STRIDE
