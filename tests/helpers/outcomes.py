"""Helpers that read a run, check that a verb refuses, and end a verb in the middle."""

import hashlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

from data_tools.files import read_json, write_json
from submission.formats.score_matrix import read_scores
from system.__main__ import main


def digest(folder: Path) -> str:
    """Return a digest of all weights of a run's last and best checkpoints."""
    hashes = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")) + sorted(folder.rglob("last.pt")):
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)["model"]
        hashes.update(str(path.relative_to(folder)).encode())
        for name in sorted(state):
            hashes.update(name.encode() + state[name].numpy().tobytes())
    return hashes.hexdigest()


def lines(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("seconds", "times")} for line in found]


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of one of a run's JSON files as if the run had written it so."""
    write_json(path, read_json(path) | changes)


def run_recipe(content: dict[str, Any], folder: Path, *options: object) -> Path:
    """Run a recipe; return the folder of the run."""
    recipe = tiny.write_recipe(folder / "r.yaml", content)
    assert main(["run", str(recipe), "--out", str(folder / "run"), *map(str, options)]) == 0
    return folder / "run"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a verb that must fail with sentences; give them back."""
    assert main([str(argument) for argument in arguments]) == 1
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    output = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert output
    return " ".join(output)


def unfinished(run: Path, folder: Path) -> Path:
    """A copy of a finished run as a kill after its last step would leave it."""
    copy = shutil.copytree(run, folder)
    (copy / "result.json").unlink()
    (copy / "finetune/done.json").unlink()
    return copy


def on_call(patch: pytest.MonkeyPatch, owner: Any, name: str, number: int, does: Callable[..., Any]) -> None:
    """Change the call of this number, from 1 on. does: gets the call as it was, and its arguments."""
    original, calls = getattr(owner, name), []

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        call = partial(original, *arguments, **named)
        return does(call, *arguments) if len(calls) == number else call()

    patch.setattr(owner, name, counted)


def signalled(number: int) -> Callable[..., Any]:
    """A call during which a signal arrives."""

    def does(call: Callable[[], Any], *_: object) -> Any:
        signal.raise_signal(number)
        return call()

    return does


def stopped(*_: object) -> None:
    raise KeyboardInterrupt


def kill_after(process: subprocess.Popen[bytes], run: Path, steps: int) -> None:
    """SIGKILL once the run's progress shows this many steps."""
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
        path = run / "steps.txt"
        if path.exists() and len(path.read_text().splitlines()) >= steps:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return
        time.sleep(0.002)
    raise AssertionError(f"the run ended before step {steps}")


COUNTED = """
import sys
from pathlib import Path
import system.training.train
from system.runs.checkpoints import Progress
add, train_stage, place = Progress.add, system.training.train.train_stage, []
def counted(self, *values):
    add(self, *values)
    with (place[0] / "steps.txt").open("a") as file:
        file.write(f"{place[1]} {self.step}\\n")
def placed(recipe, name, run, *rest):
    place[:] = run.folder, name
    train_stage(recipe, name, run, *rest)
Progress.add, system.training.train.train_stage = counted, placed
from submission.formats.score_matrix import read_scores
from system.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def ranked_evaluation(model: Path, world: Path, out: Path, banks: Path | None = None) -> np.ndarray:
    """Rank a data set's evaluation split with a run or an exported model; return the scores (Q, C).

    banks: folder with an exported model's frames; frames of a bank that was filled in another order may differ by the
    rounding of float16.
    """
    more = ["--set", f"banks={banks}"] if banks else []
    assert main(["rank", str(model), str(world), "--split", "evaluation", "--out", str(out), *more]) == 0
    return read_scores(out).values
