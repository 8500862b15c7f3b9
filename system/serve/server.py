"""HTTP server of the page.

HTTP server of the search page: the page, searches, and the clips' audio.
"""

import asyncio
import base64
import hashlib
import logging
import os
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError

from data_tools.audio import peaks
from data_tools.errors import AudioError
from data_tools.frames import holds_frames
from data_tools.names import is_utf8
from system.ranking.base import Hit
from system.ranking.frame_series import Located
from system.serve.search import Search, SearchQuery
from system.serve.waiting import BusyError, Queue

MAX_CHARACTERS = 500
MAX_RESULTS = 50  # clips in one answer; further ones by `offset`
DEFAULT_RESULTS = 10
TYPES = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".aif": "audio/aiff",
    ".aiff": "audio/aiff",
    ".m4a": "audio/mp4",
    ".mp4": "audio/mp4",
    ".aac": "audio/aac",
    ".webm": "audio/webm",
}
PEAKS = 160  # values in the loudness picture of a clip
PEAKS_AT_ONCE = 2  # clips that are read at the same time for their pictures

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SearchPage:
    """Handlers of the page's HTTP requests.

    about: Texts and numbers that the page shows, such as the model's checkpoint and the number of clips. names: Allowed
    host names of requests; None: all.

    A website can point its own host name at this machine (DNS rebinding). Its scripts could then read data that only
    this machine's user may read. Such requests have the website's host name, and so are refused. All names are allowed
    on a page for other machines, since these may use unknown names for this machine.
    """

    def __init__(self, search: Search, about: dict[str, Any], names: frozenset[str] | None) -> None:
        """Load the page's HTML, and record the clips' files. about: Facts to show. names: Allowed hosts; None: all."""
        self.search, self.about, self.names = search, about, names
        self.queue = Queue(search)
        self._reading = asyncio.Semaphore(PEAKS_AT_ONCE)
        self._files = [_ClipFile.of(clip.path) for clip in search.clips]
        self._html = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        self._headers = {
            "Content-Security-Policy": content_security_policy(self._html),
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-cache",  # with another pool, row 12 is another clip
        }

    def app(self) -> web.Application:
        """Build the web application: a handler for each address, and checks of all requests."""

        @web.middleware
        async def check_and_answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            """Refuse a request that is not allowed; otherwise answer it."""
            return await self._check_and_answer(request, handler)

        async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
            """Add the security headers to a response."""
            response.headers.update(self._headers)

        app = web.Application(middlewares=[check_and_answer])
        app.on_response_prepare.append(add_headers)
        app.cleanup_ctx.append(self._answer_waiting)
        app.router.add_get("/", self._answer_page)
        app.router.add_get("/api/search", self._answer_search)
        app.router.add_get("/api/about", self._answer_about)
        app.router.add_get("/audio/{row:0|[1-9][0-9]{0,8}}", self._answer_audio)
        app.router.add_get("/peaks/{row:0|[1-9][0-9]{0,8}}", self._answer_peaks)
        return app

    async def _answer_waiting(self, app: web.Application) -> AsyncIterator[None]:
        """Start the task that answers waiting queries, and cancel it when the application ends."""
        work = asyncio.create_task(self.queue.work())
        yield
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    async def _check_and_answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request that is not allowed; otherwise answer it by `handler`."""
        if self.names is not None and not _is_allowed_host(request.headers.get("Host", ""), self.names):
            return refusal(421, f"the host name of this request is not allowed; use {' or '.join(sorted(self.names))}")
        if odd := [name for name, value in request.headers.items() if not is_utf8(value)]:
            return refusal(400, f"the header {odd[0]} of the request is not UTF-8; correct it or leave it out")
        if request.body_exists:
            response = refusal(413, "this request has a body, which is not allowed; leave it out")
            response.force_close()
            return response
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status == 405:
                allowed = {"Allow": error.headers["Allow"]}
                return refusal(405, f"{request.method} is not allowed; use GET", allowed)
            return refusal(error.status, "no such page; the search page is at /")

    async def _answer_page(self, request: web.Request) -> web.Response:
        """Answer a request with the HTML page."""
        return web.Response(text=self._html, content_type="text/html")

    async def _answer_about(self, request: web.Request) -> web.Response:
        """Answer a request with the facts about the model and the clips, as JSON."""
        return web.json_response(self.about)

    async def _answer_search(self, request: web.Request) -> web.Response:
        """Answer a search request with the best clips for its query, as JSON."""
        try:
            count = _whole_number(request, "count", DEFAULT_RESULTS, 1, MAX_RESULTS)
            query = SearchQuery(_query_text(request), count, _whole_number(request, "offset", 0, 0, 10**9 - 1))
        except ValueError as error:
            return refusal(400, str(error))
        try:
            hits, unknown = await self.queue.answer(query)
        except BusyError:
            return refusal(429, "too many searches at the same time; try again in a moment", {"Retry-After": "1"})
        if hits is None:
            return refusal(422, "the model knows no word of this query; use other words")
        results = [self._describe_hit(rank, hit) for rank, hit in enumerate(hits, query.offset + 1)]
        return web.json_response({"query": query.text, "unknown": unknown, "results": results})

    def _describe_hit(self, rank: int, hit: Hit) -> dict[str, Any]:
        """Return a dict with facts about a found clip, such as rank, score and path, for the JSON answer."""
        clip = self.search.clips[hit.row]
        result = {"rank": rank, "score": hit.score, "file_name": clip.file_name, "path": self.search.paths[hit.row]}
        result |= {"clip": clip.id, "seconds": clip.seconds}
        if not holds_frames(clip.path):
            result |= {"audio": f"/audio/{hit.row}", "peaks": f"/peaks/{hit.row}"}
        if hit.located is not None:
            result["moments"] = _windows_as_json(hit.located)
        return result | ({"captions": clip.captions} if clip.captions else {})

    def _open_clip_file(self, request: web.Request) -> tuple[int, int]:
        """Open the file of the clip that a request names; return its index in the pool, and the file descriptor.

        Raises IndexError if the pool has no such clip, and FileNotFoundError if its file is missing or was replaced.
        """
        row = int(request.match_info["row"])
        if row >= len(self.search.clips):
            raise IndexError(f"no clip has the number {row}; the last number is {len(self.search.clips) - 1}")
        known = self._files[row]
        number = known.open() if known else None
        if number is None:
            raise FileNotFoundError(
                "the file of this clip is missing, or was replaced after the start; restart the server"
            )
        return row, number

    async def _answer_peaks(self, request: web.Request) -> web.Response:
        """Answer a request with the loudness curve of a clip: 160 whole numbers (PEAKS) from 0 to 100.

        The loudest part of the clip is 100. The list is empty for an unreadable clip; the player in the page reports
        the reason.
        """
        try:
            row, number = self._open_clip_file(request)
            os.close(number)  # peaks needs the file name, because ffmpeg recognises some formats by it
            async with self._reading:
                found = await asyncio.to_thread(peaks, self.search.clips[row].path, PEAKS)
        except IndexError as error:
            return refusal(404, str(error))
        except (OSError, AudioError):
            return web.json_response([])
        return web.json_response((100 * found / max(found.max(), 1e-9)).round().astype(int).tolist())

    async def _answer_audio(self, request: web.Request) -> web.StreamResponse:
        """Answer a request with the audio file of a clip."""
        try:
            row, number = self._open_clip_file(request)
        except (IndexError, FileNotFoundError) as error:
            return refusal(404, str(error))
        kind = TYPES.get(Path(self.search.clips[row].path).suffix.lower(), "application/octet-stream")
        try:
            response = _File(f"/dev/fd/{number}", headers={"Content-Type": kind})
            await response.prepare(request)
        finally:
            os.close(number)
        return response


class _ClipFile(NamedTuple):
    """A clip's file when the page was started.

    path: Path of the file, after resolving all links. status: Device, inode, size and times of the file.
    """

    path: str
    status: tuple[int, ...]

    @classmethod
    def of(cls, path: str) -> "_ClipFile | None":
        """Record the present path and identity of a clip's file; None if the file is missing."""
        try:
            resolved = os.path.realpath(path, strict=True)
            return cls(resolved, _file_identity(Path(resolved).stat()))
        except OSError:
            return None

    def open(self) -> int | None:
        """Open the recorded file. Returns: A file descriptor; None if the file is missing or was replaced.

        A symbolic link at the file's path counts as a replacement.
        """
        try:
            number = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode) and _file_identity(status) == self.status:
            return number
        os.close(number)
        return None


