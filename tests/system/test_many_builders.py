"""One bank, several processes that build it: ranks, killed and started again in other numbers; decoding."""

import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from slow_builds import LOGMEL, build_slowly, computed, digest

from data_tools.audio import content_key, read_audio
from data_tools.cli import ranks
from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest
from system.__main__ import main
from system.compute.device import device_of
from system.experts.base import Frames
from system.experts.logmel import LogMel
from system.features.bank import open_bank
from system.features.build import bank_of, build_features

CLIPS = 240


def _start(clips: list[Clip], banks: Path, count: int) -> list[SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=build_slowly, args=(clips, banks, rank, count)) for rank in range(count)]
    for process in started:
        process.start()
    return started


@pytest.mark.slow
def test_bank_built_by_killed_processes_matches_an_uninterrupted_one(tmp_path: Path) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": CLIPS}))
    wave_of = {content_key(clip.path): digest(read_audio(clip.path, LOGMEL.rate)) for clip in clips}
    assert len(wave_of) == CLIPS
    banks, random = tmp_path / "banks", np.random.default_rng(7)
    banks.mkdir()
    folder = bank_of(LOGMEL, banks).folder
    under_way: Counter[str] = Counter()  # waves that a process had computed, and not stored, when it was killed

    def kill(process: SpawnProcess) -> None:
        """Stop it first, so that its unfinished work is seen in the state of the kill."""
        assert process.pid is not None
        while not any(number == process.pid for number, _ in computed(banks)):
            assert process.is_alive(), "nothing was left for it"
            time.sleep(0.005)
        time.sleep(float(random.uniform(0, 1.2)))
        os.kill(process.pid, signal.SIGSTOP)
        found = open_bank(folder, 128, "float16", LOGMEL.identity())
        stored = {wave_of[key] for key in list(found.keys())}
        under_way.update(wave for number, wave in computed(banks) if number == process.pid and wave not in stored)
        os.kill(process.pid, signal.SIGKILL)
        process.join()

    for count in (3, 2):
        for process in _start(clips, banks, count):
            kill(process)
    before = len(open_bank(folder, 128, "float16", LOGMEL.identity()))
    assert 0 < before < CLIPS, "killed too early or too late to show anything"
    for process in _start(clips, banks, 4):
        process.join()
        assert process.exitcode == 0
    times = Counter(wave for _, wave in computed(banks))
    assert set(times) == set(wave_of.values())
    assert {wave: n - 1 for wave, n in times.items() if n > 1}.items() <= under_way.items()
    assert {path.name for path in folder.glob("shard-*")} <= {"shard-1", "shard-2", "shard-3"}
    whole = build_features(clips, {"logmel": LOGMEL}, tmp_path / "other")
    killed = open_bank(folder, 128, "float16", LOGMEL.identity(), verify=True)
    assert sorted(killed.keys()) == sorted(whole.banks["logmel"].keys()) == sorted(wave_of)
    for key in wave_of:
        assert np.array_equal(killed.read(key), whole.banks["logmel"].read(key))
    print(f"{before} of {CLIPS} stored after 5 kills, {under_way.total()} under way at these, {times.total()} computed")


@pytest.mark.slow
def test_processes_of_torchrun_build_one_bank_together(tmp_path: Path) -> None:
    """All of them see one bank; the first alone prints, warnings of the other say whose they are."""
    world = tiny.make_world(tmp_path / "world", {"development": 40, "validation": 4, "evaluation": 4})
    (tmp_path / "world/development/development 003.wav").write_bytes(b"")
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, "-m", "system", "features", str(recipe)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("logmel: 47 series of dimension 128, in") == done.stdout.count("clips: 47 with") == 1
    for rank in ("", "[rank 1] "):
        skipped = f"\n{rank}skipped a clip: {tmp_path}/world/development/development 003.wav: "
        assert skipped in f"\n{done.stderr}"
    assert "[rank 1] logmel: computing" not in done.stderr
    (tmp_path / "world/development/development 005.wav").write_bytes(b"")
    strict = subprocess.run([*command, "--strict"], capture_output=True, text=True, timeout=300)
    assert strict.returncode != 0
    assert "error: " in strict.stderr


def test_decoding_processes_and_threads_give_equal_frames(tmp_path: Path) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 20}))
    Path(clips[4].path).write_bytes(b"no sound")
    threads = build_features(clips, {"logmel": LOGMEL}, tmp_path / "threads")
    processes = build_features(clips, {"logmel": LOGMEL}, tmp_path / "processes", workers=2)
    assert threads.broken == processes.broken
    assert list(processes.broken) == [clips[4].id]
    for clip_id in threads.keys:
        assert np.array_equal(threads.frames("logmel", clip_id), processes.frames("logmel", clip_id))


