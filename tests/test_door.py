"""The command line of all three packages: interrupts, full memory and disks, and unusual terminals."""

import errno
import os
import signal
import subprocess
import sys
from argparse import Namespace
from importlib import import_module, metadata
from pathlib import Path
from typing import IO

import pytest

from data_tools import cli

RESUMED = {
    "data_tools": {"crawl", "hub", "fetch", "scenes", "classify", "get", "transcode"},
    "system": {"download", "features", "train", "rank", "run", "study", "search", "embeddings", "serve"},
}
ROOMS = {"data_tools": "clotho", "system": "experts"}  # and a verb of each
FULL = "No space left on device; free disk space, then run the command again\n"
every_room = pytest.mark.parametrize("room", ROOMS)


@pytest.mark.parametrize("room", RESUMED)
def test_interrupted_verbs_print_how_to_resume(
    room: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminated(_: object) -> int:
        signal.raise_signal(signal.SIGTERM)  # as a scheduler ends a job
        return 0

    for name, verb in import_module(f"{room}.__main__").VERBS.items():
        parser = Namespace(parse_args=lambda _: Namespace(quiet=False, verbose=False, run=terminated))
        monkeypatch.setattr(cli, "make_parser", lambda *_, parser=parser: parser)
        assert import_module(f"{room}.__main__").main([name]) == 130
        hint = "run the same command to continue where it stopped" if name in RESUMED[room] else "nothing was written"
        assert capsys.readouterr().err == f"interrupted; {hint}\n", verb.module


def fails(room: str, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """The status of a verb that ends with this error."""

    def run(_: object) -> int:
        raise error

    main = import_module(f"{room}.__main__")
    verb = main.VERBS[ROOMS[room]]
    monkeypatch.setattr(f"{room}.{verb.module or ROOMS[room]}.run", run)
    needed = ["folder", "--out", "x.jsonl"] if room == "data_tools" else []
    return int(main.main([ROOMS[room], *needed]))


@every_room
@pytest.mark.parametrize(
    ("error", "status", "output"),
    [
        (KeyboardInterrupt(), 130, "interrupted; nothing was written\n"),
        (KeyboardInterrupt("stopped; go on later"), 130, "stopped; go on later\n"),
        (MemoryError(), 1, "error: this machine's memory is full; end other programs, or process less data"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a.csv"),
            1,
            f"error: a.csv: {FULL}",
        ),
        (OSError(errno.EXDEV, "Odd", "a.csv", None, "b.csv"), 1, "error: b.csv: Odd\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, "error: Broken pipe\n"),
        (ModuleNotFoundError("none", name="odd"), 1, "error: the package odd is not installed; set up and activate"),
    ],
)
def test_failing_verb_prints_one_message_and_exits_with_its_status(
    room: str,
    error: BaseException,
    status: int,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A broken pipe that is not the output's is an error as others are."""
    assert fails(room, monkeypatch, error) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(output)
    assert shown.err.count("\n") == 1


@every_room
def test_command_without_verb_prints_the_help(room: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = import_module(f"{room}.__main__")
    assert main.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for verb in main.VERBS.values():
        assert " ".join(verb.help.split())[:40] in " ".join(shown.err.split())


@pytest.mark.parametrize(
    ("room", "given", "hint"),
    [
        ("system", "serach", "no verb 'serach'; did you mean search?"),
        ("system", "recipe", "no verb 'recipe'; did you mean recipes?"),
        ("data_tools", "crwal", "no verb 'crwal'; did you mean crawl?"),
    ],
)
def test_unknown_verb_gets_a_suggestion(room: str, given: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(f"{room}.__main__").main([given, "x"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("usage: lbar")
    assert hint in shown


@every_room
def test_non_utf8_argument_is_refused(room: str, capsys: pytest.CaptureFixture[str]) -> None:
    needed = ["--out", "x.jsonl"] if room == "data_tools" else []
    status = import_module(f"{room}.__main__").main([ROOMS[room], *needed, *(["\udcff"] if needed else [])])
    assert (status, "is not UTF-8" in capsys.readouterr().err) == ((1, True) if needed else (0, False))


SPEAKING = """
import sys
from importlib import import_module, metadata
room, verb, text, times = sys.argv[1:]
main = import_module(f"{room}.__main__")
module = import_module(f"{room}.{main.VERBS[verb].module or verb}")
def run(_):
    for _ in range(int(times)):
        print(text)
    return 0
module.run = run
sys.exit(main.main([verb, *(["folder", "--out", "x.jsonl"] if room == "data_tools" else [])]))
"""


def speaking(root: Path, room: str, text: str, times: int, output: IO[bytes] | int) -> "subprocess.Popen[bytes]":
    """A verb that prints the text so many times, to a terminal of ASCII; its output is kept until it is much."""
    command = [sys.executable, "-c", SPEAKING, room, ROOMS[room], text, str(times)]
    settings = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUNBUFFERED": ""}
    return subprocess.Popen(command, cwd=root, stdout=output, stderr=subprocess.PIPE, env=settings)


@every_room
@pytest.mark.parametrize("times", [1, pytest.param(20_000, marks=pytest.mark.slow)])
def test_verb_whose_output_pipe_is_closed_prints_no_error(room: str, root: Path, times: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with speaking(root, room, "x", times, writing) as process:
        os.close(writing)
        assert process.communicate(timeout=60)[1] == b""
        assert process.returncode == 1


@every_room
@pytest.mark.parametrize(("times", "name"), [(1, b"standard output: "), (20_000, b"")])
def test_full_disk_on_standard_output_is_reported(room: str, root: Path, times: int, name: bytes) -> None:
    with Path("/dev/full").open("wb") as full, speaking(root, room, "x", times, full) as process:
        assert process.communicate(timeout=60)[1] == b"error: " + name + FULL.encode()
        assert process.returncode == 1


@every_room
def test_names_outside_the_terminal_encoding_are_escaped(room: str, root: Path) -> None:
    with speaking(root, room, "雨.wav", 1, subprocess.PIPE) as process:
        assert process.communicate(timeout=60) == (b"\\u96e8.wav\n", b"")
        assert process.returncode == 0


LOUD = """
import logging, sys, types
from data_tools.cli import Verb, run_cli
from data_tools.errors import DataError
def run(arguments):
    print("result")
    logging.getLogger("data_tools.loud").info("step 1")
    logging.getLogger("data_tools.loud").warning("odd")
    raise DataError("it broke")
module = types.ModuleType("data_tools.loud")
module.add_arguments, module.run = lambda parser: None, run
sys.modules["data_tools.loud"] = module
sys.exit(run_cli("data_tools", "x", {"loud": Verb("be loud", "", "loud")}, sys.argv[1:]))
"""


def loud(root: Path, *arguments: str) -> tuple[str, str]:
    command = [sys.executable, "-c", LOUD, "loud", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stdout, done.stderr


def test_options_quiet_and_verbose_set_the_amount_of_log(root: Path) -> None:
    assert loud(root) == ("result\n", "step 1\nodd\nerror: it broke\n")
    assert loud(root, "-q") == ("result\n", "odd\nerror: it broke\n")
    result, said = loud(root, "--verbose")
    assert result == "result\n"
    assert " data_tools.loud step 1\n" in said
    assert "Traceback (most recent call last)" in said
    assert said.endswith("error: it broke\n")


@every_room
def test_version_option_prints_the_version(room: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(f"{room}.__main__").main(["--version"]) == 0
    assert capsys.readouterr().out == f"lbar-kit {metadata.version('lbar-kit')}\n"


CLOSED = ["2>&-", "<&- >&- 2>&-", *(pytest.param(text, marks=pytest.mark.slow) for text in (">&-", ">&- 2>&-"))]
WRITING = "open('file', 'w').write('kept'); os.write(1, b'x'); os.write(2, b'y'); print(text)"


@every_room
@pytest.mark.parametrize("closed", CLOSED)
def test_verbs_succeed_with_closed_standard_streams(closed: str, room: str, root: Path, tmp_path: Path) -> None:
    """A file gets the number of a closed stream, and would take the output of libraries."""
    code = SPEAKING.replace("import sys", "import os, sys").replace("print(text)", WRITING)
    (tmp_path / "verb.py").write_text(code)
    command = f"{sys.executable} verb.py {room} {ROOMS[room]} text 1 {closed}"
    settings = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, timeout=60, check=False, env=settings
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "kept"
    assert (b"text" in done.stdout) == (closed == "2>&-")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", CLOSED)
def test_failing_verb_with_closed_streams_exits_with_status_1(closed: str, root: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m data_tools check {tmp_path}/none.jsonl {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=root, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert (b"no such file" in done.stderr) == ("2>" not in closed)
    assert done.stdout == b""


def test_unicode_spaces_and_joiners_are_printed_unchanged() -> None:
    name = "a\u00a0b\u3000c\u200dd\u0915\u094d é\t"
    assert cli.printable(name) == name
    assert cli.printable("\x1b[2J \u202e \ud800 \x9b") == "\\x1b[2J \\u202e \\ud800 \\x9b"


def test_control_characters_are_printed_escaped(root: Path) -> None:
    command = [sys.executable, "-m", "data_tools", "check", "a\x1b]0;b\x07.jsonl"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "error: a\\x1b]0;b\\x07.jsonl: no such file; correct the path\n"
