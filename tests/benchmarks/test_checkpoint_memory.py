"""Memory of a checkpoint that is written while training goes on: at most 1.2 times the state."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark

SAVE = """
import json
import re
import sys
from pathlib import Path

import torch

from system.runs.checkpoints import CheckpointWriter

def kibibytes(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

weights = {f"layer{n}.weight": torch.ones(1024, 4096) for n in range(16)}
moments = {n: {"exp_avg": torch.ones(1024, 4096), "exp_avg_sq": torch.ones(1024, 4096)} for n in range(16)}
state = {"model": weights, "optimizer": {"state": moments}, "best": {"loss": [[0.5, 1]]}, "epoch": 1}
size = 3 * 16 * 1024 * 4096 * 4
writer = CheckpointWriter(Path(sys.argv[1]))
before = kibibytes("VmRSS")
writer.save(state, weights)
writer.close()
print(json.dumps([1024 * (kibibytes("VmHWM") - before), size, writer.sha256]))
"""


def test_writing_a_checkpoint_needs_less_memory_than_1_2_times_its_size(root: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(tmp_path)], capture_output=True, text=True, env=environment, check=True
    )
    peak, size, checksums = json.loads(done.stdout)
    print(f"\na state of {size / 2**20:.0f} MiB: {peak / size:.2f} times as much memory")
    assert sorted(checksums) == ["e0001.safetensors", "last.pt"]
    assert peak < 1.2 * size
