"""Several processes, of which one fails, is killed or hangs: one error message, also in the run's log."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import torch.multiprocessing
from several import ROOT, ranks_of
from trainings import content, epochs, started, wait_for

from data_tools.audio import content_key
from data_tools.errors import DataError, KitError, SaidElsewhere
from data_tools.manifest import read_manifest
from system.__main__ import main
from system.compute import distributed, meeting
from system.compute.distributed import any_process, in_step, process_index, processes
from system.features.bank import Bank
from system.recipe.load import load_recipe
from system.runs.log_file import log_errors
from system.training import same_everywhere


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


def test_error_of_a_single_process_is_logged_without_rank(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), log_errors(tmp_path):
        raise ZeroDivisionError("by nothing")
    assert not list(tmp_path.iterdir())
    (tmp_path / "log.txt").touch()
    with pytest.raises(ZeroDivisionError), log_errors(tmp_path):
        raise ZeroDivisionError("by nothing")
    with pytest.raises(SaidElsewhere), log_errors(tmp_path):
        raise SaidElsewhere("by another")
    (line,) = (tmp_path / "log.txt").read_text().splitlines()
    assert line.split(" ", 2)[2] == "error: ZeroDivisionError: by nothing"


@pytest.mark.slow
def test_killed_process_and_damaged_frames_give_one_message_each(manifest: Path, tmp_path: Path) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content(manifest, tmp_path, epochs=400, steps_per_epoch=1))
    run = tmp_path / "run"
    launcher = started(recipe, run, 3)
    wait_for(lambda: epochs(run) >= 2)
    os.kill(ranks_of(launcher.pid)[1], signal.SIGSTOP)  # the others wait for it in a step when it is killed
    time.sleep(0.5)
    os.kill(ranks_of(launcher.pid)[1], signal.SIGKILL)
    _, said = launcher.communicate(timeout=120)
    (sentence,) = [line.partition("error: ")[2] for line in said.splitlines() if "error: " in line]
    assert " of 3 processes has lost its connection to the other processes: another process was killed" in sentence
    assert "RuntimeError" not in said
    (noted,) = [line for line in (run / "log.txt").read_text().splitlines() if "error: " in line]
    assert noted.endswith(sentence)
    rank = sentence.removeprefix("the process with ").partition(" of 3 processes")[0]
    assert noted.split(" ", 2)[2].startswith(f"[{rank}] error: ")

    damage(next((tmp_path / "banks").glob("logmel*")), manifest)
    _, said = started(recipe, run, 3).communicate(timeout=120)
    (line,) = [line for line in said.splitlines() if "error: " in line]
    assert " are damaged; lbar features RECIPE --verify finds and recomputes all" in line
    _, noted = [line for line in (run / "log.txt").read_text().splitlines() if "error: " in line]
    assert noted.partition("error: ")[2] == line.partition("error: ")[2]
    assert (line.startswith("[rank ") and line.split("] ")[0] in noted) or "[rank 0] " in noted


def damage(folder: Path, manifest: Path) -> None:
    """Flip a byte in the frames of one training clip; in a step only one process reads it."""
    clip = next(clip for clip in read_manifest(manifest) if clip.split == "development")
    key = content_key(clip.path)
    shard = Bank(folder, 128, np.dtype("float16"), "", False)._shard_of(key)
    first, _ = shard.span(key)
    with shard.frames_file.open("r+b") as file:
        file.seek(first * 128 * 2)
        before = file.read(1)[0]
        file.seek(first * 128 * 2)
        file.write(bytes([before ^ 1]))


MEETINGS = {
    "without a rank": ({}, "RANK not set, WORLD_SIZE 2"),
    "rank 0 alone": ({"RANK": "0", "MASTER_ADDR": "127.0.0.1"}, "RANK 0, WORLD_SIZE 2"),
    "rank 1 without a rank 0": ({"RANK": "1", "MASTER_ADDR": "127.0.0.1"}, "RANK 1, WORLD_SIZE 2"),
    "an address that nobody has": ({"RANK": "1", "MASTER_ADDR": "192.0.2.1"}, "MASTER_ADDR 192.0.2.1"),
    "a rank beyond the last": ({"RANK": "two", "MASTER_ADDR": "127.0.0.1"}, "RANK two, WORLD_SIZE 2"),
}


@pytest.fixture
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The environment of one of two processes if the other was never started; gives its description."""
    variables, shown = MEETINGS[request.param]
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for name, value in {"WORLD_SIZE": "2", "MASTER_PORT": str(port), **variables}.items():
        monkeypatch.setenv(name, value)
    yield shown
    for thread in threading.enumerate():
        if thread.name == "meeting":  # it would abort the process that ends meanwhile
            thread.join(30)


