"""Several processes, of which one fails, is killed or hangs: one error message, also in the run's log."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import tiny
import torch
import torch.multiprocessing
from several import ranks_of
from trainings import content, epochs, started, wait_for

from data_tools.errors import DataError, KitError, SaidElsewhere
from system.compute import distributed, meeting
from system.compute.distributed import any_process, in_step, process_index, processes
from system.runs.log_file import log_errors


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_world(tmp_path_factory.mktemp("errors") / "world", tiny.SIZES)


def spawned(function: object, count: int, *arguments: object) -> None:
    """Call function(rank, port, *arguments) in several processes, which meet on the port."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(function, (port, *arguments), count)


def as_rank(rank: int, count: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)


def hang(rank: int, port: int, folder: str) -> None:
    """The second process sleeps: between steps the first waits for it, in a step it gives up."""
    as_rank(rank, 2, port)
    distributed.STEP_PATIENCE = timedelta(seconds=1)
    with processes(torch.device("cpu")):
        time.sleep(2 * rank)
        assert not any_process(False)
        if rank == 1:
            wait_for(Path(folder, "given up").exists, 60)
            return
        with (
            pytest.raises(
                KitError,
                match="processes",
            ),
            in_step(),
        ):
            any_process(False)
        Path(folder, "given up").touch()


@pytest.mark.slow
def test_hanging_process_in_a_step_ends_with_an_error(tmp_path: Path) -> None:
    spawned(hang, 2, str(tmp_path))


def fail(rank: int, port: int, folder: str) -> None:
    """The second and the third process have one error, the first waits for them."""
    as_rank(rank, 3, port)
    try:
        with processes(torch.device("cpu")), log_errors(Path(folder)):
            if process_index():
                raise DataError("clips.csv is damaged\ndelete it")
            any_process(False)
    except SaidElsewhere:
        outcome = "silent"
    except DataError as error:
        outcome = str(error)
    Path(folder, str(rank)).write_text(outcome)


@pytest.mark.slow
def test_same_error_of_several_processes_is_printed_and_logged_once(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("2026-01-01 00:00:00,000 begun\n")
    spawned(fail, 3, str(tmp_path))
    outcomes = [(tmp_path / str(rank)).read_text() for rank in range(3)]
    assert outcomes[0] == "silent"
    assert sorted(outcomes[1:]) == ["clips.csv is damaged\ndelete it", "silent"]
    begun, *noted = (tmp_path / "log.txt").read_text().splitlines()
    assert begun.endswith("begun")
    rank = outcomes.index("clips.csv is damaged\ndelete it")
    assert [line.split(" ", 2)[2] for line in noted] == [
        f"[rank {rank}] error: clips.csv is damaged",
        f"[rank {rank}] error: delete it",
    ]


@pytest.mark.slow
def test_killed_process_ends_the_others_with_one_message(manifest: Path, tmp_path: Path) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content(manifest, tmp_path, epochs=400, steps_per_epoch=1))
    run = tmp_path / "run"
    launcher = started(recipe, run, 3)
    wait_for(lambda: epochs(run) >= 2)
    os.kill(ranks_of(launcher.pid)[1], signal.SIGSTOP)  # the others wait for it in a step when it is killed
    time.sleep(0.5)
    os.kill(ranks_of(launcher.pid)[1], signal.SIGKILL)
    _, said = launcher.communicate(timeout=120)
    (sentence,) = [line.partition("error: ")[2] for line in said.splitlines() if "error: " in line]
    assert "killed" in sentence
    (noted,) = [line for line in (run / "log.txt").read_text().splitlines() if "error: " in line]
    assert noted.endswith(sentence)


MEETINGS = {
    "without a rank": {},
    "rank 0 alone": {"RANK": "0", "MASTER_ADDR": "127.0.0.1"},
    "rank 1 without a rank 0": {"RANK": "1", "MASTER_ADDR": "127.0.0.1"},
}


@pytest.fixture
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of one of two processes if the other was never started."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for name, value in {"WORLD_SIZE": "2", "MASTER_PORT": str(port), **MEETINGS[request.param]}.items():
        monkeypatch.setenv(name, value)
    yield
    for thread in threading.enumerate():
        if thread.name == "meeting":  # it would abort the process that ends meanwhile
            thread.join(30)


@pytest.mark.parametrize("alone", MEETINGS, indirect=True)
@pytest.mark.usefixtures("alone")
def test_process_whose_partners_never_start_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MEETING_PATIENCE", timedelta(seconds=0.8))
    monkeypatch.setattr(meeting, "ANNOUNCED", 0.1)
    with pytest.raises(KitError, match="WORLD_SIZE"), processes(torch.device("cpu")):
        pass


def test_torchrun_with_one_process_does_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")  # as Kubernetes sets it, without a rank
    monkeypatch.delenv("RANK", raising=False)
    with processes(torch.device("cpu")):
        assert distributed.process_count() == 1
