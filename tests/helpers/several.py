"""Several processes of one machine that run verbs of the kit together, as torchrun starts them.

    python -m torch.distributed.run --standalone --nproc-per-node N tests/helpers/several.py jobs.json

jobs.json: a list of command lines. They meet once, for all of them.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "0"]


def together(processes: int, commands: Sequence[Sequence[str]], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run verbs of `system` one after the other, by several processes. folder: takes the list of them."""
    jobs = folder / f"jobs{processes}.json"
    jobs.write_text(json.dumps([list(map(str, command)) for command in commands]))
    command = [*TORCHRUN, "--nproc-per-node", str(processes), __file__, str(jobs)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    import torch

    from system.__main__ import main
    from system.compute.distributed import leave, processes

    torch.set_num_threads(1)
    with processes(torch.device("cpu")):
        for job in json.loads(Path(sys.argv[1]).read_text()):
            if status := main(job):
                leave(status)
    leave(0)
