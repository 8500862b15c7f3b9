"""Why a run ended, in its log.txt: of several processes the first alone logs there, and each of them may fail."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from data_tools.errors import SaidElsewhere, sentences
from system.compute.distributed import count, index, raise_or_leave_to_others

FORM = "%(asctime)s %(message)s"  # of a line


@contextmanager
def errors_noted(folder: Path) -> Iterator[None]:
    """An error that ends the block becomes lines of the run's log.txt, of several processes with the rank of the one
    that has it, and goes on: raised in one process, and as SaidElsewhere in others that end with the same.

    A line is one write behind the file's end, so that lines of several processes do not mix. Where there is no log.txt,
    as on a machine that does not share the run's folder, standard error alone has the error.
    """
    try:
        yield
    except Exception as error:
        try:
            raise_or_leave_to_others(error)
        except SaidElsewhere:
            raise
        except Exception:
            _note(folder / "log.txt", sentences(error))
            raise


def _note(log: Path, lines: list[str]) -> None:
    rank = f"[rank {index()}] " if count() > 1 else ""
    with suppress(OSError):
        file = os.open(log, os.O_WRONLY | os.O_APPEND)
        try:
            for line in lines:
                record = logging.makeLogRecord({"msg": "%s", "args": (f"{rank}error: {line}",)})
                os.write(file, f"{logging.Formatter(FORM).format(record)}\n".encode(errors="backslashreplace"))
        finally:
            os.close(file)
