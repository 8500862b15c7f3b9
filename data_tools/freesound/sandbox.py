"""A server of invented sounds with Freesound's API.

To try crawl, classify and fetch without a key. Each sound is a function of the seed and its id.
"""

import asyncio
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from data_tools.audio import encoded
from data_tools.errors import KitError
from data_tools.freesound.fetch import PREFERENCES
from data_tools.scenes.captions import describe, describe_noisily
from data_tools.scenes.mix import KINDS, SECONDS, Event, draw_events, render
from data_tools.scenes.synth import CLASSES

if TYPE_CHECKING:
    from aiohttp.web import AppRunner, Request, StreamResponse

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
EXTRAS = (  # what uploaders add to descriptions
    "\n\nPlease credit me if you use this sound.",
    "<br />Free to use in any project, commercial or not.",
    ' <a href="https://example.org/my-sounds" rel="nofollow">more of my sounds</a>',
)


class Sandbox:
    """The server.

    Args:
        highest: Number of ids; 85 % have a sound.
        seed: Decides all sounds.
    """

    def __init__(self, highest: int, seed: int = 1) -> None:
        """Create the server without starting it."""
        self.highest, self.seed, self.address = highest, seed, ""

    async def start(self, port: int) -> "AppRunner":
        """Start the server, and set its address; 0 is any free port."""
        from aiohttp import web

        app = web.Application()
        app.router.add_get("/apiv2/search/", self.search)
        app.router.add_get("/previews/{id:[0-9]+}.mp3", self.preview)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

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
        return {
            "id": number,
            "name": f"{' '.join(names)} {number}.wav",
            "description": text,
            "tags": names,
            "username": f"user{rng.integers(1, 2 + self.highest // 20)}",
            "license": LICENCES[int(rng.choice(4, p=[0.55, 0.30, 0.12, 0.03]))],
            "gen_ai_preference": PREFERENCES[int(rng.choice(4, p=[0.85, 0.04, 0.03, 0.08]))],
            "duration": self._seconds(number),
            "previews": {"preview-hq-mp3": f"{self.address}/previews/{number}.mp3"},
        }

    def audio(self, number: int) -> bytes:
        """Return the bytes of a sound's preview: its scene, repeated or cut to its length."""
        wave = render(self._rng(number, 4), *self._scene(number))
        return encoded(np.resize(wave, round(self._seconds(number) * RATE)), RATE, "MP3")

    def _rng(self, number: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, number, purpose))

    def _seconds(self, number: int) -> float:
        """Return the length of a sound: most have that of a scene, some are too short or long for training."""
        shares, lengths = (0.0, 0.1, 0.15, 0.8, 0.97, 1.0), (0.5, 3.0, SECONDS, SECONDS, 20.0, 150.0)
        return round(float(np.interp(self._rng(number, 2).random(), shares, lengths)), 3)

    def _scene(self, number: int) -> tuple[str, list[Event]]:
        rng = self._rng(number, 3)
        kind = list(KINDS)[int(rng.integers(len(KINDS)))]
        return kind, draw_events(rng, kind, dict.fromkeys(CLASSES, ()))

    async def search(self, request: "Request") -> "StreamResponse":
        """Answer a search by ids, or for the newest sound."""
        from aiohttp.web import json_response

        if request.headers.get("Authorization") != f"Token {KEY}":
            return json_response({"detail": "Invalid token."}, status=401)
        ids, asked = self.ids(), {int(number) for number in re.findall(r"\d+", request.query.get("filter", ""))}
        found = [number for number in ids if number in asked] if asked else ids[-1:]
        return json_response({"count": len(ids), "results": [self.sound(number) for number in found]})

    async def preview(self, request: "Request") -> "StreamResponse":
        """Answer with a sound's audio."""
        from aiohttp.web import Response

        content = await asyncio.to_thread(self.audio, int(request.match_info["id"]))
        return Response(body=content, content_type="audio/mpeg")


async def serve(server: Sandbox, port: int, then: list[str]) -> None:
    """Serve until the commands `then` of data_tools have ended; without commands, until an interrupt."""
    runner = await server.start(port)
    settings = {"FREESOUND_API": server.address, "FREESOUND_API_KEY": KEY, "no_proxy": "127.0.0.1"}
    try:
        if not then:
            print("export", *(f"{name}={value}" for name, value in settings.items()), flush=True)
            await asyncio.Event().wait()
        for command in then:
            words = [sys.executable, "-m", "data_tools", *shlex.split(command)]
            process = await asyncio.create_subprocess_exec(*words, env=os.environ | settings)
            if status := await process.wait():
                raise KitError(f"lbar data {command}: failed with exit status {status}")
    finally:
        await runner.cleanup()


def sandbox(
    then: list[str] | None = None,
    *,
    sounds: Annotated[int, typer.Option(min=1)] = 2000,
    seed: int = 1,
    port: Annotated[int, typer.Option(min=0, max=65_535)] = 8025,
) -> None:
    """Serve invented sounds as Freesound does, without a key.

    Args:
        then: Commands of lbar data to run, then stop.
        sounds: Number of ids; 85 % have a sound.
        seed: Decides all sounds.
        port: Port of the server; 0 for any free one.
    """
    asyncio.run(serve(Sandbox(sounds, seed), port, then or []))
