"""metrics.jsonl of a run: the lines that its checkpoints hold, and no others."""

import json
import logging

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import write_text
from submission.runs.record import EpochLine
from system.runs.folder import Run

log = logging.getLogger(__name__)


def lines_in_file(run: Run, stage: str, epochs: int) -> list[EpochLine]:
    """A stage's lines of metrics.jsonl up to an epoch, for checkpoints of an earlier release, which do not hold them.

    KitError where there are fewer: nothing can make them again.
    """
    lines = run.read_metrics("put the lost lines back, or start a new run") if run.metrics.exists() else []
    found = [line for line in lines if line.stage == stage and line.epoch <= epochs]
    if len(found) != epochs:
        raise KitError(
            f"{run.metrics} has {counted(len(found), 'epoch')} of stage {stage}, of which {epochs} were trained; "
            "put the lost lines back, or start a new run"
        )
    return found


def write_metrics(run: Run, lines: list[EpochLine]) -> None:
    """Have metrics.jsonl hold the lines that the checkpoints do, and no others."""
    text = "".join(json.dumps(line.document()) + "\n" for line in lines).encode()
    there = run.metrics.read_bytes() if run.metrics.exists() else b""
    if not there.startswith(text):
        log.warning("%s had lost lines or was damaged; it is written again from the checkpoints", run.metrics)
    if there != text or not run.metrics.exists():  # of no stages there are none
        write_text(run.metrics, text.decode())