def _file_identity(status: os.stat_result) -> tuple[int, ...]:
    """Return numbers that identify a file and its content, to detect a replaced file.

    The inode alone is not enough, since file systems reuse inodes.
    """
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _File(web.FileResponse):
    """Response that sends a clip's file. aiohttp would instead send a file NAME.gz or NAME.br next to it."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the audio file of this response without compression; do nothing if it has been sent already."""
        if self.prepared:  # the handler has sent it and closed the file; the server calls this again
            return None
        headers = request.headers.copy()
        headers.popall("Accept-Encoding", None)
        return await super().prepare(request.clone(headers=headers))


def _windows_as_json(located: Located) -> dict[str, Any]:
    """Convert the windows of a query in a recording to JSON values.

    Returns: A dict with three lists. windows: [start, end, score] of each window, best first. edges: Edges of the
    frames in seconds. frames: For each frame, the probability that the query is heard in it.
    """
    windows = [[window.start, window.end, round(window.score, 4)] for window in located.windows]
    return {
        "windows": windows,
        "edges": located.edges.round(3).tolist(),
        "frames": located.frames.round(3).tolist(),
    }


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return an HTTP response that refuses a request, with an error message as JSON."""
    return web.json_response({"error": message}, status=status, headers=headers)


def _single_parameter(request: web.Request, name: str) -> str | None:
    """Return the only value of a request's parameter; None if missing. Raises ValueError if it occurs twice."""
    values = request.query.getall(name, [])
    if len(values) > 1:
        raise ValueError(f"the parameter {name} occurs {len(values)} times; give it once")
    return values[0] if values else None


