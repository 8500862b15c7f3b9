"""Memory and disk of this machine.

Find the memory of this machine and its GPU, and disks with too little free space for a recipe.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from data_tools.files import free_bytes, nearest_existing

MIB = 1 << 20
GIB = 1 << 30


def gpu_memory() -> float | None:
    """Return the memory of the first usable GPU in bytes, by nvidia-smi; None without a GPU.

    CUDA_VISIBLE_DEVICES selects GPUs by number or by name. For a part of a GPU (MIG), the whole memory is returned.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        named = "" if visible.startswith("MIG-") else visible
        if not visible:
            return None
        return next(
            float(size) * 2**20 for index, uuid, size in rows if named in ("", index) or _names_gpu(named, uuid)
        )
    except (OSError, ValueError, StopIteration, subprocess.SubprocessError):
        return None


def _names_gpu(named: str, uuid: str) -> bool:
    """Return whether a name in CUDA_VISIBLE_DEVICES denotes the GPU with the UUID `uuid`.

    named: The complete UUID of a GPU, such as GPU-1a2b..., or its first characters.
    """
    return named.startswith("GPU-") and uuid.startswith(named)


def machine_memory() -> float | None:
    """Return the usable memory of this machine in bytes; None if it is not known.

    A container or job may limit it. The smallest limit of this process's control group, and of all groups above it, is
    used.
    """
    try:
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):  # no such system
        return None
    for limit in _limit_files():
        with suppress(OSError, ValueError):  # no such file, or `max`: no limit
            memory = min(memory, float(limit.read_text()))
    return memory


def _limit_files() -> Iterator[Path]:
    """Yield the files that may contain a limit of this process's memory.

    The files belong to the process's control groups (versions 1 and 2), and to all groups above these.
    In a container the groups may have the names of the host. The container's own group is then the uppermost one.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, kinds, group = line.split(":", 2)
        if not kinds or "memory" in kinds.split(","):  # version 2, version 1
            root, name = ("/sys/fs/cgroup", "max") if not kinds else ("/sys/fs/cgroup/memory", "limit_in_bytes")
            groups = Path(group.lstrip("/"))
            yield from (Path(root, each, f"memory.{name}") for each in (groups, *groups.parents))


def full_disks(needs: Mapping[Path, float]) -> Iterator[tuple[str, str]]:
    """Yield, for every disk with too little free space, its folders and an error message. needs: Bytes by folder."""
    on_disk: dict[int, list[Path]] = {}
    for folder in needs:
        on_disk.setdefault(nearest_existing(folder).stat().st_dev, []).append(folder)
    for folders in on_disk.values():
        needed, free = sum(needs[folder] for folder in folders), free_bytes(folders[0])
        if needed > free:
            named = " and ".join(f"{folder}/" for folder in folders)
            fault = f"about {needed / GIB:.1f} GiB will be written, but the disk has {free / GIB:.1f} GiB free"
            yield named, f"{fault}; free disk space, or use another disk"
