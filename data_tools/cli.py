"""Command line of data_tools, system and submission.

Runs a verb, with error messages, help, examples and progress: `lbar data VERB` is `python -m data_tools VERB`, and so
on. Progress of long work is a bar in a terminal; elsewhere (nohup, a job's log), it is a log line about every minute.
"""

import argparse
import difflib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, redirect_stdout
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from data_tools.errors import KitError, SaidElsewhere, sentences


class Verb(NamedTuple):
    """A verb of one of the packages data_tools, system and submission.

    module: Name of its module in the package, with add_arguments(parser) and run(arguments) -> exit status.
    resumes: True if an interrupted run continues where it stopped; otherwise the verb writes everything at its end, or
    nothing.
    several: True if several processes may run one command together; only the first one prints results.
    """

    help: str
    example: str
    module: str
    resumes: bool = False
    several: bool = False


PROGRESS_SECONDS = 60.0  # between two lines in the log
MIB = 1 << 20
PROGRAMS = {"data_tools": "lbar data", "submission": "lbar submit", "system": "lbar"}  # commands of the packages
SHOWN = 10  # lines that a verb prints
Item = TypeVar("Item")
log = logging.getLogger(__name__)


def run_cli(
    package: str, description: str, verbs: Mapping[str, Verb], argv: list[str] | None, inside: bool = False
) -> int:
    """Run one verb of a package; return 0, 1 after an error or a failed check, 2 for wrong usage, 130 if interrupted.

    inside: Another verb calls: the settings of the log stay, results go to standard error, and an interrupt ends the
    caller too.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = make_parser(package, description, verbs, argv).parse_args(argv)
    except SystemExit as stop:  # argparse has printed its help or an error message
        return int(stop.code or 0)
    if not inside:
        set_up_log(arguments.quiet, arguments.verbose)
    try:
        with _sigterm_as_interrupt(), _redirect_results(inside, verbs[argv[0]].several):
            status = int(arguments.run(arguments))
            sys.stdout.flush()
            return status
    except SaidElsewhere:
        return 1
    except BrokenPipeError:  # the reader of the output, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KitError, ModuleNotFoundError, OSError, MemoryError) as error:
        if arguments.verbose:
            traceback.print_exc()
        print("\n".join(f"{_rank_prefix()}error: {line}" for line in sentences(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        if inside:
            raise
        hint = "run the same command to continue where it stopped"
        hint = hint if verbs[argv[0]].resumes else "nothing was written"
        if message := stop.args[0] if stop.args else f"interrupted; {hint}":
            print(message, file=sys.stderr)
        return 130


def run_app(app: Callable[..., object], program: str, argv: Sequence[str] | None) -> int:
    """Run an app of typer; return 0, 1 after an error, 2 for wrong usage, 130 if interrupted."""
    try:
        with _sigterm_as_interrupt():
            app(args=argv, prog_name=program)
    except SystemExit as stop:
        if stop.code == 130:
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
    log = logging.getLogger()
    log.setLevel(logging.INFO)
    logging.getLogger(__name__).setLevel(logging.DEBUG if verbose else logging.NOTSET)  # tracebacks
    for handler in log.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setLevel(logging.WARNING if quiet or _rank_prefix() else logging.DEBUG if verbose else logging.INFO)
            form = "%(asctime)s %(name)s %(message)s" if verbose else "%(message)s"
            handler.setFormatter(logging.Formatter(_rank_prefix() + form))


@contextmanager
def _redirect_results(inside: bool, several: bool) -> Iterator[None]:
    """Print a block's results: on standard error if `inside` another verb; if `several`, only in the first process."""
    with Path(os.devnull).open("w") as nowhere:
        printed = sys.stderr if inside else sys.stdout
        with redirect_stdout(nowhere if several and _rank_prefix() else printed):
            yield


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


def ending_in(*suffixes: str) -> Callable[[str], Path]:
    """Return an argparse type for an output file whose name ends in one of `suffixes`."""

    def checked(text: str) -> Path:
        """Convert an option's text to a path. Raises argparse's error for a suffix that is not allowed."""
        path = Path(text)
        if path.suffix not in suffixes or path.is_dir():
            raise argparse.ArgumentTypeError(f"{text}: give a file name that ends in {' or '.join(suffixes)}")
        return path

    return checked


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """Add the option --out: the manifest to write."""
    parser.add_argument("--out", type=ending_in(".jsonl"), required=True, help="the manifest to write (.jsonl)")