def _query_text(request: web.Request) -> str:
    """Return the query text of a request. Raises ValueError if it is empty, too long, or not UTF-8."""
    text = (_single_parameter(request, "query") or "").strip()
    if not text:
        raise ValueError("the query is empty; describe a sound")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the query has {len(text)} characters, more than {MAX_CHARACTERS}; shorten it")
    if "\ufffd" in text:  # aiohttp inserts it for bytes that cannot be decoded
        raise ValueError("the query is not UTF-8; send it as UTF-8")
    return text


def _whole_number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """Return a request's parameter as a whole number, `default` if missing. Raises ValueError if out of range."""
    text = _single_parameter(request, name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ValueError(f"the parameter {name} is {text[:20]!r}; it must be a whole number from {low} to {high}")
    return int(text)


def _is_allowed_host(host: str, names: frozenset[str]) -> bool:
    """Return whether a request's Host header is in `names` or a loopback address, so that the request is allowed."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in names or ip_address(name).is_loopback
    except ValueError:
        return False


def content_security_policy(html: str) -> str:
    """Return the Content-Security-Policy header of the page.

    The policy only allows the page's script and style, by their checksums, and audio and answers of this server.
    """

    def element_checksums(tag: str) -> str:
        """Return the checksums of all elements `tag` of the page, as Content-Security-Policy headers write them."""
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        sums = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        return " ".join(f"'sha256-{checksum}'" for checksum in sums)

    return (
        f"default-src 'none'; script-src {element_checksums('script')}; style-src {element_checksums('style')}; "
        "connect-src 'self'; media-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


def http_log() -> logging.Logger:
    """Return the server's logger, which does not log errors of the HTTP parser.

    Such errors are caused by invalid requests, which are answered with status 400. A traceback would help nobody.
    """

    def is_worth_logging(record: logging.LogRecord) -> bool:
        """Return whether a log record is to be logged: not if it is about an error of the HTTP parser."""
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))

    log = logging.getLogger(f"{__package__}.http")
    log.filters = [is_worth_logging]
    return log
