"""A verb killed at its n-th file operation, for every n: forks of a process that imported the rooms."""

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

SEED = int(os.environ.get("LBAR_SEED", "2022"))  # of the first operation
LONGEST = 120  # seconds of a trial
HEAVY = [
    "torch._dynamo",
    "matplotlib.figure",
    "matplotlib.backends.backend_svg",
    "PIL.Image",
    "numba",
    "aiohttp",
    "pandas",
    "system.bridges.export",
    "system.recipe.data",
    "system.experiments.rank",
    "system.experiments.run",
    "system.experiments.studies",
    "system.training.train",
    "submission.plots",
    "data_tools.freesound.crawl",
    "data_tools.freesound.fetch",
]


class Ended(NamedTuple):
    """Result of a trial. status: of the verb, -9 after a kill. operations: their number. errors: printed text."""

    status: int
    operations: int
    errors: str


class Kills:
    """Trials of a verb. folder: file operations below it are counted."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server, self.folder = server, folder

    def run(self, argv: Sequence[object], kill_at: int = 0) -> Ended:
        """`python -m argv[0] argv[1:]`, killed at that operation; 0: not killed."""
        task = {"argv": [str(argument) for argument in argv], "folder": str(self.folder), "kill_at": kill_at}
        self._server.stdin.write(json.dumps(task) + "\n")
        self._server.stdin.flush()
        return Ended(*json.loads(self._server.stdout.readline()))

    def everywhere(
        self, argv: Sequence[object], begin: Callable[[], None], check: Callable[[str], None], stride: int
    ) -> int:
        """Kill the verb at every stride-th operation, from one drawn by SEED on, and return the number of kills.

        `begin` prepares the folder each time. After a kill the verb runs again, which must succeed, and `check` checks
        its files.
        """
        begin()
        whole = self.run(argv)
        assert whole.status == 0, whole.errors
        check("without a kill")
        kills = 0
        for n in range(random.Random(SEED).randint(1, stride), whole.operations + 1, stride):
            begin()
            killed = self.run(argv, kill_at=n)
            if killed.status == 0:  # a little less to do this time: a log line that tells of the seconds, say
                assert n > 0.9 * whole.operations, f"no kill at operation {n} of {whole.operations}"
                break
            assert killed.status == -9, killed.errors
            again = self.run(argv)
            assert again.status == 0, f"killed at operation {n} of {whole.operations}: {again.errors}"
            check(f"killed at operation {n} of {whole.operations}")
            kills += 1
        print(f"{' '.join(map(str, argv[:2]))}: {kills} kills at {whole.operations} file operations, seed {SEED}")
        return kills


def compiled(name: str, library: Path) -> Path:
    """A C file of this folder as a library for LD_PRELOAD.

    Skips where there is no C compiler, but fails there where LBAR_REQUIRE_DATA is set.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        output = f"needs a C compiler (cc) for {name}"
        pytest.fail(output) if os.environ.get("LBAR_REQUIRE_DATA") else pytest.skip(output)
    source = Path(__file__).with_name(name)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"], check=True)
    return library


@contextmanager
def killing(folder: Path, library: Path, variables: Mapping[str, str] | None = None) -> Iterator[Kills]:
    """A server of trials. variables: of its environment, added to those of the test."""
    compiled("kill_at.c", library)
    own = {"LD_PRELOAD": str(library), "LBAR_KILLS": str(library), "OMP_NUM_THREADS": "1"}
    environment = os.environ | dict(variables or {}) | own
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield Kills(server, folder)
    finally:
        server.communicate(timeout=60)


def _serve() -> None:
    """Read tasks, fork for each, tell how it ended."""
    for name in HEAVY:  # imported once for all forks
        import_module(name)
    rooms = {name: import_module(f"{name}.__main__") for name in ("data_tools", "submission", "system")}
    library = ctypes.CDLL(os.environ["LBAR_KILLS"])
    library.operations.restype = ctypes.c_long
    library.kill_at.argtypes = [ctypes.c_char_p, ctypes.c_long]
    for line in sys.stdin:
        task = json.loads(line)
        counted, count = os.pipe()
        output, tell = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(LONGEST)
            os.dup2(tell, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            library.kill_at(task["folder"].encode(), task["kill_at"])
            try:
                status = rooms[task["argv"][0]].main(task["argv"][1:])
            except BaseException as error:  # shown to the test, whatever it is
                status = 99
                os.write(2, f"{type(error).__name__}: {error}".encode())
            os.write(count, str(library.operations()).encode())
            os._exit(status)
        os.close(count)
        os.close(tell)
        with os.fdopen(output, errors="replace") as errors, os.fdopen(counted) as operations:
            text, number = errors.read(), operations.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([status, int(number or 0), text[-2000:]]), flush=True)


if __name__ == "__main__":
    _serve()
