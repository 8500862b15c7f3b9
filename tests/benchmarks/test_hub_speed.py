"""Ten thousand clips in tars and parquet files: time and memory of hub, and crops against plain files."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import packed
import pytest
import soundfile
from timing import best_seconds

from data_tools.audio.excerpts import read_excerpt, sound_of
from data_tools.audio.members import on_disk
from data_tools.manifest import read_manifest, write_manifest

pytestmark = pytest.mark.benchmark

CLIPS, SHARDS, RATE = 10_000, 5, 32_000


def sounds(folder: Path) -> list[tuple[str, bytes]]:
    """Forty sounds of 10 s at 44.1 kHz, FLAC and MP3."""
    draw, found = np.random.default_rng(0), []
    for number in range(40):
        wave = np.cumsum(draw.standard_normal(441_000))
        wave -= np.convolve(wave, np.ones(500) / 500, "same")
        path = folder / f"sound.{('flac', 'mp3')[number % 2]}"
        soundfile.write(path, wave / np.abs(wave).max() / 1.2, 44_100)
        found.append((path.suffix, path.read_bytes()))
    return found


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same clips as plain files, in tars, in parquet files as pyarrow writes them, and in exported ones."""
    folder = tmp_path_factory.mktemp("sets")
    known, every = sounds(folder), range(CLIPS)
    for shard in range(SHARDS):
        numbers = every[shard::SHARDS]
        files: dict[str, bytes] = {}
        for number in numbers:
            suffix, content = known[number % 40]
            files |= {f"{number}{suffix}": content, f"{number}.json": json.dumps({"caption": f"c{number}"}).encode()}
        packed.write_tar(folder / "tar" / f"train-{shard:05}-of-{SHARDS:05}.tar", files)
        rows = [
            {"audio": {"bytes": known[n % 40][1], "path": f"{n}{known[n % 40][0]}"}, "caption": f"c{n}"}
            for n in numbers
        ]
        packed.write_parquet(folder / "parquet" / f"train-{shard:05}-of-{SHARDS:05}.parquet", rows)
    return {form: folder / form for form in ("tar", "parquet")}


def measured(*arguments: object) -> tuple[float, float]:
    """Run a verb. Returns: Its seconds, and its peak memory in MiB."""
    code = (
        "import re, sys, time; from pathlib import Path; began = time.perf_counter(); "
        "from data_tools.__main__ import main; status = main(sys.argv[1:]); seconds = time.perf_counter() - began; "
        "print(seconds, int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) / 1024); "
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, memory = map(float, output.splitlines()[-1].split())
    return seconds, memory


def test_ten_thousand_clips_in_archives_are_listed_in_a_minute_and_read_as_fast_as_files(
    sets: dict[str, Path], tmp_path: Path
) -> None:
    manifests = {form: tmp_path / f"{form}.jsonl" for form in sets}
    for form, path in sets.items():
        seconds, memory = measured("hub", path, "--out", manifests[form])
        print(f"\nhub, {form}: {seconds:.1f} s, {memory:.0f} MiB")
        assert seconds < 60
        assert memory < 1024
    plain = []
    for clip in read_manifest(manifests["tar"]):
        path = tmp_path / "plain" / clip.file_name
        path.parent.mkdir(exist_ok=True)
        with on_disk(clip.path) as file:
            path.write_bytes(file.read_bytes())
        plain.append(clip.model_copy(update={"path": str(path)}))
    write_manifest(tmp_path / "plain.jsonl", plain)
    seconds, memory = measured(
        "export", tmp_path / "plain.jsonl", "--format", "parquet", "--out", tmp_path / "exported"
    )
    print(f"export to parquet: {seconds:.1f} s, {memory:.0f} MiB")
    seconds, memory = measured("hub", tmp_path / "exported", "--out", tmp_path / "exported.jsonl")
    print(f"hub, exported parquet: {seconds:.1f} s, {memory:.0f} MiB")
    some = random.Random(0).sample([clip.id for clip in plain], 200)
    works = []
    names = {"plain": tmp_path / "plain.jsonl", **manifests, "exported": tmp_path / "exported.jsonl"}
    for path in names.values():
        by_name = {clip.file_name: clip.path for clip in read_manifest(path)}
        works.append(reading([by_name[one.rpartition("/")[2]] for one in some]))
    for threads in (1, 2):
        with ThreadPoolExecutor(threads) as pool:
            seconds_each = best_seconds([lambda work=work: work(pool) for work in works], 5)  # type: ignore[misc]
        ratios = {name: seconds_each[0] / one for name, one in zip(names, seconds_each, strict=True)}
        each = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        print(
            f"{threads} threads, crops of 5 s per second relative to {200 / seconds_each[0]:.0f} of plain files: {each}"
        )
        assert min(ratios.values()) > 0.8


def reading(paths: list[str]) -> Callable[[ThreadPoolExecutor], list[np.ndarray]]:
    """Return a function that reads one crop of each file in a pool of threads."""
    known = {path: sound_of(path) for path in paths}

    def crop(path: str) -> np.ndarray:
        """Read a crop."""
        return read_excerpt(path, known[path], RATE, 2 * RATE, 5 * RATE)

    return lambda pool: list(pool.map(crop, paths))
