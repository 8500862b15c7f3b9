"""The search page, for one user on this machine.

It serves HTML, searches as JSON or CSV, and the audio of the clips.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from aiohttp import web

from data_tools.arrays import holds_frames
from data_tools.cli import counted
from data_tools.errors import KitError
from system.ranking.embedding import vectors
from system.retriever import Hit, Pool, Retriever, list_clips

OWN_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)
COLUMNS = ["rank", "score", "file_name", "path", "seconds", "windows"]  # of the CSV
MEANINGS = {
    "overlap": "the probability that a moment has an IoU of 0.7 or more with the window",
    "thresholds": "the mean of the window's frames minus the mean of all other frames",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger(__name__)


class Search:
    """Searches a pool of clips, one thread at a time."""

    def __init__(self, retriever: Retriever, pool: Pool, audio: Path, split: str | None = None) -> None:
        """Keep the pool.

        Args:
            audio: What the pool was listed from, to find added files.
            split: Of a manifest.
        """
        self.retriever, self.pool = retriever, pool
        self._audio, self._split, self._files = audio, split, _files_in(audio)

    def refresh(self) -> None:
        """Open the pool again if files have changed.

        It is kept if no clip is left.
        """
        files = _files_in(self._audio)
        if files != self._files:
            self._files, self.pool = files, self.retriever.open(list_clips(self._audio, self._split))

    def find(self, text: str, count: int, offset: int = 0) -> list[Hit]:
        """Return the best clips of a text after `offset`."""
        return self.retriever.search(text, self.pool, count, offset)[0]

    def like(self, clip: str, count: int, offset: int = 0) -> list[Hit]:
        """Return the clips that are most similar to a clip.

        The similarity is the cosine of embeddings. The clip itself is the first.
        """
        rows = {one.id: row for row, one in enumerate(self.pool.clips)}
        if clip not in rows:
            raise KitError(f"no clip {clip[:80]}; search again")
        sounds = vectors(self.pool.embedded)  # (C, D), of unit length
        scores = sounds @ sounds[rows[clip]]
        best = self.pool.order.best(scores[None], min(offset + count, len(scores)))[0, offset:].tolist()
        return [Hit(row, self.pool.clips[row].path, float(scores[row])) for row in best]

    def facts(self) -> dict[str, Any]:
        """Return the facts that the page shows.

        The checkpoint is named without its validation score, which was measured on other clips.
        """
        facts, windows = self.retriever.facts, self.retriever.windows
        return {
            "recipe": facts.recipe,
            "run": facts.run,
            "checkpoint": facts.checkpoint.partition(",")[0],
            "clips": len(self.pool.clips),
            "skipped": len(self.pool.skipped),
            "compares_clips": self.pool.embedded.lengths is None,  # so that `like` works
            "score": self.retriever.recipe.model.score.meaning,
            **({"windows": MEANINGS[windows.by], "frames": "the probability to be in a moment"} if windows else {}),
        }

    def results(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Answer a search.

        Args:
            asked: Either `query`, or `like`, a clip; `count` of clips after the first `offset`.
        """
        count, offset = max(1, int(asked.get("count", "10"))), abs(int(asked.get("offset", "0")))
        text, like = asked.get("query", "").strip(), asked.get("like")
        if not text and not like:
            raise KitError("the query is empty; describe a sound")
        hits = self.like(like, count, offset) if like else self.find(text, count, offset)
        results = [self._result(hit, rank) for rank, hit in enumerate(hits, offset + 1)]
        unknown = self.retriever.model.text.unknown_words(text)
        return {"results": results, "unknown": unknown, "clips": len(self.pool.clips)}

    def _result(self, hit: Hit, rank: int) -> dict[str, Any]:
        clip = self.pool.clips[hit.row]
        return {
            "rank": rank,
            "score": hit.score,
            "file_name": clip.file_name,
            "path": clip.path,
            "clip": clip.id,
            "seconds": clip.seconds,
            "captions": clip.captions,
            "audio": None if holds_frames(clip.path) else f"/audio?clip={quote(clip.id, safe='')}",
            "windows": hit.located and [[one.start, one.end, round(one.score, 4)] for one in hit.located.windows],
        }


def _files_in(audio: Path) -> set[tuple[str, int, int]]:
    """Return paths, sizes and times of a folder's files."""
    paths = audio.rglob("*") if audio.is_dir() else [audio]
    return {(str(path), (status := path.lstat()).st_size, status.st_mtime_ns) for path in paths}


def search_app(search: Search) -> web.Application:
    """Build the web application."""
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    thread = ThreadPoolExecutor(1, "search")  # the model is for one thread at a time

    async def ask(work: Callable[..., Any], *arguments: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(thread, work, *arguments)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse other host names; answer errors as JSON.

        A website could point its name here (DNS rebinding) and read the clips.
        """
        if not OWN_HOST.fullmatch(request.host):
            raise web.HTTPForbidden(text="open http://localhost")
        try:
            return await handler(request)
        except (KitError, ValueError) as error:  # the latter: of a number
            return web.json_response({"error": str(error)}, status=400)

    async def show_page(request: web.Request) -> web.Response:
        try:
            await ask(search.refresh)
        except (KitError, OSError) as error:
            log.warning("the clips are as before: %s", error)
        return web.Response(text=page, content_type="text/html")

    async def show_facts(request: web.Request) -> web.Response:
        return web.json_response(await ask(search.facts))

    async def show_results(request: web.Request) -> web.Response:
        return web.json_response(await ask(search.results, request.query))

    async def send_csv(request: web.Request) -> web.Response:
        found = await ask(search.results, request.query)
        text = pd.DataFrame(found["results"], columns=COLUMNS).to_csv(index=False)
        return web.Response(text=text, content_type="text/csv")

    async def send_audio(request: web.Request) -> web.FileResponse:
        wanted = request.query.get("clip")
        path = next((clip.path for clip in search.pool.clips if clip.id == wanted), None)
        if path is None or holds_frames(path):
            raise web.HTTPNotFound
        return web.FileResponse(path)

    app = web.Application(middlewares=[check])
    app.add_routes([web.get("/", show_page), web.get("/api/about", show_facts), web.get("/api/search", show_results)])
    app.add_routes([web.get("/results.csv", send_csv), web.get("/audio", send_audio)])
    return app


def bind(port: int) -> socket.socket:
    """Return a socket of this machine alone.

    Args:
        port: 0 chooses a free port.
    """
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise KitError(f"--port {port} cannot be used ({error.strerror}); give another one") from error


def serve(search: Search, listener: socket.socket) -> None:
    """Serve the page until Ctrl-C."""
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    print(f"{counted(len(search.pool.clips), 'clip', ',')} on {address} (stop with Ctrl-C)", flush=True)
    web.run_app(search_app(search), sock=listener, print=None, access_log=None, shutdown_timeout=1)
