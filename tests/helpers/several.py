"""Several processes of one machine that run verbs of the kit together, as torchrun starts them.

    python -m torch.distributed.run --standalone --nproc-per-node N tests/helpers/several.py jobs.json cpu

jobs.json: a list of command lines. They meet once, for all of them.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "0"]


def together(
    processes: int,
    commands: Sequence[Sequence[object]],
    folder: Path,
    device: str = "cpu",
    received: Path | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run verbs of `system` one after the other, by several processes. folder: takes the list of them. received: takes
    the mean norm of the gradients."""
    jobs = folder / f"jobs{processes}.json"
    jobs.write_text(json.dumps([list(map(str, command)) for command in commands]))
    command = [*TORCHRUN, "--nproc-per-node", str(processes), __file__, str(jobs), device, str(received or "")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


def ranks_of(launcher: int) -> dict[int, int]:
    """The processes that a torchrun has started and that live, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0") if parent == launcher else []
        except OSError:
            continue
        found |= {int(text[5:]): int(folder.name) for text in variables if text.startswith(b"RANK=")}
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    import torch

    from system.__main__ import main
    from system.processes import exit_process, is_first, processes
    from system.training import train

    norms: list[float] = []
    gradients = train.add_gradients

    def measured(*arguments: Any) -> dict[str, float]:
        found = gradients(*arguments)
        squares = sum(float(p.grad.double().square().sum()) for p in arguments[0].parameters() if p.grad is not None)
        norms.append(squares**0.5)
        return found

    train.add_gradients = measured
    torch.set_num_threads(1)
    with processes(torch.device(sys.argv[2])):
        for job in json.loads(Path(sys.argv[1]).read_text()):
            if status := main([*job, "--device", sys.argv[2]]):
                exit_process(status)
        if sys.argv[3] and is_first():
            Path(sys.argv[3]).write_text(json.dumps({"norm": sum(norms) / len(norms)}))
    exit_process(0)
