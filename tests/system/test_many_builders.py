"""One bank, several processes that build it: ranks, killed and started again in other numbers."""

import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np
import pytest
import tiny
from slow_builds import LOGMEL, build_slowly, computed, digest

from data_tools.audio import read_audio
from data_tools.files import quick_checksum
from data_tools.manifest import read_manifest
from system.features.extract import bank_of, build_features

CLIPS = 240


@pytest.mark.slow
def test_bank_built_by_killed_processes_matches_an_uninterrupted_one(tmp_path):
    clips = read_manifest(tiny.make_world(tmp_path / "world", {"development": CLIPS}))
    wave_of = {quick_checksum(Path(clip.path)): digest(read_audio(clip.path, LOGMEL.rate)) for clip in clips}
    assert len(wave_of) == CLIPS
    banks, random, context = tmp_path / "banks", np.random.default_rng(7), multiprocessing.get_context("spawn")
    banks.mkdir()

    def start(count: int) -> list[SpawnProcess]:
        some = [context.Process(target=build_slowly, args=(clips, banks, rank, count)) for rank in range(count)]
        for process in some:
            process.start()
        return some

    for process in (one for count in (3, 2) for one in start(count)):
        while not any(number == process.pid for number, _ in computed(banks)):
            assert process.is_alive(), "nothing was left for it"
            time.sleep(0.005)
        time.sleep(float(random.uniform(0, 1.2)))
        process.kill()
        process.join()
    before = len(bank_of(LOGMEL, banks).places)
    assert 0 < before < CLIPS, "killed too early or too late to show anything"
    for process in start(4):
        process.join()
        assert process.exitcode == 0
    times = Counter(wave for _, wave in computed(banks))
    assert set(times) == set(wave_of.values())
    assert times.total() < 2.5 * CLIPS, "processes share the work"
    whole, killed = (
        build_features(clips, {"logmel": LOGMEL}, tmp_path / "other").banks["logmel"],
        bank_of(LOGMEL, banks),
    )
    assert sorted(killed.places) == sorted(whole.places) == sorted(wave_of)
    assert all(np.array_equal(killed.read(key), whole.read(key)) for key in wave_of)


@pytest.mark.slow
def test_processes_of_torchrun_build_one_bank_together(tmp_path):
    world = tiny.make_world(tmp_path / "world", {"development": 40, "validation": 4, "evaluation": 4})
    (tmp_path / "world/development/development 003.wav").write_bytes(b"")
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, "-m", "system", "run", "--until=features", str(recipe)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("clips: 47 with") == 1
    for rank in ("", "[rank 1] "):
        skipped = f"\n{rank}skipped a clip: {tmp_path}/world/development/development 003.wav: "
        assert skipped in f"\n{done.stderr}"
    assert "[rank 1] logmel: computing" not in done.stderr
