"""metrics.jsonl of a run: the lines that its checkpoints hold, and no others."""

import json
import logging

from data_tools.files import write_text
from submission.runs.record import EpochLine
from system.runs.folder import Run

log = logging.getLogger(__name__)


def write_metrics(run: Run, lines: list[EpochLine]) -> None:
    """Have metrics.jsonl hold the lines that the checkpoints do, and no others."""
    text = "".join(json.dumps(line.document()) + "\n" for line in lines).encode()
    there = run.metrics.read_bytes() if run.metrics.exists() else b""
    if not there.startswith(text):
        log.warning("%s had lost lines or was damaged; it is written again from the checkpoints", run.metrics)
    if there != text or not run.metrics.exists():  # of no stages there are none
        write_text(run.metrics, text.decode())
