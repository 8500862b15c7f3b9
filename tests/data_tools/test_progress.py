"""Progress of long work: log lines with the time left, or in a terminal a bar below other lines."""

import os
import pty
import re
import subprocess
import sys
import termios
from itertools import count
from pathlib import Path

import pytest

from data_tools import cli
from data_tools.cli import about, each, progress


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch, caplog):
    found = Clock()
    monkeypatch.setattr("tqdm.std.time", found)
    caplog.set_level("INFO")
    return found


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "data_tools.cli"]


def test_progress_is_logged_about_every_minute(clock, caplog):
    with progress("openl3 frames", 4000, "clip") as bar:
        for _ in range(300):
            clock.now += 0.5
            bar.update(2)
    (first, second) = said(caplog)
    assert "240/4000 [01:00<15:40" in first
    assert "480/4000 [02:00<14:40" in second


def test_shown_time_left_uses_the_rate_of_this_process_only(clock, caplog):
    with progress("finetune", 1000, "step", done=900) as bar:
        clock.now += 60
        bar.set_postfix_str("loss 0.1234", refresh=False)
        bar.update(10)
    (line,) = said(caplog)
    assert "910/1000 [01:00<09:00" in line
    assert "loss 0.1234" in line
    assert [about(seconds) for seconds in (0.123, 90, 9000)] == ["about 0.12 s", "about 1.5 min", "about 2.5 h"]


def test_loop_with_progress_yields_every_item_and_logs_the_total_if_known(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(cli, "PROGRESS_SECONDS", 0.0)
    assert list(each("ab", "letters", "letter")) == ["a", "b"]
    assert next(each(count(), "numbers", "number")) == 0
    assert [word for line in said(caplog) for word in ("1/2", "2/2") if word in line] == ["1/2", "2/2"]


def test_short_work_logs_no_progress(caplog):
    caplog.set_level("INFO")
    with progress("pretrain", 2, "step") as bar:
        bar.update(2)
    assert said(caplog) == []


IN_A_TERMINAL = """
import logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stderr)
logging.getLogger().setLevel(logging.INFO)
from data_tools.cli import progress
with progress("finetune", 4, "step") as bar:
    for n in range(4):
        bar.set_postfix_str(f"loss {n}", refresh=False)
        bar.update()
        logging.info("epoch %d: a line of its own", n)
        with progress("embedding clips", 2, "clip", keep=False) as inner:
            inner.update(2)
logging.info("after it")
"""


def shown_in_a_terminal(root: Path, code: str) -> str:
    """Return everything that a program writes to a terminal of 80 columns."""
    terminal, of_process = pty.openpty()
    termios.tcsetwinsize(of_process, (24, 80))
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root, stderr=of_process, stdout=of_process)
    os.close(of_process)
    output = b""
    try:
        while part := os.read(terminal, 4096):
            output += part
    except OSError:  # the process has ended, and with it the terminal
        pass
    assert process.wait() == 0
    return output.decode()


def test_terminal_log_lines_appear_above_the_bar(root):
    output = shown_in_a_terminal(root, IN_A_TERMINAL)
    screen = [line.split("\r")[-1].replace("\x1b[A", "") for line in output.replace("\r\n", "\n").split("\n")]
    for n in range(4):
        assert f"epoch {n}: a line of its own" in screen, screen
    assert "after it" in screen
    assert re.search(r"finetune: 100%.*loss 3", output)


@pytest.mark.slow
def test_quiet_verb_shows_no_bar(root, tmp_path):
    command = f"-q scenes {tmp_path} --seed 1 --development 4 --validation 4 --evaluation 4"
    verb = "import sys; from data_tools.__main__ import main; sys.exit(main({!r}.split()))"
    assert "100%" in shown_in_a_terminal(root, verb.format(command[3:].replace(str(tmp_path), f"{tmp_path}/loud")))
    quiet = shown_in_a_terminal(root, verb.format(command.replace(str(tmp_path), f"{tmp_path}/quiet")))
    assert len(quiet.splitlines()) == 1, quiet
    assert "12 clips" in quiet
