"""The search page in a thread of this process or in a process of its own, and requests as they are written."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import soundfile
import torch

from data_tools.manifest import Clip
from system.models.batch import Embedded, Embeddings
from system.models.retrieval import RetrievalModel
from system.models.scores import Cosine, cosine
from system.models.text import TextEncoder
from system.moments.windows import Grid
from system.recipe.schema import Recipe
from system.retriever import Pool, Retriever, WindowSettings
from system.runs.open import ModelFacts, Trained
from system.serve.server import Search, bind, search_app

SECONDS = Grid(1.0, 0.5)


class Letters(TextEncoder):
    """Embeds a text by how often it has the letters a, b and c, so that scores can be worked by hand."""

    def forward(self, texts: Sequence[str]) -> Embedded:
        return self.embed_batch(texts)

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        return Embedded(torch.tensor([[float(text.count(letter)) for letter in "abc"] for text in texts]))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        return [text for text in texts if not set(text) & set("abc")]

    def save_assets(self, folder: Path) -> None: ...


def model_of(text: TextEncoder) -> RetrievalModel:
    """A model without audio encoder, for clips whose embeddings are given."""
    model = RetrievalModel.__new__(RetrievalModel)
    torch.nn.Module.__init__(model)
    model.text, model.score, model.learned = text, cosine, torch.nn.ParameterDict()
    model.unit_length, model.frame_grid = True, SECONDS
    return model


class Opened(Retriever):
    """A model whose clips are embedded already, with frames of a second."""

    windows: WindowSettings | None = None  # type: ignore[assignment]


def opened(model: RetrievalModel, windows: WindowSettings | None = None) -> Opened:
    """Return the retriever of a model."""
    settings = SimpleNamespace(score=Cosine(kind="cosine"))
    recipe = Recipe.model_construct(name="hand", model=settings, rank={})
    facts = ModelFacts(recipe="hand", checkpoint="none", experts={}, text=None)
    found = Opened(Trained(model, recipe, facts, Path("hand")))
    found.windows = windows
    return found


def searching(
    model: RetrievalModel, clips: Sequence[Clip], embedded: Embeddings, windows: WindowSettings | None = None
) -> Search:
    """A search of clips whose embeddings are given."""
    return Search(opened(model, windows), Pool(clips=clips, embedded=embedded), Path(__file__))


def clip_of(path: Path, name: str | None = None, captions: Sequence[str] = ()) -> Clip:
    """A clip of one second; its file may be missing."""
    return Clip(
        id=f"served/test/{name or path.name}",
        file_name=name or path.name,
        path=str(path),
        seconds=1.0,
        captions=list(captions),
        source="served",
        split="test",
    )


def write_tone(path: Path, seconds: float = 1.0) -> Path:
    t = np.arange(round(16_000 * seconds)) / 16_000
    soundfile.write(path, 0.2 * np.sin(2 * np.pi * 440 * t), 16_000)
    return path


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    search: Search
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
        """Send a request with an unchanged path and return the answer. Headers: `_` for `-`."""
        return ask(self.port, path, method, body, **headers)

    def find(self, path: str = "/api/search", **parameters: object) -> Reply:
        return self.ask(f"{path}?{urlencode(parameters)}")


def ask(port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


@contextmanager
def served(search: Search) -> Iterator[Served]:
    """The page of a search, in a thread."""
    from aiohttp import web

    ready, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    listening = bind(0)

    async def answering() -> None:
        runner = web.AppRunner(search_app(search), access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        ready.set()
        await stop.wait()
        # asyncio never closes a connection that it accepts while its server is closed. Its warning would fail the next
        # test. Therefore: accept no more, and wait for accepted connections, then for those that are being closed.
        loop.remove_reader(listening)
        await asyncio.sleep(0.01)
        await runner.cleanup()
        await asyncio.sleep(0.01)

    thread = threading.Thread(target=loop.run_until_complete, args=(answering(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield Served(search, listening.getsockname()[1])
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@contextmanager
def serving(root: Path, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`system serve` in a process of its own, with its port; whoever tests its end ends it."""
    command = [sys.executable, "-m", "system", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(
        command, cwd=root, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert " on http://" in line, process.communicate()[1]
        yield process, int(line.split("/ (")[0].rpartition(":")[2])
    finally:
        process.kill()
        process.communicate()
