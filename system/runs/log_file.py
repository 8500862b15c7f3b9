"""log.txt of a run."""

import logging
import sys
from contextlib import suppress
from pathlib import Path

from data_tools.errors import SaidElsewhere, sentences

log = logging.getLogger(__name__)


class LogFile(logging.FileHandler):
    """Log handler of a run's log.txt. If its disk is full, it warns once, and the run continues without log.txt."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def note(self, error: BaseException) -> None:
        """Write the error that ends the run."""
        for line in sentences(error) if not isinstance(error, SaidElsewhere) else ():
            self.handle(logging.makeLogRecord({"msg": "error: %s", "args": (line,)}))

    def handleError(self, record: logging.LogRecord) -> None:
        """Stop writing if the disk is full."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        root = logging.getLogger()
        if self in root.handlers:
            root.removeHandler(self)
            log.warning("%s cannot be written any more (%s); free disk space", self.baseFilename, error.strerror)

    def close(self) -> None:
        """Close log.txt; messages that a full disk has not taken are lost."""
        with suppress(OSError):  # closing flushes the text that did not fit once more
            super().close()
