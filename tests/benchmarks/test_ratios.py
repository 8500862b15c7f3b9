"""Speed as ratios measured in one run: `python -m pytest -m benchmark -s`. Nothing here fails for being slow."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny import store_all

from submission.ordering import relevant_ranks
from system.features.bank import Bank

pytestmark = pytest.mark.benchmark


def median_seconds(work: Callable[[], object], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[times // 2]


def report(name: str, ours: float, other: float, what: str) -> None:
    print(f"\n{name}: {ours * 1e3:.1f} ms, {what}: {other * 1e3:.1f} ms, ratio {other / ours:.1f}")


def test_frames_of_clips_are_read_faster_from_a_bank_than_from_one_file_per_clip(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    bank = Bank(tmp_path / "bank", 2048, "float16", {})
    series = {str(n): random.normal(size=(70, 2048)).astype(np.float16) for n in range(512)}
    store_all(bank, series.items())
    for key, values in series.items():
        np.save(tmp_path / f"{key}.npy", values)
    keys = random.permutation(list(series))[:256].tolist()
    ours = median_seconds(lambda: [np.array(bank.read(key)) for key in keys])
    files = median_seconds(lambda: [np.load(tmp_path / f"{key}.npy") for key in keys])
    report("256 clips from the bank", ours, files, "from a file a clip")
    assert all(np.array_equal(bank.read(key), np.load(tmp_path / f"{key}.npy")) for key in keys)


def test_ranking_time_is_compared_with_sorting_every_row() -> None:
    values = np.random.default_rng(0).normal(size=(5225, 1045)).astype(np.float32)
    relevant = [[row // 5] for row in range(5225)]
    names = [f"{n:04d}" for n in range(1045)]

    def sorting() -> list[int]:
        return [
            1 + int(np.flatnonzero(np.argsort(-row, kind="stable") == own[0])[0])
            for row, own in zip(values, relevant, strict=True)
        ]

    ours = median_seconds(lambda: relevant_ranks(values, relevant, names))
    report("ranks of 5,225 queries x 1,045 clips", ours, median_seconds(sorting, 1), "a sort a query")
    assert relevant_ranks(values, relevant, names)[:, 0].tolist() == sorting()


@pytest.mark.parametrize(
    "command",
    [
        ["system", "check", "recipes/quickstart.yaml"],
        ["system", "--help"],
        ["data_tools", "--help"],
        ["submission", "--help"],
    ],
)
def test_start_time_of_commands_is_compared_with_importing_torch(root: Path, command: list[str]) -> None:
    run = lambda *arguments: subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, check=True)  # noqa: E731
    ours = median_seconds(lambda: run("-m", *command), 3)
    report(" ".join(command), ours, median_seconds(lambda: run("-c", "import torch"), 3), "importing torch alone")
