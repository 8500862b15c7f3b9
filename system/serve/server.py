"""Search page: its HTML, searches as JSON or CSV, and the audio of the clips, for one user on this machine."""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import pandas as pd
from aiohttp import web

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.frames import holds_frames
from system.ranking.base import Hit
from system.serve.search import Search

OWN_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)
COLUMNS = ["rank", "score", "file_name", "path", "seconds", "windows"]  # of the CSV

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger(__name__)


def search_app(search: Search) -> web.Application:
    """Build the web application."""
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    thread = ThreadPoolExecutor(1, "search")  # the model is for one thread at a time

    async def ask(work: Callable[..., Any], *arguments: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(thread, work, *arguments)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse other host names: a website could point its name here (DNS rebinding) and read the clips."""
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
        return web.json_response(await ask(facts_of, search))

    async def show_results(request: web.Request) -> web.Response:
        return web.json_response(await ask(results_of, search, request.query))

    async def send_csv(request: web.Request) -> web.Response:
        found = await ask(results_of, search, request.query)
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


def facts_of(search: Search) -> dict[str, Any]:
    """Return the facts about the model and the clips that the page shows.

    The checkpoint is named without its validation score, which was measured on other clips.
    """
    facts, pool = search.ranker.facts, search.pool
    return {
        "recipe": facts.get("recipe"),
        "run": facts.get("from"),
        "checkpoint": str(facts.get("checkpoint", search.ranker.origin)).partition(",")[0],
        "clips": len(pool.clips),
        "skipped": len(pool.skipped),
        "compares_clips": search.compares_clips,
        **search.ranker.meanings,
    }


def results_of(search: Search, asked: Mapping[str, str]) -> dict[str, Any]:
    """Search for a `query`, or for clips like `like`: `count` of them after the first `offset`."""
    count, offset = max(1, int(asked.get("count", "10"))), abs(int(asked.get("offset", "0")))
    text, like = asked.get("query", "").strip(), asked.get("like")
    if not text and not like:
        raise KitError("the query is empty; describe a sound")
    hits = search.like(like, count, offset) if like else search.find(text, count, offset)
    if hits is None:
        raise KitError("the model knows no word of this query; use other words")
    results = [_result(search, hit, rank) for rank, hit in enumerate(hits, offset + 1)]
    return {"results": results, "unknown": search.ranker.unknown_words(text), "clips": len(search.pool.clips)}


def _result(search: Search, hit: Hit, rank: int) -> dict[str, Any]:
    clip = search.pool.clips[hit.row]
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


def bind(port: int) -> socket.socket:
    """Return a socket of this machine alone; 0 chooses a free port."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise KitError(f"--port {port} cannot be used ({error.strerror}); give another one") from error


def serve(search: Search, listener: socket.socket) -> None:
    """Serve the page until Ctrl-C."""
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    print(f"{counted(len(search.pool.clips), 'clip', ',')} on {address} (stop with Ctrl-C)", flush=True)
    web.run_app(search_app(search), sock=listener, print=None, access_log=None, shutdown_timeout=1)
