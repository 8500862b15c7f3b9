"""Fixtures of all tests: real data, the checkout, and a run trained on a tiny data set."""

import functools
import gc
import logging
import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is imported; a worker of pytest-xdist has a core

import pytest
import tiny
import tiny_moments
import typer
from browser import browser  # noqa: F401  a fixture
from data_files import publish_clotho
from ranked import write_truth

from data_tools.__main__ import main as data_tools
from system.__main__ import main
from system.runs import plots

ROOT = Path(__file__).resolve().parent.parent
DiskUsage = namedtuple("DiskUsage", "total used free")

os.fsync = lambda number: None  # no test cuts the power, and waiting for the disk would take a tenth of the time
gc.set_threshold(20_000, 20, 20)  # 700, 10, 10 would take a twelfth of the suite's time
typer.main.get_command = functools.cache(typer.main.get_command)  # 10 to 20 ms a command
draw_curves, plots._draw_curves = plots._draw_curves, lambda path, *rest: path  # most of the time of a tiny run


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker whole files of fast tests, so that the fixtures of a module are made once."""
    from xdist.scheduler import LoadFileScheduling, LoadScheduling

    is_fast = "not slow" in config.option.markexpr
    return (LoadFileScheduling if is_fast else LoadScheduling)(config, log)


LIMIT = 4.5  # seconds of process time, with child processes: 3 on an idle machine, and half as much on a busy one


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a fast test that takes long. A test that imports large packages as the first one of its worker may."""
    modules, before = len(sys.modules), sum(os.times()[:4])
    yield
    seconds = sum(os.times()[:4]) - before
    is_fast = not (item.get_closest_marker("slow") or item.get_closest_marker("benchmark"))
    is_measured = is_fast and bool(os.environ.get("LBAR_REQUIRE_FAST"))  # other machines may be slower
    if is_measured and seconds > LIMIT and len(sys.modules) < modules + 50:
        pytest.fail(
            f"{seconds:.1f} s of process time, {LIMIT:g} at most: share a fixture, take less data, or mark it slow"
        )


def pytest_collection_finish() -> None:
    """Freeze the objects of packages and of the list of tests: they live to the end, so the collector may skip them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared():
    """The folder of real captions, submissions and recordings; LBAR_SHARED names it.

    Without it the test skips, or fails where LBAR_REQUIRE_DATA is set.
    """
    folder = Path(os.environ.get("LBAR_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        output = f"needs real data: no folder {folder}/data (set LBAR_SHARED)"
        pytest.fail(output) if os.environ.get("LBAR_REQUIRE_DATA") else pytest.skip(output)
    return folder


@pytest.fixture(scope="session")
def goldens():
    """Folder with outputs of the original implementations; see its README."""
    return ROOT / "tests" / "golden"


class _Collapses(logging.Handler):
    """Messages of the collapse watch."""

    def __init__(self) -> None:
        super().__init__()
        self.output: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "COLLAPSED" in record.getMessage():
            self.output.append(record.getMessage())


@pytest.fixture(scope="session", autouse=True)
def collapses():
    handler = _Collapses()
    logging.getLogger("system").addHandler(handler)
    yield handler
    logging.getLogger("system").removeHandler(handler)


@pytest.fixture(autouse=True)
def _no_model_collapses(request, collapses):
    yield
    output, collapses.output = collapses.output, []
    assert not output or request.node.get_closest_marker("collapses"), output[0]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory):
    """Embeddings of clips are kept for one test at most, in a folder that is made when it is written to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache-{uuid4().hex}"))


@pytest.fixture(autouse=True)
def _roomy_disk(monkeypatch):
    """No plan that is tested depends on the free space of this machine; a test of full disks sets its own."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(2**42, 0, 2**42))


@pytest.fixture(scope="module")
def curves():
    """Runs draw their curves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_draw_curves", draw_curves)
        yield


@pytest.fixture
def baseline(shared):
    """The ranked CSV of the 2022 baseline."""
    return shared / "data/dcase2022_baseline/test.output.csv"


@pytest.fixture
def clotho(shared):
    """Clotho's captions by split."""
    return lambda split: shared / f"data/clotho/clotho_captions_{split}.csv"


@pytest.fixture(scope="session")
def published_clotho(shared, tmp_path_factory):
    """A folder of all of Clotho as published, but for the length of its sounds."""
    return publish_clotho(shared, tmp_path_factory.mktemp("clotho"))


@pytest.fixture(scope="session")
def clotho_manifest(published_clotho, tmp_path_factory):
    path = tmp_path_factory.mktemp("manifests") / "clotho.jsonl"
    assert data_tools(["clotho", str(published_clotho), "--out", str(path)]) == 0
    return path


@pytest.fixture
def truth_path(tmp_path):
    """Captions of the small pool of ranked.py."""
    return write_truth(tmp_path)


@pytest.fixture(scope="session")
def root():
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A manifest of tones. All recipes over it share its folder of frames, and copies of it take them along."""
    manifest = tiny.make_world(tmp_path_factory.mktemp("world") / "tones", tiny.SIZES)
    (manifest.parent / "banks").mkdir()
    return manifest


@pytest.fixture(scope="session")
def moments_manifest(tmp_path_factory):
    manifest = tiny_moments.make_moments(tmp_path_factory.mktemp("moments") / "world")
    (manifest.parent / "banks").mkdir()
    return manifest


@pytest.fixture(scope="session")
def moments_run(moments_manifest, tmp_path_factory):
    """A finished run of moments; r.yaml in the same folder is its recipe."""
    folder = tmp_path_factory.mktemp("moments_runs")
    path = tiny.write_recipe(folder / "r.yaml", tiny_moments.recipe(moments_manifest, folder))
    assert main(["run", str(path), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="session")
def recipe(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    return tiny.write_recipe(folder / "two.yaml", tiny.recipe(world, folder, **tiny.two_stages()))


@pytest.fixture(scope="session")
def unbroken(recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "run"
    assert main(["run", str(recipe), "--out", str(out)]) == 0
    return out
