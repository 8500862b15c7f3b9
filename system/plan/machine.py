"""What this machine has for a recipe: memory and disk, and a warning where they do not suffice."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

GIB = 1 << 30
WARNING = "WARNING:"  # what will probably not fit, by an estimate


def gpu_memory() -> float | None:
    """Bytes of the first GPU, as its driver's own tool tells; None without one."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        return float(output.splitlines()[0]) * 2**20
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def machine_memory() -> float | None:
    """Bytes of this machine's memory, or of the share that its container or job may use; None where nothing tells."""
    try:
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):  # no such system
        return None
    try:
        return min(found, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no limit
        return found


def disk_warnings(needs: Mapping[Path, float]) -> Iterator[str]:
    """A line for every disk that has less room than is needed. needs: bytes by the folder that they go to."""
    on_disk: dict[int, list[Path]] = {}
    for folder in needs:
        on_disk.setdefault(_there(folder).stat().st_dev, []).append(folder)
    for folders in on_disk.values():
        needed, free = sum(needs[folder] for folder in folders), shutil.disk_usage(_there(folders[0])).free
        if needed > free:
            named = " and ".join(f"{folder}/" for folder in folders)
            sizes = f"about {needed / GIB:.1f} GiB are to come into {named}, whose disk has {free / GIB:.1f} free"
            yield f"{WARNING} {sizes}"


def _there(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
