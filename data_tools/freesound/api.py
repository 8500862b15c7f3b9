"""Requests to Freesound's API, within its limits.

They are repeated until they are answered.

https://freesound.org/docs/api/overview.html: 60 requests per minute, 2,000 per day; previews do not count.
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from data_tools.errors import DataError
from data_tools.freesound.store import PAGE_SIZE

if TYPE_CHECKING:
    from aiohttp import ClientSession

SITE = "https://freesound.org"
FIELDS = "id,name,description,tags,username,license,gen_ai_preference,duration,previews"
ATTEMPTS = 40  # of a search, with the waits below five to six hours
LONGEST_WAIT = 600.0  # seconds between two attempts
FAILURES = 4  # server errors in a row, after which one sound of a search is considered their cause
DOWNLOADS = 6  # attempts at a file
DAY = 86_400.0

log = logging.getLogger(__name__)


class LostError(DataError):
    """A file that the server refuses or does not have."""


class RefusedError(DataError):
    """A search that the server refuses: it is wrong or too long."""


class BrokenError(RefusedError):
    """A search that the server cannot answer, because it cannot describe one of the sounds."""


class Limits:
    """Counter of requests in the store, so that restarts share it."""

    def __init__(self, database: sqlite3.Connection, per_minute: int = 60, per_day: int = 2000) -> None:
        """Use the table of requests of a store."""
        self._database, self._limits = database, ((per_minute, 60.0), (per_day, DAY))

    async def take(self) -> None:
        """Wait until another request is allowed, and count it."""
        while (wait := self.seconds_to_wait(time.time())) > 0:
            if wait > 120:
                log.info("the daily limit is reached; continuing in %.1f h (you may stop the command)", wait / 3600)
            await asyncio.sleep(wait)
        with self._database:
            self._database.execute("DELETE FROM requests WHERE at < ?", (time.time() - DAY,))
            self._database.execute("INSERT INTO requests VALUES (?)", (time.time(),))

    def seconds_to_wait(self, now: float) -> float:
        """Return the seconds until both limits allow one more request."""
        query = "SELECT at FROM requests WHERE at <= ? ORDER BY at DESC LIMIT 1 OFFSET ?"
        rows = [(self._database.execute(query, (now, limit - 1)).fetchone(), span) for limit, span in self._limits]
        return max((row[0] + span - now for row, span in rows if row), default=0.0)


class Api:
    """Client of the API.

    The address is Freesound's, or that of FREESOUND_API on this machine (the sandbox). The key, FREESOUND_API_KEY, is
    sent to this address only, in a header; redirects are not followed.
    """

    def __init__(self, session: "ClientSession", limits: Limits, attempts: int = ATTEMPTS) -> None:
        """Read the address and the key. Raises DataError as read_access does."""
        self._session, self._limits, self._attempts = session, limits, attempts
        self.site, self._key = read_access()

    async def count(self) -> tuple[int, int]:
        """Return the number of sounds on Freesound, and the highest id."""
        page = await self._search(sort="created_desc", page_size=1)
        if not page["results"]:
            raise DataError(f"{self.site}: the API has no sounds; try again later")
        return int(page["count"]), int(page["results"][0]["id"])

    async def sounds(self, ids: Sequence[int]) -> tuple[list[dict[str, Any]], list[int]]:
        """Look up sounds by their ids.

        Args:
            ids: At most PAGE_SIZE ids.

        Returns:
            The sounds that exist, and the ids that the server cannot describe.
        """
        try:
            page = await self._search(filter=f"id:({' OR '.join(map(str, ids))})", page_size=PAGE_SIZE)
        except RefusedError as error:
            if len(ids) > 1:
                middle = len(ids) // 2
                first, second = await self.sounds(ids[:middle]), await self.sounds(ids[middle:])
                return first[0] + second[0], first[1] + second[1]
            if not isinstance(error, BrokenError):
                raise
            log.warning("sound %d cannot be read: the server fails for it", ids[0])
            return [], list(ids)
        return [sound for sound in page["results"] if sound], []  # null: in the index, but deleted

    async def download(self, url: str, path: Path) -> None:
        """Download a preview to a file. Raises LostError if the server does not have it."""
        from aiohttp import ClientError

        for attempt in range(1, DOWNLOADS + 1):
            try:
                async with self._session.get(url) as answer:  # without the key
                    if answer.status == 200:
                        path.write_bytes(await answer.read())
                        return
                    if answer.status < 500 and answer.status != 429:
                        raise LostError(f"the server answered {answer.status}")
            except (ClientError, TimeoutError):
                pass
            await asyncio.sleep(2.0**attempt)
        raise LostError(f"no answer in {DOWNLOADS} attempts")

    async def _search(self, **parameters: object) -> dict[str, Any]:
        """Request a page of a search until it arrives.

        Raises:
            BrokenError: The server fails repeatedly for this search, but not for another one.
            RefusedError: The server refuses this search.
            DataError: The key is refused, or the server does not answer for hours.
        """
        query = {"query": "", "fields": FIELDS, **parameters}
        failures = 0
        for attempt in range(self._attempts):
            status, content = await self._get(query)
            detail = str(content.get("detail", ""))
            if status == 200 and isinstance(content.get("results"), list):
                return content
            if status in (401, 403):
                raise DataError(f"{self.site} refuses the key ({detail or status}); correct FREESOUND_API_KEY")
            is_down = "connect" in detail or "HTTP 5" in detail  # how the API says that its search is down
            if 400 <= status < 500 and status != 429 and not is_down:
                raise RefusedError(f"{self.site} refuses the search: {status} {detail}")
            failures = failures + 1 if status == 500 and "overloaded" not in detail else 0
            if failures == FAILURES and (await self._get({"query": "rain", "page_size": 1}))[0] == 200:
                raise BrokenError(f"{self.site} fails for this search")
            if attempt + 1 < self._attempts:
                wait = 3600.0 if "/day" in detail else 60.0 if status == 429 else min(LONGEST_WAIT, 2.0**attempt)
                log.info("%s: %s %s; next attempt in %.0f s", self.site, status or "no answer", detail, wait)
                await asyncio.sleep(wait)
        raise DataError(f"{self.site} does not answer; run the same command later to continue")

    async def _get(self, query: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Make one search; return its status (0: no answer) and its JSON content."""
        from aiohttp import ClientError

        await self._limits.take()
        url, headers = f"{self.site}/apiv2/search/", {"Authorization": f"Token {self._key}"}
        try:
            async with self._session.get(url, params=query, headers=headers, allow_redirects=False) as answer:
                content = await answer.json(content_type=None)
                return answer.status, content if isinstance(content, dict) else {}
        except ValueError:  # a page of HTML
            return answer.status, {}
        except (ClientError, TimeoutError):
            return 0, {}


def read_access() -> tuple[str, str]:
    """Return the address and the key of the API. Raises DataError for a missing key, or another address."""
    site, key = os.environ.get("FREESOUND_API") or SITE, os.environ.get("FREESOUND_API_KEY", "").strip()
    if site != SITE and urlsplit(site).hostname not in ("127.0.0.1", "localhost"):
        raise DataError(f"FREESOUND_API: the key is sent to {SITE}, or to an address of this machine only")
    if not key:
        raise DataError("no API key; get one at freesound.org/apiv2/apply, and set FREESOUND_API_KEY to it")
    return site, key


def session() -> "ClientSession":
    """Return an HTTP session without a limit on the whole of a download."""
    from aiohttp import ClientSession, ClientTimeout

    return ClientSession(timeout=ClientTimeout(total=None, sock_connect=60, sock_read=60))
