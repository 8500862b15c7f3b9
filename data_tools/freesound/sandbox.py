"""A server on this machine that answers like Freesound, with invented sounds.

To try crawl, classify and fetch without a key, and for their tests. Each sound is a function of the seed and its id.
"""

import argparse
import asyncio
import os
import random
import re
import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from data_tools.audio import encoded
from data_tools.errors import DataError
from data_tools.freesound.api import PAGE_SIZE
from data_tools.freesound.fetch import PREFERENCES
from data_tools.scenes.captions import describe, describe_noisily
from data_tools.scenes.mix import KINDS, SECONDS, Event, draw_events, render
from data_tools.scenes.synth import CLASSES

LICENCES = (
    "http://creativecommons.org/publicdomain/zero/1.0/",
    "https://creativecommons.org/licenses/by/4.0/",
    "https://creativecommons.org/licenses/by-nc/4.0/",
    "http://creativecommons.org/licenses/sampling+/1.0/",
)
CAPTIONS = 0.3  # share of descriptions that read like captions
PRESENT = 0.85  # share of ids with a sound; the other ones are deleted
KEY = "sandbox"
RATE = 16_000
# Titles that would make bad file names, and what uploaders add to descriptions.
TITLES = ("../../x", "/etc/passwd", "CON", "x" * 300, "tab\tnew\nline.wav", 'a<b>c:d"e|f?g*.wav', "=1+1", "雨の音.wav")
EXTRAS = (
    "\n\nPlease credit me if you use this sound.",
    "<br />Free to use in any project, commercial or not.",
    ' <a href="https://example.org/my-sounds" rel="nofollow">more of my sounds</a>',
)


