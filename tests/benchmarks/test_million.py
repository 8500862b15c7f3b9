"""A bank of a terabyte and a million series, and a manifest of 400,000 clips: seconds and memory of opening them,
each in a process of its own. `python -m pytest -m benchmark -s`."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark

COUNT, ROWS, DIM = 1_000_000, 256, 2048
MEASURED = """
import sys, time
from pathlib import Path
{imports}
began = time.{clock}()
{work}
seconds = time.{clock}() - began
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss counts the parent too
print(f"{{seconds:.2f}} {{int(peak.split()[1]) / 1024:.0f}}")
"""


def measured(imports: str, work: str, *arguments: Path, clock: str = "perf_counter") -> tuple[float, float]:
    """Seconds of the work, and MiB of a process that does nothing else, its imports included."""
    code = MEASURED.format(imports=imports, work=work, clock=clock)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, size = done.stdout.split()[-2:]
    return float(seconds), float(size)


def forget(path: Path) -> None:
    """Remove a file from the system's page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_bank_of_a_million_series_opens_quickly(tmp_path):
    facts = {"identity": {}, "dim": DIM, "dtype": "float16"}
    (tmp_path / "bank.json").write_text(json.dumps(facts))
    with (tmp_path / "x.index").open("w") as file:
        for number in range(COUNT):
            key, first = hashlib.sha256(str(number).encode()).hexdigest(), ROWS * number
            file.write(f"{key} {first} {ROWS} {number * 4001 % 2**32}\n")
    with (tmp_path / "x.frames").open("wb") as file:
        file.truncate(COUNT * ROWS * DIM * 2)  # sparse: nothing of it is on the disk
    print(f"\nframes: {(tmp_path / 'x.frames').stat().st_size / 1e12:.2f} TB")
    imports = "from system.features.bank import Bank"
    work = "bank = Bank(Path(sys.argv[1]), 2048, 'float16', {}); assert len(bank.places) == 1_000_000"
    for state in ("cold", "warm"):
        if state == "cold":
            forget(tmp_path / "x.index")
        seconds, size = measured(imports, work, tmp_path)
        print(f"index of {COUNT:,} series, {state}: {seconds:.2f} s, {size:.0f} MiB")
        assert seconds < 5
        assert size < 500 * 1e6 / 2**20


def write_manifest_of(path: Path, count: int) -> None:
    """Write a manifest like WavCaps': one caption per clip; one in fifty has a quotation, which is slower to check."""
    with path.open("w") as file:
        for number in range(count):
            caption = f"A dog barks {number} times while a train passes by and people talk in the background."
            clip = {
                "id": f"wavcaps/train/{number:07}.flac",
                "file_name": f"{number:07}.flac",
                "path": f"audio/{number % 1000:03}/{number:07}.flac",
                "seconds": 1 + number % 60 / 7,
                "captions": [caption if number % 50 else f'Somebody says "hello {number}".'],
                "source": "wavcaps",
                "split": "train" if number % 100 else "test",
                "freesound_id": str(number),
                "licence": "CC BY 4.0",
                "uploader": f"user {number % 5000}",
            }
            file.write(json.dumps(clip, separators=(",", ":")) + "\n")


def test_manifest_of_400_000_clips_takes_at_most_15_seconds_and_half_a_gigabyte(tmp_path):
    """As many as WavCaps has; the limit of memory counts the process and its imports."""
    path = tmp_path / "m.jsonl"
    write_manifest_of(path, 400_000)
    imports = "from data_tools.manifest import of_split, read_manifest"
    _, bare = measured(imports, "clips = []")
    work = "clips = of_split(read_manifest(Path(sys.argv[1])), 'train', ''); assert len(clips) == 396_000"
    seconds, size = measured(imports, work, path, clock="process_time")
    print(f"\nmanifest of 400,000 clips, {path.stat().st_size / 1e6:.0f} MB: {seconds:.2f} s, {size - bare:.0f} MiB")
    assert seconds < 15
    assert size - bare < 400 * 1e6 / 2**20
