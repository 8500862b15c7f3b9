"""Score matrices that do not fit into memory, each step in a process of its own for its peak memory (resident, pages of
memory-mapped files included): `python -m pytest -m benchmark -s`. SCORES_SIZE is the number of queries and of clips."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark

SIZE = int(os.environ.get("SCORES_SIZE", "50000"))
LIMIT = 1.5e9 / 2**30  # GiB

_WRITE = """
import sys
from pathlib import Path
import numpy as np
from submission.blocks import block_slices
from submission.formats.score_matrix import Labels, write_blocks
size, seed = int(sys.argv[2]), int(sys.argv[3])
names = [f"{number:06d}.wav" for number in range(size)]
texts = [f"a sound that is called {number} by those who listen to it" for number in range(size)]
labels = Labels([f"q{n}" for n in range(size)], texts, names, names, [[name] for name in names], {"edition": "2024"})
def blocks():
    draws = np.random.default_rng(seed)
    for rows in block_slices(size, size):
        block = draws.random((rows.stop - rows.start, size), dtype=np.float32)
        numbers = np.arange(rows.start, rows.stop)
        block[np.arange(len(block)), numbers] = 1 - 8 * draws.random(len(block), dtype=np.float32) / size
        yield block
write_blocks(Path(sys.argv[1]), labels, blocks())
"""
_VERB = """
import sys
from submission.__main__ import main
assert main(sys.argv[1:]) == 0
"""
_PEAK = """
print("PEAK", int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 2**20)
"""


def measured(root: Path, what: str, code: str, *arguments: object) -> tuple[float, str]:
    began = time.perf_counter()
    command = [sys.executable, "-c", code + _PEAK, *map(str, arguments)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    output, peak = done.stdout.rsplit("PEAK", 1)
    print(f"\n{what}: {time.perf_counter() - began:.0f} s, {float(peak):.2f} GiB resident", flush=True)
    return float(peak), output


def test_memory_of_verbs_with_a_large_score_matrix_is_measured(root: Path, tmp_path: Path) -> None:
    scores, other, ranked = tmp_path / "scores.npy", tmp_path / "blend.npy", tmp_path / "ranked.csv"
    print(f"\n{SIZE:,} queries x {SIZE:,} clips, {4 * SIZE**2 / 1e9:.1f} GB")
    peaks = [measured(root, "written", _WRITE, scores, SIZE, 0)[0]]
    peaks.append(measured(root, "ranked CSV", _VERB, "write", scores, "--out", ranked)[0])
    peak, output = measured(root, "all figures", _VERB, "score", scores, "--json")
    print(json.loads(output)["values"])
    peaks.append(peak)
    peak, output = measured(
        root, "figures from audio to text", _VERB, "score", scores, "--json", "--direction", "audio-to-text"
    )
    peaks.append(peak)
    peaks.append(measured(root, "compared", _VERB, "compare", scores, scores)[0])
    same = tmp_path / "same.npy"
    os.link(scores, same)  # the same bytes under another name
    os.link(scores.with_suffix(".json"), same.with_suffix(".json"))
    blend = ("blend", scores, same, "--how", "standardised", "--out", other)
    peaks.append(measured(root, "blended", _VERB, *blend)[0])
    assert max(peaks) < LIMIT
