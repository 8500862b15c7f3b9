"""log.txt of a run.

Write a run's log messages to its log.txt. With several processes, also the error that ended one of them.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from data_tools.errors import SaidElsewhere, sentences
from system.compute.processes import process_count, process_index

FORM = "%(asctime)s %(message)s"  # format of a line

log = logging.getLogger(__name__)


class LogFile(logging.FileHandler):
    """Log handler of a run's log.txt. If its disk is full, it warns once, and the run continues without log.txt."""

    def __init__(self, path: Path) -> None:
        """Open log.txt at the path `path`, and set the format of its lines."""
        super().__init__(path, encoding="utf-8")
        self.setFormatter(logging.Formatter(FORM))

    def handleError(self, record: logging.LogRecord) -> None:
        """Handle an error in writing a log message: if the disk is full, warn once and stop writing to log.txt."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        root = logging.getLogger()
        if self in root.handlers:
            root.removeHandler(self)
            log.warning(
                "the log file %s cannot be written any more (%s); free disk space", self.baseFilename, error.strerror
            )

    def close(self) -> None:
        """Close log.txt. If its disk is full, messages that are not yet written are lost."""
        with suppress(OSError):  # closing flushes the text that did not fit once more
            super().close()


@contextmanager
def log_errors(folder: Path) -> Iterator[None]:
    """Context manager that appends an error of its block to the run's log.txt, and raises the error again.

    With several processes, the lines name the rank of the failed process. Each line is written by one call, so that
    lines of several processes do not mix.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        _append_lines(folder / "log.txt", [str(error) or "interrupted; run the same command again to resume"], "")
        raise
    except SaidElsewhere:
        raise
    except Exception as error:
        _append_lines(folder / "log.txt", sentences(error), "error: ")
        raise


def _append_lines(log: Path, lines: list[str], kind: str) -> None:
    """Append lines to the log file `log`, if it exists, each with the prefix `kind`, such as "error: "."""
    rank = f"[rank {process_index()}] " if process_count() > 1 else ""
    with suppress(OSError):
        file = os.open(log, os.O_WRONLY | os.O_APPEND)
        try:
            for line in lines:
                record = logging.makeLogRecord({"msg": "%s", "args": (f"{rank}{kind}{line}",)})
                os.write(file, f"{logging.Formatter(FORM).format(record)}\n".encode(errors="backslashreplace"))
        finally:
            os.close(file)