@pytest.mark.parametrize("workers", ["0", "-1", "two"])
def test_invalid_number_of_workers_is_refused(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "recipes/quickstart.yaml", f"--workers={workers}"]) == 2
    assert "whole" in capsys.readouterr().err


class _Ending(LogMel):
    """Whose process is killed when it decodes."""

    def read(self, path: str) -> np.ndarray:
        os._exit(9)


@pytest.mark.slow
def test_killed_decoding_process_ends_the_build_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool leaves the pipe of the results to the thread that may close it at the same time."""
    monkeypatch.setattr(SimpleQueue, "close", lambda results: pytest.fail("the pool closes it"))
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 2}))
    with pytest.raises(KitError, match="decodes"):
        build_features(clips, {"logmel": _Ending(**LOGMEL.model_dump())}, tmp_path / "banks", workers=1)


class _HalfSent(LogMel):
    """Expert whose process is killed while it sends decoded audio."""

    def read(self, path: str) -> np.ndarray:
        frame = sys._getframe()
        while "result_queue" not in frame.f_locals:
            assert frame.f_back is not None
            frame = frame.f_back
        os.write(frame.f_locals["result_queue"]._writer.fileno(), struct.pack("!i", 1000) + b"half")
        os._exit(9)


@pytest.mark.slow
def test_decoding_process_killed_while_writing_a_result_ends_the_build(tmp_path: Path) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 4}))
    with pytest.raises(KitError, match="decodes"):
        build_features(clips, {"logmel": _HalfSent(**LOGMEL.model_dump())}, tmp_path / "banks", workers=2)


def test_decoding_processes_killed_during_work_raise_kit_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first group is computed, of more clips than are decoded ahead."""
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 48}))
    load = LogMel.load

    def loaded(self: LogMel, device: torch.device) -> Frames:
        compute = load(self, device)

        def frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            for child in multiprocessing.active_children():
                child.kill()
            time.sleep(0.5)
            return compute(waves)

        return frames

    monkeypatch.setattr(LogMel, "load", loaded)
    with pytest.raises(KitError, match="decodes"):
        build_features(clips, {"logmel": LOGMEL}, tmp_path / "banks", workers=2)


def _build_with_workers(clips: list[Clip], banks: Path) -> None:
    LogMel.load = lambda self, device: lambda waves: time.sleep(600) or []  # type: ignore[method-assign,assignment]
    build_features(clips, {"logmel": LOGMEL}, banks, workers=2)


@pytest.mark.slow
def test_decoding_processes_exit_when_the_build_process_is_killed(tmp_path: Path) -> None:
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": 20}))
    build = multiprocessing.get_context("spawn").Process(target=_build_with_workers, args=(clips, tmp_path / "banks"))
    build.start()
    assert build.pid is not None
    while len(children := _children(build.pid)) < 2:
        time.sleep(0.05)
    build.kill()
    build.join()
    for _ in range(400):
        if not any(Path(f"/proc/{child}").exists() for child in children):
            return
        time.sleep(0.05)
    pytest.fail("they go on")


def _children(process: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            facts = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(facts[1]) == process:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, (0, 1)), ({"RANK": "2", "WORLD_SIZE": "3"}, (2, 3)), ({"RANK": "3", "WORLD_SIZE": "3"}, (0, 1)),
     ({"RANK": "1"}, (0, 1)), ({"RANK": "-1", "WORLD_SIZE": "3"}, (0, 1)), ({"RANK": "x", "WORLD_SIZE": "3"}, (0, 1))],
)  # fmt: skip
def test_rank_and_number_of_processes_are_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: tuple[int, int]
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ranks() == expected


def test_processes_other_than_the_first_print_only_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, printed, error in (("0", True, "error: "), ("1", False, "[rank 1] error: ")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert main(["recipes", "list"]) == 0
        assert capsys.readouterr().out, "one process prints, whatever a scheduler has set"
        monkeypatch.setattr("system.verbs.features.run", lambda _: print("computed") or 0)
        assert main(["features", "absent.yaml"]) == 0
        assert bool(capsys.readouterr().out) == printed
        monkeypatch.undo()
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert main(["features", "absent.yaml"]) == 1
        assert capsys.readouterr().err.startswith(f"{error}absent.yaml")


def test_process_of_torchrun_uses_the_gpu_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cases = ((False, "1", "cpu"), (True, "", "cuda"), (True, "0", "cuda:0"), (True, "1", "cuda:1"))
    for there, local, expected in cases:
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setenv("LOCAL_RANK", local)
        assert device_of() == torch.device(expected)
        if there:
            assert device_of("cuda") == torch.device(expected)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(KitError, match="processes"):
        device_of("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(KitError, match="machine"):
        device_of()
