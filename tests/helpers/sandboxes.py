"""The sandbox of Freesound in a thread of this process, or in a process of its own."""

import asyncio
import csv
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from data_tools.freesound.sandbox import KEY, Sandbox
from data_tools.freesound.store import open_store

FAST = ["--per-minute", "1000000", "--per-day", "1000000"]


@contextmanager
def served(server: Sandbox) -> Iterator[Sandbox]:
    """Run a sandbox in a thread; the environment variables of a client lead to it."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(server.app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def work() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
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
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[0] == "export"
        yield dict(word.split("=", 1) for word in words[1:])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def stored(path: Path, columns: str = "id, description, duration, license") -> list[tuple[Any, ...]]:
    """Rows of the sounds in a store, by id."""
    with open_store(path, read_only=True) as store:
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
