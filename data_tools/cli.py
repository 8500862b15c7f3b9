"""Command line of all floors, and progress of long work.

Progress is a bar in a terminal; elsewhere (nohup, a job's log), it is a log line about every minute.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from data_tools.errors import KitError, SaidElsewhere, sentences

PROGRESS_SECONDS = 60.0  # between two lines in the log
MIB = 1 << 20
SHOWN = 10  # lines that a verb prints
Item = TypeVar("Item")
log = logging.getLogger(__name__)


def run_app(app: Callable[..., object], program: str, argv: Sequence[str] | None, inside: bool = False) -> int:
    """Run an app of typer.

    Args:
        app: The app.
        program: Its name in messages.
        argv: Arguments; None: those of this process.
        inside: Another verb calls: results go to standard error, and an interrupt ends the caller too.

    Returns:
        Exit status: 0, 1 after an error, 2 for wrong usage, 130 if interrupted.
    """
    try:
        with _sigterm_as_interrupt(), redirect_stdout(sys.stderr if inside else sys.stdout):
            app(args=argv, prog_name=program, obj=inside)
    except SystemExit as stop:
        if stop.code == 130:
            if inside:
                raise KeyboardInterrupt from None
            print("interrupted; run the same command again", file=sys.stderr)
        return int(stop.code or 0)
    except SaidElsewhere:
        return 1
    except (KitError, ModuleNotFoundError, OSError, MemoryError) as error:
        log.debug("the error was raised here", exc_info=error)
        print("\n".join(f"{_rank_prefix()}error: {line}" for line in sentences(error)), file=sys.stderr)
        return 1
    return 0


def ranks() -> tuple[int, int]:
    """Return this process's rank, from 0, and the number of processes that torchrun or a scheduler started together.

    Source: RANK and WORLD_SIZE in the environment; (0, 1) if they are missing.
    """
    number, count = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not all(text.isascii() and text.isdigit() and len(text) < 7 for text in (number, count)):
        return 0, 1
    return (int(number), int(count)) if int(number) < int(count) else (0, 1)


def _rank_prefix() -> str:
    """Return the prefix of this process's log lines; "" for the first process, or the only one."""
    number, _ = ranks()
    return f"[rank {number}] " if number else ""


def set_up_log(quiet: bool = False, verbose: bool = False) -> None:
    """Send log lines to standard error: with -q, only warnings and errors; with -v, with time and module.

    A run's log.txt has all lines. Of several processes, all except the first log only warnings and errors.
    """
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    log.setLevel(logging.DEBUG if verbose else logging.NOTSET)  # tracebacks
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setLevel(logging.WARNING if quiet or _rank_prefix() else logging.DEBUG if verbose else logging.INFO)
            form = "%(asctime)s %(name)s %(message)s" if verbose else "%(message)s"
            handler.setFormatter(logging.Formatter(_rank_prefix() + form))


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM, which schedulers send, like Ctrl-C during a `with` block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:  # as in a process that is about to end
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def ending_in(suffix: str) -> Callable[[Path | None], Path | None]:
    """Return a check of typer for an output file whose name ends in `suffix`."""

    def checked(path: Path | None) -> Path | None:
        if path and (path.suffix != suffix or path.is_dir()):
            raise typer.BadParameter(f"{path}: give a file name that ends in {suffix}")
        return path

    return checked


Manifest = Annotated[Path, typer.Option("--out", callback=ending_in(".jsonl"), help="The manifest to write (.jsonl).")]


def counted(count: int, what: str, grouping: str = "") -> str:
    """Format a count: `1 clip`, `2 clips`, `2 queries`. grouping: Separator of thousands, "," for 1,000."""
    many = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:{grouping}} {what if count == 1 else many}"


def version() -> str:
    """Return the version of the kit; "(not installed)" outside an installation."""
    try:
        return metadata.version("lbar-kit")
    except metadata.PackageNotFoundError:
        return "(not installed)"


class Progress:
    """Progress of long work: a bar of tqdm, or else lines in the log.

    The remaining time is estimated from the rate of this process alone.
    """

    def __init__(self, what: str, total: int | None, unit: str, done: int = 0, bar: Any = None) -> None:
        """Begin. done: Items done before this process."""
        self.what, self.total, self.unit, self.done = what, total, unit, done
        self._bar, self._before = bar, done
        self._began = self._logged = time.monotonic()

    def advance(self, count: int = 1, note: str = "") -> None:
        """Report that `count` more items are done. note: Shown after the numbers, such as the loss."""
        self.done += count
        now = time.monotonic()
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
        elif now - self._logged >= PROGRESS_SECONDS:
            self._logged = now
            log.info("%s", self._text(now - self._began, note))

    def _text(self, seconds: float, note: str) -> str:
        """Return e.g. `reading: 3 of 10 clips, 0.058 a second, about 2.0 min left`."""
        size, unit = (MIB, "MiB") if self.unit == "byte" else (1, f"{self.unit}s")
        total = "" if self.total is None else f" of {round(self.total / size):,}"
        parts = [f"{self.what}: {round(self.done / size):,}{total} {unit}"]
        if self.done > self._before:
            rate = (self.done - self._before) / seconds
            parts.append(f"{rate / size:.2g} a second")
            if self.total is not None:
                parts.append(f"{about((self.total - self.done) / rate)} left")
        return ", ".join([*parts, *([note] if note else [])])


def about(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours, such as `about 2.5 min`."""
    if seconds >= 3600:
        return f"about {seconds / 3600:.1f} h"
    return f"about {seconds / 60:.1f} min" if seconds >= 60 else f"about {seconds:.2g} s"


@contextmanager
def progress(what: str, total: int | None, unit: str, done: int = 0, keep: bool = True) -> Iterator[Progress]:
    """Show the progress of the work in a `with` block. keep: Whether the full bar stays on the screen.

    total: Number of items or None. unit: Name of one item; "byte" is shown as kB, MB. done: Items finished earlier.
    Lines that the block logs appear above the bar. With -q there is neither a bar nor a line.
    """
    handlers = logging.getLogger().handlers
    is_quiet = any(type(one) is logging.StreamHandler and one.level > logging.INFO for one in handlers)
    if not sys.stderr.isatty() or is_quiet:
        yield Progress(what, total, unit, done)
        return
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    scale = unit == "byte"
    bar = tqdm(total=total, initial=done, desc=what, unit="B" if scale else unit, unit_scale=scale, leave=keep)
    with bar, logging_redirect_tqdm():
        yield Progress(what, total, unit, done, bar)


def each(items: Iterable[Item], what: str, unit: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items one by one, and show the progress. total: Number of items, if `items` has no length."""
    count = len(items) if total is None and isinstance(items, Sized) else total
    with progress(what, count, unit) as bar:
        for item in items:
            yield item
            bar.advance()