@pytest.mark.parametrize("alone", [name for name in MEETINGS if "nobody" not in name], indirect=True)
def test_process_whose_partners_never_start_ends_with_an_error(
    alone: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(meeting, "MEETING_PATIENCE", timedelta(seconds=0.8))
    monkeypatch.setattr(meeting, "ANNOUNCED", 0.1)
    with pytest.raises(KitError) as refused, processes(torch.device("cpu")):
        pass
    assert alone in str(refused.value)
    assert "unset WORLD_SIZE" in str(refused.value)
    if "RANK 0" in alone:  # which waits instead of failing at once
        assert "processes" in caplog.text


def test_torchrun_with_one_process_does_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")  # as Kubernetes sets it, without a rank
    monkeypatch.delenv("RANK", raising=False)
    with processes(torch.device("cpu")):
        assert distributed.process_count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "alone", ["rank 0 alone", "rank 1 without a rank 0", "an address that nobody has"], indirect=True
)
def test_signals_end_a_process_that_waits_for_other_processes(
    alone: str, sent: signal.Signals, manifest: Path, tmp_path: Path
) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    command = [sys.executable, "-m", "system", "train", str(path), "--runs", str(tmp_path / "runs")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT, text=True) as process:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(20)  # it imports torch, then waits
            process.send_signal(sent)
            assert process.wait(10) == 130
            assert process.stderr is not None
            assert "interrupted" in process.stderr.read()
        finally:
            process.kill()  # without it a failed test would wait as long as the process does, ten minutes


def start_differently(rank: int, port: int, path: str, folder: str, changes: list[list[str]]) -> None:
    as_rank(rank, 2, port)
    status = main(["train", path, "--runs", folder, *changes[rank]])
    Path(folder, f"status{rank}").write_text(str(status))


DIFFERENT = {
    "stages.only.losses.0.margin": "0.9",
    "stages.only.optimizer.lr": "0.5",
    "stages.only.batch_size": "6",
    "stages.only.epochs": "1",
    "seed": "8",
    "model.audio.dropout": "0.4",
}


@pytest.mark.slow
@pytest.mark.parametrize("key", DIFFERENT)
def test_processes_with_different_settings_are_refused(
    key: str, manifest: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    (tmp_path / "runs").mkdir()
    changes = [[], ["--set", f"{key}={DIFFERENT[key]}"]]
    spawned(start_differently, 2, str(path), str(tmp_path / "runs"), changes)
    assert [Path(tmp_path, "runs", f"status{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
    errors = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert f"rank 1 of 2 differs from rank 0: recipe.{key} is " in errors[0]
    assert f" and {DIFFERENT[key]} on rank 1" in errors[0]
    assert not list((tmp_path / "runs").glob("*/")), "no run was begun"


@pytest.mark.parametrize(("what", "value"), [("commit", "0123abc"), ("lbar-kit", "9.9"), ("torch", "2.10.0")])
def test_processes_of_another_version_are_refused(
    what: str, value: str, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path)))
    monkeypatch.setattr(same_everywhere, "process_count", lambda: 2)
    monkeypatch.setattr(same_everywhere, "gather_objects", lambda here: [here, here | {what: value}])
    with pytest.raises(KitError, match=f"rank 1 of 2 differs from rank 0: {what} is .* and '{value}' on rank 1"):
        same_everywhere.require_same_start("run", {"recipe": loaded})
    monkeypatch.setattr(same_everywhere, "gather_objects", lambda here: [here, dict(here)])
    same_everywhere.require_same_start("run", {"recipe": loaded})


def test_processes_with_stages_in_another_order_are_refused(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes have settings of equal names, but different random draws."""
    given: list[dict[str, object]] = []
    monkeypatch.setattr(same_everywhere, "process_count", lambda: 2)
    monkeypatch.setattr(same_everywhere, "gather_objects", lambda here: given.append(here) or given)
    for number, names in enumerate(("ab", "ba")):
        stages = {name: tiny.stage() for name in names}
        content = tiny.recipe(manifest, tmp_path, **stages)
        content["rank"]["evaluation"]["stage"] = "a"
        loaded = load_recipe(tiny.write_recipe(tmp_path / f"r{number}.yaml", content))
        if number:
            with pytest.raises(KitError, match="differs"):
                same_everywhere.require_same_start("run", {"recipe": loaded})
        else:
            same_everywhere.require_same_start("run", {"recipe": loaded})
