"""HTTP server of the sandbox."""

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web

from data_tools.freesound.sounds import PREVIEWS
from data_tools.sandbox.answers import DOWN, HINT, Answers, PoisonError
from data_tools.sandbox.faults import Faults, Throttle

HANG = 3600.0  # seconds, longer than any client waits
PROXY = (302, 403, 404, 408, 502)  # statuses of pages that are not from the API
TOKEN, REFRESH = "sandbox-token", "sandbox-refresh"  # for originals
_PREVIEW = re.compile(rf"(\d+)_\d+-(?:{'|'.join({name.split('-')[1] for name in PREVIEWS})})\.(mp3|ogg)")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Sandbox:
    """The server. key: The only valid API key. Answers contain the address to which the request was sent."""

    def __init__(self, answers: Answers, key: str, faults: Faults, throttle: Throttle) -> None:
        """Create the server without starting it."""
        self.answers, self.key, self.faults, self.throttle = answers, key, faults, throttle
        self.token, self.refresh = TOKEN, REFRESH
        self._threads = ThreadPoolExecutor(os.cpu_count())  # makes audio in parallel to the searches

    def app(self) -> web.Application:
        """Return the web application of the simulated API."""
        app = web.Application(middlewares=[self._faulty])
        app.router.add_post("/apiv2/oauth2/access_token/", self._access_token)
        app.router.add_get("/apiv2/search/", self._search)
        app.router.add_get("/apiv2/search/text/", self._search)
        app.router.add_get("/apiv2/sounds/{id:[0-9]+}/", self._sound)
        app.router.add_get("/apiv2/sounds/{id:[0-9]+}/download/", self._download)
        return app

    def cdn(self) -> web.Application:
        """Return the web application of the previews' host, which needs no key."""
        app = web.Application(middlewares=[self._faulty])
        app.router.add_get("/previews/{thousand:[0-9]+}/{file}", self._preview)
        return app

    @web.middleware
    async def _faulty(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, or simulate a fault: a limit, a failing server, or a broken answer."""
        of_api = request.path.startswith("/apiv2/")
        fault = self.faults.draw()
        if of_api and request.method == "GET":
            if refusal := self._unauthorised(request):
                return _json(401, {"detail": refusal}, {"WWW-Authenticate": 'Bearer realm="api"'})
            if refusal := self.throttle.refusal():
                return _json(429, {"detail": refusal})
        match fault:
            case "429" | "throttle" if of_api:
                headers = {"Retry-After": "20"} if fault == "throttle" else None
                return _json(429, {"detail": self.faults.throttled()}, headers)
            case "down" if of_api:
                return _json(400, {"detail": f"Search server error: {self.faults.rng.choice(DOWN)} {HINT}"})
            case "proxy":
                return _html(self.faults.rng.choice(PROXY))
            case "500":
                return _html(500)
            case "overload":
                return _json(500, {"detail": "Search is overloaded, please try again later."})
            case "timeout":
                await asyncio.sleep(HANG)
        if fault in ("reset", "timeout"):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        try:
            response = await handler(request)
        except PoisonError:
            return _html(500)
        if isinstance(response, web.Response) and isinstance(response.body, bytes) and response.status == 200:
            if fault == "truncate":
                response.body = self.faults.cut(response.body)
            if fault in ("partial", "null") and request.path.startswith("/apiv2/search/"):
                content = json.loads(response.body)
                results = content["results"]
                half = results[: len(results) // 2]
                returned = half if fault == "partial" else self.faults.with_nulls(results)
                return _json(200, content | {"results": returned})
        return response

    def _unauthorised(self, request: web.Request) -> str | None:
        """Return the reason for refusing a request without a valid key or token; None if it is allowed.

        Original files need a Bearer token, other requests the key or a token.
        """
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if (scheme, secret) == ("Bearer", self.token):
            return None
        secret = secret if scheme == "Token" else request.query.get("token", "")
        if request.path.endswith("/download/") or not secret:
            return "Authentication credentials were not provided."
        return None if secret == self.key else "Invalid token"

    async def _access_token(self, request: web.Request) -> web.Response:
        """Answer with new tokens for a refresh token, which changes too. The form's client_secret must be the key."""
        form = await request.post()
        is_known = (form.get("grant_type"), form.get("client_secret")) == ("refresh_token", self.key)
        if not is_known or not form.get("client_id"):
            return _json(401, {"error": "invalid_client"})
        if form.get("refresh_token") != self.refresh:
            return _json(400, {"error": "invalid_grant"})
        self.token, self.refresh = f"{self.token}-2", f"{self.refresh}-2"
        content = {"access_token": self.token, "refresh_token": self.refresh, "expires_in": 86_399}
        return _json(200, content)

    async def _search(self, request: web.Request) -> web.Response:
        """Answer a request for a page of search results."""
        return _json(*self.answers.search(request.query, _site(request)))

    async def _sound(self, request: web.Request) -> web.Response:
        """Answer a request for one sound's metadata."""
        number = self.answers.corpus.number(int(request.match_info["id"]))
        if number is None:
            return _json(404, {"detail": "No Sound matches the given query."})
        return _json(200, self.answers.sound(number, request.query.get("fields"), _site(request)))

    async def _preview(self, request: web.Request) -> web.Response:
        """Answer a request for a preview file."""
        match = _PREVIEW.fullmatch(request.match_info["file"])
        return await self._file(request, int(match[1]), match[2]) if match else _html(404)

    async def _download(self, request: web.Request) -> web.Response:
        """Answer a request for an original file."""
        return await self._file(request, int(request.match_info["id"]), "wav")

    async def _file(self, request: web.Request, sound_id: int, suffix: str) -> web.Response:
        """Answer with the audio of a sound, or with the requested range of its bytes."""
        number = self.answers.corpus.number(sound_id)
        if number is None:
            return _html(404)
        body = await asyncio.get_running_loop().run_in_executor(self._threads, self.answers.audio, number, suffix)
        try:
            first, end, _ = request.http_range.indices(len(body))
        except ValueError:
            first, end = len(body), 0
        headers = {"Accept-Ranges": "bytes"}
        if "Range" not in request.headers:
            return web.Response(body=body, headers=headers, content_type="application/octet-stream")
        if first >= end:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(body)}"})
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(body)}"
        return web.Response(body=body[first:end], status=206, headers=headers, content_type="application/octet-stream")


def _html(status: int) -> web.Response:
    """Return an answer with an HTML page, such as a proxy in front of the API sends."""
    headers = {"Location": "https://freesound.org/maintenance/"} if status == 302 else None
    return web.Response(status=status, text=f"<h1>{status}</h1>", content_type="text/html", headers=headers)


def _json(status: int, content: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer with a JSON body."""
    body = json.dumps(content, ensure_ascii=False).encode()
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _site(request: web.Request) -> str:
    """Return the address of the server as the request names it."""
    return f"{request.scheme}://{request.host}"
