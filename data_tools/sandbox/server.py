"""The sandbox over HTTP."""

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from data_tools.freesound.sounds import PREVIEWS
from data_tools.sandbox.answers import Answers, Reply
from data_tools.sandbox.faults import Faults, Throttle

HANG = 3600.0  # seconds, longer than any client waits
TOKEN = "sandbox-token"  # for originals
_PREVIEW = re.compile(rf"(\d+)_\d+-(?:{'|'.join({name.split('-')[1] for name in PREVIEWS})})\.(mp3|ogg)")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Sandbox:
    """key: the one it knows. Its site is where a request says it went to."""

    def __init__(self, answers: Answers, key: str, faults: Faults, throttle: Throttle) -> None:
        self.answers, self.key, self.faults, self.throttle = answers, key, faults, throttle
        self._threads = ThreadPoolExecutor(os.cpu_count())  # audio is made beside the searches

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._faulty])
        app.router.add_get("/apiv2/search/", self._search)
        app.router.add_get("/apiv2/search/text/", self._search)
        app.router.add_get("/apiv2/sounds/{id:[0-9]+}/", self._sound)
        app.router.add_get("/apiv2/sounds/{id:[0-9]+}/download/", self._download)
        app.router.add_get("/data/previews/{thousand:[0-9]+}/{file}", self._preview)
        return app

    @web.middleware
    async def _faulty(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        of_api = request.path.startswith("/apiv2/")
        fault = self.faults.draw()
        if of_api:
            if refusal := self._unauthorised(request):
                return _json(Reply(401, {"detail": refusal}))
            if refusal := self.throttle.refusal():
                return _json(Reply(429, {"detail": refusal}))
        if fault == "429" and of_api:
            return _json(Reply(429, {"detail": self.faults.throttled()}))
        if fault == "500":
            return web.Response(status=500, text="<h1>Server Error (500)</h1>", content_type="text/html")
        if fault == "overload":
            return _json(Reply(500, {"detail": "Search is overloaded, please try again later."}))
        if fault == "timeout":
            await asyncio.sleep(HANG)
        if fault in ("reset", "timeout"):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        response = await handler(request)
        if isinstance(response, web.Response) and isinstance(response.body, bytes) and response.status == 200:
            if fault == "truncate":
                response.body = self.faults.cut(response.body)
            if fault == "null" and request.path.startswith("/apiv2/search/"):
                content = json.loads(response.body)
                return _json(Reply(200, content | {"results": self.faults.with_nulls(content["results"])}))
        return response

    def _unauthorised(self, request: web.Request) -> str | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if request.path.endswith("/download/"):
            return None if (scheme, secret) == ("Bearer", TOKEN) else "Invalid token header. No credentials provided."
        secret = secret if scheme == "Token" else request.query.get("token", "")
        return None if secret == self.key else "Invalid token"

    async def _search(self, request: web.Request) -> web.Response:
        if request.query.get("filter") == "":
            return _json(Reply(400, {"detail": "Search server error: empty filter."}))
        return _json(self.answers.search(request.query, _site(request)))

    async def _sound(self, request: web.Request) -> web.Response:
        number = self.answers.corpus.number(int(request.match_info["id"]))
        if number is None:
            return _json(Reply(404, {"detail": "Not found."}))
        return _json(Reply(200, dict(self.answers.corpus.sound(number, _site(request)))))

    async def _preview(self, request: web.Request) -> web.Response:
        match = _PREVIEW.fullmatch(request.match_info["file"])
        return await self._file(int(match[1]), match[2]) if match else web.Response(status=404)

    async def _download(self, request: web.Request) -> web.Response:
        return await self._file(int(request.match_info["id"]), "wav")

    async def _file(self, sound_id: int, suffix: str) -> web.Response:
        number = self.answers.corpus.number(sound_id)
        if number is None:
            return web.Response(status=404)
        body = await asyncio.get_running_loop().run_in_executor(self._threads, self.answers.audio, number, suffix)
        return web.Response(body=body, content_type="application/octet-stream")


def _json(reply: Reply) -> web.Response:
    body = json.dumps(reply.content, ensure_ascii=False).encode()
    return web.Response(body=body, status=reply.status, content_type="application/json")


def _site(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}"
