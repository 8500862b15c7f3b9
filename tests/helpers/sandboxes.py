"""The sandbox of Freesound with faults, in a thread of this process, or in a process of its own."""

import asyncio
import csv
import random
import re
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from data_tools.freesound import sandbox
from data_tools.freesound.sandbox import KEY
from data_tools.freesound.store import open_store

FAST = ["--per-minute", "1000000", "--per-day", "1000000"]


class Sandbox(sandbox.Sandbox):
    """A sandbox with faults.

    Attributes:
        faults: Share of requests that fail: 500, 429, a search that is down, a broken connection, a page of HTML.
        broken: Ids that make every search with them fail.
        nulls: Ids that are listed as null.
        hidden: Ids that searches do not find, as while the index is rebuilt.
        seen: Path and headers of each request.
        changes: Fields by id that differ from the invented ones.
    """

    def __init__(
        self,
        highest: int,
        seed: int = 1,
        faults: float = 0.0,
        broken: Collection[int] = (),
        nulls: Collection[int] = (),
    ) -> None:
        super().__init__(highest, seed)
        self.faults, self.broken, self.nulls, self.hidden = faults, set(broken), set(nulls), set[int]()
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.changes: dict[int, dict[str, Any]] = {}
        self._random = random.Random(seed)

    def sound(self, number: int) -> dict[str, Any]:
        return super().sound(number) | self.changes.get(number, {})

    async def search(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((str(request.rel_url), dict(request.headers)))
        if fault := self._fault(request):
            return fault
        wanted = {int(number) for number in re.findall(r"\d+", request.query.get("filter", ""))}
        if self.broken & wanted:
            return web.Response(status=500, text="<h1>Server Error (500)</h1>", content_type="text/html")
        answer = await super().search(request)
        if answer.status != 200 or not (self.hidden or self.nulls):
            return answer
        shown = [number for number in sorted(wanted) or self.ids() if self.exists(number) and number not in self.hidden]
        page = shown if wanted else shown[:-3:-1]
        return web.json_response(
            {"count": len(shown), "results": [None if number in self.nulls else self.sound(number) for number in page]}
        )

    async def preview(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((str(request.rel_url), dict(request.headers)))
        return self._fault(request) or await super().preview(request)

    def _fault(self, request: web.Request) -> web.StreamResponse | None:
        if self._random.random() >= self.faults:
            return None
        kind = self._random.randrange(5)
        if kind == 0 and request.transport:
            request.transport.abort()
        details = {1: (400, "Search server error: Failed to connect to server"), 2: (429, "Request was throttled.")}
        if kind in details:
            status, detail = details[kind]
            return web.json_response({"detail": detail}, status=status)
        return web.Response(status=502 if kind == 3 else 500, text="<h1>Error</h1>", content_type="text/html")


@contextmanager
def served(server: Sandbox) -> Iterator[Sandbox]:
    """Run a sandbox in a thread; the environment variables of a client lead to it."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    def work() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(server.start(0))
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FREESOUND_API", server.address)
            patch.setenv("FREESOUND_API_KEY", KEY)
            yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


@contextmanager
def serving(*arguments: str) -> Iterator[dict[str, str]]:
    """A sandbox in a process of its own; the environment variables that lead to it."""
    command = [sys.executable, "-m", "data_tools", "sandbox", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        words = process.stdout.readline().split()
        assert words[0] == "export"
        yield dict(word.split("=", 1) for word in words[1:])
    finally:
        process.terminate()  # a process of the background ignores Ctrl-C
        process.communicate(timeout=30)


def stored(path: Path, columns: str = "id, description, duration, license") -> list[tuple[Any, ...]]:
    """Rows of the sounds in a store, by id."""
    with open_store(path) as store:
        return list(store.sounds(columns))


def truth(server: Sandbox) -> list[tuple[Any, ...]]:
    """Rows of the sounds that a client can read, by id."""
    unreadable = server.broken | server.nulls
    sounds = [server.sound(number) for number in server.ids() if number not in unreadable]
    return [(one["id"], one["description"], one["duration"], one["license"]) for one in sounds]


def write_scores(path: Path, rows: Iterable[tuple[object, ...]]) -> Path:
    """Write a table as classify does."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("freesound_id", "score", "text"), *rows])
    return path


def falling_scores(server: Sandbox) -> list[tuple[object, ...]]:
    """Rows of a table of scores that fall with the id."""
    return [(number, 1 - number / (server.highest + 1), f"sound number {number}") for number in server.ids()]
