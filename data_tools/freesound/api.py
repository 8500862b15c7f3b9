"""Requests to Freesound's API, within its limits.

They are repeated until they are answered. The key goes to one host only, in a header, and never along a redirect.

https://freesound.org/docs/api/overview.html: 60 requests per minute, 2,000 per day; previews do not count.
"""

import json
import logging
import os
import time
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPErrorProcessor, Request, build_opener

from data_tools.errors import KitError
from data_tools.freesound.store import DAY, PAGE_SIZE, Store

SITE = "https://freesound.org"
FIELDS = "id,name,description,tags,username,license,gen_ai_preference,duration,previews"
ATTEMPTS = 40  # of a search, with the waits below five to six hours
LONGEST_WAIT = 600.0  # seconds between two attempts
FAILURES = 4  # server errors in a row, after which it is asked whether one sound of the search is their cause
IDLE = 60  # seconds without a byte after which a connection is given up

log = logging.getLogger(__name__)


class RefusedError(KitError):
    """A search that the server refuses: it is wrong or too long."""


class BrokenError(RefusedError):
    """A search that the server cannot answer, because it cannot describe one of the sounds."""


class _AnyStatus(HTTPErrorProcessor):
    """Returns answers of every status; follows no redirect."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        """Return the answer as it is."""
        return response

    https_response = http_response


class Api:
    """Client of the API.

    The address is Freesound's, or that of FREESOUND_API on this machine (the sandbox). The key, FREESOUND_API_KEY, is
    sent to this address only, in a header; redirects are not followed.
    """

    def __init__(self, store: Store, per_minute: int = 60, per_day: int = 2000) -> None:
        """Read the address and the key; the store counts requests. Raises KitError as read_access does."""
        self._store, self._limits = store, ((per_minute, 60.0), (per_day, DAY))
        self.site, self._key = read_access()

    def count(self) -> tuple[int, int]:
        """Return the number of sounds on Freesound, and the highest id."""
        page = self._search(sort="created_desc", page_size=10, fields="id")
        ids = [sound["id"] for sound in page["results"] if sound]  # null: as in sounds()
        if not ids:
            raise KitError(f"{self.site}: the API has no sounds; try again later")
        return int(page["count"]), max(ids)

    def sounds(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Look up sounds by at most PAGE_SIZE ids; return those that exist and that the server can describe."""
        try:
            page = self._search(filter=f"id:({' OR '.join(map(str, ids))})", page_size=PAGE_SIZE)
        except RefusedError as error:
            if len(ids) > 1:
                middle = len(ids) // 2
                return self.sounds(ids[:middle]) + self.sounds(ids[middle:])
            if not isinstance(error, BrokenError):
                raise
            log.warning("sound %d cannot be read: the server fails for it", ids[0])
            return []
        return [sound for sound in page["results"] if sound]  # null: in the index, but deleted

    def _search(self, **parameters: object) -> dict[str, Any]:
        """Request a page of a search until it arrives.

        Raises:
            BrokenError: The server fails repeatedly for this search, but not for another one.
            RefusedError: The server refuses this search.
            KitError: The key is refused, or the server does not answer for hours.
        """
        query = {"query": "", "fields": FIELDS, **parameters}
        failures = 0
        for attempt in range(ATTEMPTS):
            status, content = self._get(query)
            detail = str(content.get("detail", ""))
            if status == 200 and isinstance(content.get("results"), list):
                return content
            if status in (401, 403):
                raise KitError(f"{self.site} refuses the key ({detail or status}); correct FREESOUND_API_KEY")
            is_down = "connect" in detail or "HTTP 5" in detail  # how the API says that its search is down
            if 400 <= status < 500 and status != 429 and not is_down:
                raise RefusedError(f"{self.site} refuses the search: {status} {detail}")
            failures = failures + 1 if status == 500 and "overloaded" not in detail else 0
            if failures and failures % FAILURES == 0 and self._get({"query": "rain", "page_size": 1})[0] == 200:
                raise BrokenError(f"{self.site} fails for this search")
            if attempt + 1 < ATTEMPTS:
                wait = 3600.0 if "/day" in detail else 60.0 if status == 429 else min(LONGEST_WAIT, 2.0**attempt)
                log.info("%s: %s %s; next attempt in %.0f s", self.site, status or "no answer", detail, wait)
                time.sleep(wait)
        raise KitError(f"{self.site} does not answer; run the same command later to continue")

    def _get(self, query: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Make one search; return its status (0: no answer) and its JSON content, {} for a page of HTML."""
        self._store.take_request(self._limits)
        url = f"{self.site}/apiv2/search/?{urlencode(query)}"
        request = Request(url, headers={"Authorization": f"Token {self._key}"})
        try:
            with build_opener(_AnyStatus).open(request, timeout=IDLE) as answer:
                status, text = answer.status, answer.read()
        except (HTTPException, OSError):
            return 0, {}
        try:
            content = json.loads(text)
        except ValueError:  # a page of HTML
            content = None
        return status, content if isinstance(content, dict) else {}


def read_access() -> tuple[str, str]:
    """Return the address and the key of the API. Raises KitError for a missing key, or another address."""
    site, key = os.environ.get("FREESOUND_API") or SITE, os.environ.get("FREESOUND_API_KEY", "").strip()
    if site != SITE and urlsplit(site).hostname not in ("127.0.0.1", "localhost"):
        raise KitError(f"FREESOUND_API: the key is sent to {SITE}, or to an address of this machine only")
    if not key.isalnum():
        raise KitError("no API key; get one at freesound.org/apiv2/apply, and set FREESOUND_API_KEY to its characters")
    return site, key
