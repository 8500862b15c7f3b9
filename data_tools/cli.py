"""Command line of all floors, and progress of long work.

Progress is a bar in a terminal; elsewhere (nohup, a job's log), it is a log line about every minute, in tqdm's form.
"""

import inspect
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext, redirect_stdout
from copy import copy
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

import typer
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from data_tools.errors import KitError, SaidElsewhere, sentences

PROGRESS_SECONDS = 60.0  # between two lines in the log
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
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # which schedulers send: as Ctrl-C
    try:
        with redirect_stdout(sys.stderr if inside else sys.stdout):
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


def new_app(name: str, about: str) -> typer.Typer:
    """Return the app of a floor, without verbs.

    Args:
        name: Of the program.
        about: First line of its help.
    """
    app = typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def log_of_all(
        context: typer.Context,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors only.")] = False,
        verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print times, modules and tracebacks.")] = False,
        shows_version: Annotated[
            bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        if context.obj:  # inside another verb its log stays
            return
        set_up_log(quiet, verbose)
        if ranks()[1] > 1 and context.invoked_subcommand != "run":
            raise KitError(f"{context.invoked_subcommand} needs exactly one process; run it without torchrun")

    return app


def print_version(asked: bool) -> None:
    """Print the version of the kit and stop, if `asked`."""
    if asked:
        print(f"lbar-kit {version()}")
        raise typer.Exit


def add_verb(app: typer.Typer, function: Callable[..., None]) -> None:
    """Add a function to an app of typer: its docstring is the help, with that of each parameter in the section Args.

    Parameters in front of `*` are arguments, the others options. Settings of typer may be given by Annotated.
    """
    about, _, section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    helps = dict(re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE))
    for name, parameter in inspect.signature(function).parameters.items():
        if name in helps:
            annotation, is_option = parameter.annotation, parameter.kind is parameter.KEYWORD_ONLY
            flag = [f"--{name.replace('_', '-')}"] if annotation is bool else []  # without --no-...
            made = typer.Option(*flag) if is_option else typer.Argument()
            if get_origin(annotation) is Annotated:
                annotation, made = annotation.__origin__, copy(annotation.__metadata__[0])
            made.help = " ".join(helps[name].split())
            function.__annotations__[name] = Annotated[annotation, made]
    app.command(help=about)(function)


def ranks() -> tuple[int, int]:
    """Return this process's rank, from 0, and the number of processes that torchrun started together.

    Source: RANK and WORLD_SIZE in the environment; (0, 1) if they are missing.
    """
    count = int(os.environ.get("WORLD_SIZE") or 1)
    return (int(os.environ.get("RANK") or 0), count) if count > 1 else (0, 1)


def _rank_prefix() -> str:
    """Return the prefix of this process's log lines; "" for the first process, or the only one."""
    number, _ = ranks()
    return f"[rank {number}] " if number else ""


def set_up_log(quiet: bool = False, verbose: bool = False) -> None:
    """Send log lines to standard error: with -q, only warnings and errors; with -v, with time and module.

    A run's log.txt has all lines. Of several processes, all except the first log only warnings and errors.
    """
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    for chatty in ("httpx", "sentence_transformers", "urllib3", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.raiseExceptions = False  # a full disk loses lines of a log file, and no more
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    log.setLevel(logging.DEBUG if verbose else logging.NOTSET)  # tracebacks
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setLevel(logging.WARNING if quiet or _rank_prefix() else logging.DEBUG if verbose else logging.INFO)
            form = "%(asctime)s %(name)s %(message)s" if verbose else "%(message)s"
            handler.setFormatter(logging.Formatter(_rank_prefix() + form))


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


class _Log:
    """A file for bars whose lines go to the log."""

    def write(self, text: str) -> None:
        if text.strip():
            log.info(text.strip())

    def flush(self) -> None: ...


def about(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours, such as `about 2.5 min`."""
    if seconds >= 3600:
        return f"about {seconds / 3600:.1f} h"
    return f"about {seconds / 60:.1f} min" if seconds >= 60 else f"about {seconds:.2g} s"


@contextmanager
def progress(what: str, total: int | None, unit: str, done: int = 0, keep: bool = True) -> Iterator[Any]:
    """Show the progress of the work in a `with` block, which gets a bar of tqdm to update.

    Lines that the block logs appear above the bar. With -q there is neither a bar nor a line.

    Args:
        what: Name of the work.
        total: Number of items or None.
        unit: Name of one item; "byte" is shown as kB, MB.
        done: Items finished earlier.
        keep: Whether the full bar stays on the screen; otherwise it appears after a second.
    """
    tqdm.monitor_interval = 0  # no thread of its own
    handlers = logging.getLogger().handlers
    is_quiet = any(type(one) is logging.StreamHandler and one.level > logging.INFO for one in handlers)
    is_bar = sys.stderr.isatty() and not is_quiet
    form: dict[str, Any] = {"leave": keep, "unit_scale": True, "delay": 0 if keep else 1}
    if not is_bar:
        times = {"mininterval": PROGRESS_SECONDS, "delay": PROGRESS_SECONDS, "miniters": 1}
        form = {"leave": False, "file": _Log(), "ncols": 0, **times}
    with (
        tqdm(total=total, initial=done, desc=what, unit=unit, **form) as bar,
        logging_redirect_tqdm() if is_bar else nullcontext(),
    ):
        yield bar


def each(items: Iterable[Item], what: str, unit: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items one by one, and show the progress. total: Number of items, if `items` has no length."""
    count = len(items) if total is None and isinstance(items, Sized) else total
    with progress(what, count, unit) as bar:
        for item in items:
            yield item
            bar.update()