class Sandbox:
    """The server.

    Args:
        highest: Number of ids; 85 % have a sound.
        seed: Decides all sounds.
        faults: Share of requests that fail: 500, 429, a search that is down, a broken connection, a page of HTML.
        broken: Ids that make every search with them fail.
        nulls: Ids that are listed as null.
        hidden: Ids that searches do not find, as while the index is rebuilt.

    Attributes:
        seen: Path and headers of each request.
    """

    def __init__(
        self,
        highest: int,
        seed: int = 1,
        faults: float = 0.0,
        broken: Collection[int] = (),
        nulls: Collection[int] = (),
        hidden: Collection[int] = (),
    ) -> None:
        """Create the server without starting it."""
        self.highest, self.seed, self.faults = highest, seed, faults
        self.broken, self.nulls, self.hidden = set(broken), set(nulls), set(hidden)
        self.address = ""
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.changes: dict[int, dict[str, Any]] = {}  # fields by id that differ from the invented ones
        self._random = random.Random(seed)

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application()
        app.router.add_get("/apiv2/search/", self._search)
        app.router.add_get("/previews/{id:[0-9]+}.mp3", self._preview)
        return app

    def exists(self, number: int) -> bool:
        """Return whether there is a sound with this id."""
        return 0 < number <= self.highest and bool(self._rng(number, 0).random() < PRESENT)

    def ids(self) -> list[int]:
        """Return the ids of all sounds."""
        return [number for number in range(1, self.highest + 1) if self.exists(number)]

    def sound(self, number: int) -> dict[str, Any]:
        """Return a sound as the API describes it."""
        rng, (kind, events) = self._rng(number, 1), self._scene(number)
        names = [event.name for event in events]
        is_caption = rng.random() < CAPTIONS
        text = describe(rng, kind, names, 1, 0.0)[0] if is_caption else describe_noisily(rng, names)
        if rng.random() < (0.1 if is_caption else 0.4):
            text += EXTRAS[int(rng.integers(len(EXTRAS)))]
        odd = TITLES[int(rng.integers(len(TITLES)))]
        return {
            "id": number,
            "name": odd if rng.random() < 0.02 else f"{' '.join(names)} {number}.wav",
            "description": text,
            "tags": names,
            "username": f"user{rng.integers(1, 2 + self.highest // 20)}",
            "license": LICENCES[int(rng.choice(4, p=[0.55, 0.30, 0.12, 0.03]))],
            "gen_ai_preference": PREFERENCES[int(rng.choice(4, p=[0.85, 0.04, 0.03, 0.08]))],
            "duration": self._seconds(number),
            "created": f"20{5 + 20 * number // (self.highest + 1):02}-01-01T00:00:00Z",
            "filesize": 44 + 2 * round(44_100 * self._seconds(number)),
            "previews": {"preview-hq-mp3": f"{self.address}/previews/{number}.mp3"},
            "is_explicit": bool(rng.random() < 0.01),
            **self.changes.get(number, {}),
        }

    def _rng(self, number: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, number, purpose))

    def _seconds(self, number: int) -> float:
        """Return the length of a sound: most have that of a scene, some are too short or long for training."""
        shares, lengths = (0.0, 0.1, 0.15, 0.8, 0.97, 1.0), (0.5, 3.0, SECONDS, SECONDS, 20.0, 150.0)
        return round(float(np.interp(self._rng(number, 2).random(), shares, lengths)), 3)

    def _scene(self, number: int) -> tuple[str, list[Event]]:
        rng = self._rng(number, 3)
        kind = list(KINDS)[int(rng.integers(len(KINDS)))]
        return kind, draw_events(rng, kind, {name: [] for name in CLASSES})

    async def _search(self, request: web.Request) -> web.StreamResponse:
        """Answer a search by ids, or for the newest sounds."""
        self.seen.append((str(request.rel_url), dict(request.headers)))
        if request.headers.get("Authorization") != f"Token {KEY}":
            return web.json_response({"detail": "Invalid token."}, status=401)
        if fault := self._fault(request):
            return fault
        match = re.fullmatch(r"id:\((\d+(?: OR \d+)*)\)", request.query.get("filter", ""))
        if match:
            wanted = [number for number in map(int, match[1].split(" OR ")) if self.exists(number)][:PAGE_SIZE]
        else:
            wanted = [next(number for number in range(self.highest, 0, -1) if self.exists(number))]
        found = [number for number in wanted if number not in self.hidden]
        if self.broken.intersection(found):
            return web.Response(status=500, text="<h1>Server Error (500)</h1>", content_type="text/html")
        count = len(found) if match else sum(number not in self.hidden for number in self.ids())
        results = [None if number in self.nulls else self.sound(number) for number in found]
        return web.json_response({"count": count, "results": results})

    async def _preview(self, request: web.Request) -> web.StreamResponse:
        """Answer with a sound's audio."""
        self.seen.append((str(request.rel_url), dict(request.headers)))
        if fault := self._fault(request):
            return fault
        number = int(request.match_info["id"])
        if not self.exists(number):
            return web.Response(status=404)
        content = await asyncio.to_thread(self.audio, number)
        return web.Response(body=content, content_type="audio/mpeg")

    def audio(self, number: int) -> bytes:
        """Return the bytes of a sound's preview: its scene, repeated or cut to its length."""
        wave = render(self._rng(number, 4), *self._scene(number))
        length = round(self._seconds(number) * RATE)
        return encoded(np.resize(wave, length), RATE, "MP3")

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


async def serve(server: Sandbox, port: int, then: Sequence[str]) -> None:
    """Serve until the commands `then` of data_tools have ended; without commands, until an interrupt."""
    runner = web.AppRunner(server.app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        server.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        settings = {"FREESOUND_API": server.address, "FREESOUND_API_KEY": KEY}
        if not then:
            print("export", *(f"{name}={value}" for name, value in settings.items()), flush=True)
            await asyncio.Event().wait()
        home = str(Path(__file__).parents[2])  # the package may only be importable from the working folder
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        for command in then:
            words = [sys.executable, "-m", "data_tools", *shlex.split(command)]
            process = await asyncio.create_subprocess_exec(*words, env={**os.environ, "PYTHONPATH": path, **settings})
            if status := await process.wait():
                raise DataError(f"lbar data {command}: failed with exit status {status}")
    finally:
        await runner.cleanup()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `sandbox` to its parser."""
    add = parser.add_argument
    add("--sounds", type=int, default=2000, help="number of ids; 85 %% have a sound (default: 2000)")
    add("--seed", type=int, default=1, help="decides all sounds (default: 1)")
    add("--port", type=int, default=8025, help="port of the server; 0 for any free one (default: 8025)")
    add("--then", nargs="+", default=[], metavar="COMMAND", help="commands of lbar data to run, then stop")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `sandbox`: serve invented sounds as Freesound does; return the exit status."""
    if arguments.sounds < 1:
        raise DataError(f"--sounds {arguments.sounds}: give at least 1")
    asyncio.run(serve(Sandbox(arguments.sounds, arguments.seed), arguments.port, arguments.then))
    return 0