def counted(count: int, what: str, grouping: str = "") -> str:
    """Format a count: `1 clip`, `2 clips`, `2 queries`. grouping: Separator of thousands, "," for 1,000."""
    many = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:{grouping}} {what if count == 1 else many}"


class HelpWithDefaults(argparse.RawDescriptionHelpFormatter):
    """Format help with the default of every option that may be left out."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        """Return an option's help, followed by its default."""
        needs_no_default = action.nargs == 0 or not action.option_strings or action.required
        if needs_no_default or not action.help or "default" in action.help:
            return action.help
        return f"{action.help} (default: {'none' if action.default in (None, [], ()) else '%(default)s'})"


def make_parser(package: str, description: str, verbs: Mapping[str, Verb], argv: list[str]) -> argparse.ArgumentParser:
    """Build the parser of the command line; import only the module of the requested verb, which saves time.

    Raises SystemExit with status 2: after printing the help if the verb is missing, after suggestions if it is wrong.
    """
    parser = argparse.ArgumentParser(prog=PROGRAMS[package], description=description)
    parser.add_argument("--version", action="version", version=f"lbar-kit {version()}")
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    for name, verb in verbs.items():
        subparser = subparsers.add_parser(
            name,
            help=verb.help,
            description=f"{verb.help[0].upper()}{verb.help[1:]}.",
            epilog=f"example:\n  {verb.example}",
            formatter_class=HelpWithDefaults,
            allow_abbrev=False,
        )
        shown = subparser.add_mutually_exclusive_group()
        shown.add_argument("-q", "--quiet", action="store_true", help="print results, warnings and errors only")
        more = "print the time and the module with each log line, and the traceback of an error"
        shown.add_argument("-v", "--verbose", action="store_true", help=more)
        if argv[:1] == [name]:
            module = import_module(f"{package}.{verb.module}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    if not argv:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if not argv[0].startswith("-") and argv[0] not in verbs:
        similar = difflib.get_close_matches(argv[0], verbs, 1)
        hint = f"did you mean {similar[0]}?" if similar else f"choose one of {', '.join(verbs)}"
        parser.error(f"no verb {argv[0]!r}; {hint}")
    return parser


def version() -> str:
    """Return the version of the kit; "(not installed)" outside an installation."""
    try:
        return metadata.version("lbar-kit")
    except metadata.PackageNotFoundError:
        return "(not installed)"


class Progress(Protocol):
    """Progress of long work."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """Report that `count` more items are done. note: Shown after the numbers, such as the loss."""


class _Bar:
    def __init__(self, bar: Any) -> None:
        """Store the progress bar of tqdm that shows the progress."""
        self._bar = bar

    def advance(self, count: int = 1, note: str = "") -> None:
        """Move the progress bar by `count` items. note: Shown after the numbers."""
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(count)


class Lines:
    """Progress as lines in the log. The remaining time is estimated from the rate of this process alone."""

    def __init__(
        self, what: str, total: int | None, unit: str, done: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Store the texts and numbers of progress lines, and the start time. done: Items done before this process."""
        self.what, self.total, self.unit, self.done, self.clock = what, total, unit, done, clock
        self._before, self._began = done, clock()
        self._logged = self._began

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more items; log a line of progress every PROGRESS_SECONDS."""
        self.done += count
        now = self.clock()
        if now - self._logged >= PROGRESS_SECONDS:
            self._logged = now
            log.info("%s", self.progress_text(now - self._began, note))

    def progress_text(self, seconds: float, note: str = "") -> str:
        """Return e.g. `reading: 3 of 10 clips, about 2.0 min left`. seconds: Time since the start of this process."""
        size, unit = (MIB, "MiB") if self.unit == "byte" else (1, f"{self.unit}s")
        total = "" if self.total is None else f" of {round(self.total / size):,}"
        parts = [f"{self.what}: {round(self.done / size):,}{total} {unit}"]
        if self.total is not None and self.done > self._before:
            left = seconds * (self.total - self.done) / (self.done - self._before)
            parts.append(f"{about(left)} left")
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
        yield Lines(what, total, unit, done)
        return
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    scale = unit == "byte"
    bar = tqdm(total=total, initial=done, desc=what, unit="B" if scale else unit, unit_scale=scale, leave=keep)
    with bar, logging_redirect_tqdm():
        yield _Bar(bar)


def each(items: Iterable[Item], what: str, unit: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items one by one, and show the progress. total: Number of items, if `items` has no length."""
    count = len(items) if total is None and isinstance(items, Sized) else total
    with progress(what, count, unit) as bar:
        for item in items:
            yield item
            bar.advance()
