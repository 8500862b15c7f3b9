"""The sandbox in three shapes: its answers called directly in virtual time, and its server in a process of its own."""

import asyncio
import csv
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import SecretStr

from data_tools.freesound import crawl
from data_tools.freesound.client import Client, Response
from data_tools.freesound.quota import Clock, Quota
from data_tools.freesound.sounds import parse_time
from data_tools.freesound.store import Store
from data_tools.sandbox.answers import Answers, PoisonError
from data_tools.sandbox.faults import Throttle
from data_tools.sandbox.verb import KEY_VALUE

SITE = "http://127.0.0.1:8025"
HTML = b"<h1>Server Error (500)</h1>"
UNLIMITED = ["--per-minute", "1000000", "--per-day", "1000000"]
FAST = [*UNLIMITED, "--speed", "1000000", "--timeout", "10"]
Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything can run, and jumps to the next timer when nothing can."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        super()._run_once()


class LoopClock(Clock):
    """The time of the loop that runs."""

    def now(self) -> float:
        return 1e9 + asyncio.get_running_loop().time()


def run_virtually(work: Coroutine[Any, Any, Result]) -> tuple[Result, float]:
    """Its result, and the virtual seconds it took."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(work)
        return result, runner.get_loop().time()


class Direct:
    """A transport to a sandbox in this process. latency: seconds, drawn for each request; a request arrives at
    any moment of it. tamper: changes an answer; it gets the number of the request, from 1."""

    def __init__(
        self,
        answers: Answers,
        throttle: Throttle | None = None,
        latency: Callable[[], float] = lambda: 0.0,
        tamper: Callable[[int, Response], Response] = lambda number, answer: answer,
    ) -> None:
        self.answers, self.throttle, self._latency, self._tamper = answers, throttle, latency, tamper
        self.urls: list[str] = []
        self.times: list[float] = []  # of sending, in the loop's seconds
        self.refused = 0
        self._rng = random.Random(0)

    async def post(self, url: str, form: Mapping[str, str]) -> Response:
        raise AssertionError("a crawl sends no form")

    async def get(
        self, url: str, headers: Mapping[str, str], into: Path | None = None, limit: int | None = None
    ) -> Response:
        assert headers["Authorization"] == f"Token {KEY_VALUE}"
        self.urls.append(url)
        self.times.append(asyncio.get_running_loop().time())
        number = len(self.urls)
        latency = self._latency()
        arrival = latency * self._rng.random()
        await asyncio.sleep(arrival)
        refusal = self.throttle.refusal() if self.throttle else None
        if refusal:
            self.refused += 1
            reply = (429, {"detail": refusal})
        else:
            try:
                reply = self.answers.search(dict(parse_qsl(urlsplit(url).query, keep_blank_values=True)), SITE)
            except PoisonError:
                return self._tamper(number, Response(500, HTML, len(HTML)))
        await asyncio.sleep(latency - arrival)
        body = json.dumps(reply[1]).encode()
        return self._tamper(number, Response(reply[0], body, len(body)))


def direct_client(store: Store, transport: Direct, per_minute: int = 10**6, per_day: int = 10**6) -> Client:
    clock = LoopClock()
    return Client(SITE, SecretStr(KEY_VALUE), Quota(store.database, per_minute, per_day, clock), transport, clock)


@contextmanager
def serving(*arguments: str) -> Iterator[dict[str, str]]:
    """A sandbox in a process of its own; the variables that lead to it."""
    command = [sys.executable, "-m", "data_tools", "sandbox", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "invented sounds on" in process.stdout.readline()
        words = process.stdout.readline().split()
        assert words[0] == "export"
        yield dict(word.split("=", 1) for word in words[1:])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def stored(path: Path, columns: str = "id") -> list[tuple[Any, ...]]:
    """Rows of the sounds that are not missing, by id."""
    store = Store(path)
    try:
        return store.database.execute(f"SELECT {columns} FROM sounds WHERE NOT missing ORDER BY id").fetchall()
    finally:
        store.close()


def read_all(
    path: Path,
    transport: Direct,
    workers: int = 4,
    per_minute: int = 10**6,
    per_day: int = 10**6,
    since: str | None = None,
) -> float:
    """Crawl to the end; the virtual seconds it took."""
    store = Store(path, create=True)
    try:
        crawl._plan_windows(store, since, None, SITE)

        async def work() -> None:
            client = direct_client(store, transport, per_minute, per_day)
            if await crawl.read_whole(client, store, workers):
                await crawl.look_up_missing(client, store)

        return run_virtually(work())[1]
    finally:
        store.close()


def truth(answers: Answers) -> list[tuple[Any, ...]]:
    """Id, upload time, description and duration of every existing sound, by id."""
    found = []
    for number in range(answers.corpus.size):
        if number not in answers._hidden and not answers.is_null(number):
            sound = answers.corpus.sound(number, SITE)
            found.append((sound["id"], parse_time(sound["created"]), sound["description"], sound["duration"]))
    return found


def assert_whole(path: Path, answers: Answers) -> None:
    """The store holds the sandbox's truth. Tells the first few that differ: all of them would drown everything else."""
    kept, there = stored(path, TOLD), truth(answers)
    assert sorted(set(there) - set(kept))[:5] == [], "missing"
    assert sorted(set(kept) - set(there))[:5] == [], "never there"
    assert len(kept) == len(there)


TOLD = "id, created, description, duration"


def write_scores(path: Path, rows: list[tuple[object, ...]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["freesound_id", "score", "text"])
        writer.writerows(rows)
    return path


def everything(answers: Answers) -> list[tuple[object, ...]]:
    """Scores that fall with the number."""
    size = answers.corpus.size
    return [(answers.corpus.id(number), 1 - number / size, f"sound number {number}") for number in range(size)]
