"""What several processes say when one of them fails, is killed, or hangs: one sentence, in the run's log too."""

import os
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import torch.multiprocessing
from several import ranks_of
from trainings import content, epochs, started, wait_for

from data_tools.audio.read import content_key
from data_tools.errors import DataError, KitError, SaidElsewhere
from data_tools.manifest import read_manifest
from system.compute import distributed
from system.compute.distributed import in_any, in_step, index, processes
from system.features.bank import Bank
from system.runs.log_file import errors_noted


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
        assert not in_any(False)
        if rank == 1:
            wait_for(Path(folder, "given up").exists, 60)
            return
        with (
            pytest.raises(KitError, match=r"^rank 0 of 2 has waited about 1 s for another one, which hangs; run"),
            in_step(),
        ):
            in_any(False)
        Path(folder, "given up").touch()


@pytest.mark.slow
def test_one_that_hangs_in_a_step_is_given_up(tmp_path: Path) -> None:
    spawned(hang, 2, str(tmp_path))


def fail(rank: int, port: int, folder: str) -> None:
    """The second and the third process have one error, the first waits for them."""
    as_rank(rank, 3, port)
    try:
        with processes(torch.device("cpu")), errors_noted(Path(folder)):
            if index():
                raise DataError("clips.csv is damaged\ndelete it")
            in_any(False)
    except SaidElsewhere:
        outcome = "silent"
    except DataError as error:
        outcome = str(error)
    Path(folder, str(rank)).write_text(outcome)


@pytest.mark.slow
def test_the_same_error_of_several_is_said_and_noted_once(tmp_path: Path) -> None:
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


def test_an_error_of_one_process_is_noted_without_a_rank_and_no_log_is_made(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), errors_noted(tmp_path):
        raise ZeroDivisionError("by nothing")
    assert not list(tmp_path.iterdir())
    (tmp_path / "log.txt").touch()
    with pytest.raises(ZeroDivisionError), errors_noted(tmp_path):
        raise ZeroDivisionError("by nothing")
    with pytest.raises(SaidElsewhere), errors_noted(tmp_path):
        raise SaidElsewhere("by another")
    (line,) = (tmp_path / "log.txt").read_text().splitlines()
    assert line.split(" ", 2)[2] == "error: ZeroDivisionError: by nothing"


@pytest.mark.slow
def test_a_killed_process_and_damaged_frames_are_one_sentence_each(manifest: Path, tmp_path: Path) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content(manifest, tmp_path, epochs=400, steps_per_epoch=1))
    run = tmp_path / "run"
    launcher = started(recipe, run, 3)
    wait_for(lambda: epochs(run) >= 2)
    os.kill(ranks_of(launcher.pid)[1], signal.SIGSTOP)  # the others wait for it in a step when it is killed
    time.sleep(0.5)
    os.kill(ranks_of(launcher.pid)[1], signal.SIGKILL)
    _, said = launcher.communicate(timeout=120)
    (sentence,) = [line.partition("error: ")[2] for line in said.splitlines() if "error: " in line]
    assert " of 3 has lost the others: one of them was killed" in sentence
    assert "RuntimeError" not in said
    (noted,) = [line for line in (run / "log.txt").read_text().splitlines() if "error: " in line]
    assert noted.endswith(sentence)
    assert noted.split(" ", 2)[2].startswith(f"[{sentence[:6]}] error: ")

    damage(next((tmp_path / "banks").glob("logmel*")), manifest)
    _, said = started(recipe, run, 3).communicate(timeout=120)
    (line,) = [line for line in said.splitlines() if "error: " in line]
    assert " are damaged; python -m system features RECIPE --verify finds all" in line
    _, noted = [line for line in (run / "log.txt").read_text().splitlines() if "error: " in line]
    assert noted.partition("error: ")[2] == line.partition("error: ")[2]
    assert (line.startswith("[rank ") and line.split("] ")[0] in noted) or "[rank 0] " in noted


def damage(folder: Path, manifest: Path) -> None:
    """Flip a byte in the frames of one clip that is trained on, of which a step's batch is in one process."""
    clip = next(clip for clip in read_manifest(manifest) if clip.split == "development")
    key = content_key(clip.path)
    shard = Bank(folder, 128, np.dtype("float16"), "", False)._shard_of(key)
    first, _ = shard.span(key)
    with shard.frames_file.open("r+b") as file:
        file.seek(first * 128 * 2)
        before = file.read(1)[0]
        file.seek(first * 128 * 2)
        file.write(bytes([before ^ 1]))
