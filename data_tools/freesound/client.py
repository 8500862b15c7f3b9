"""API client with retries.

For crawls: fetches search pages and files within the limits of requests, and retries until they arrive.

Errors and limits as of 2026: https://freesound.org/docs/api/overview.html. The API itself sends no Retry-After; a proxy
in front of it may.
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from pydantic import SecretStr

from data_tools.cli import about, printable
from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError, KitError
from data_tools.freesound.access import KEY, TOKEN, Token, is_local
from data_tools.freesound.filters import filter_in_parentheses, upload_filter
from data_tools.freesound.quota import MINUTE, Clock, Quota
from data_tools.freesound.sounds import FIELDS, PAGE_SIZE, Page, Sound, parse_page
from data_tools.freesound.windows import UNPROVEN_SPLITS, Window

if TYPE_CHECKING:
    from data_tools.freesound.http import Http

SEARCH_ATTEMPTS = 40  # with the waits below, five to six hours without an answer from the API
FILE_ATTEMPTS = 6
FOREIGN_ATTEMPTS = 6  # answers that are not from the API, before the address is considered wrong
FAILURES = 3  # server errors in a row before a search is considered their cause; twice as many for one sound
LONGEST_WAIT = 600.0  # seconds between two attempts
HOUR = 3600.0  # between attempts at the daily limit, which is a sliding window
_REDIRECTS = 3
_QUIET_ATTEMPTS, _QUIET_SECONDS = 2, 10.0  # failed attempts, and seconds of the API's time, before the user is informed

# Texts of status 400: a search that is down or starting, and a request that will never be valid.
_OUTAGE = re.compile(r"connect|HTTP 5\d\d|unhandled|timed? ?out", re.IGNORECASE)
_FINAL = re.compile(r"HTTP 4\d\d|Invalid filter|Malformed", re.IGNORECASE)
_ANY = Window(0, 2**32 - 1)  # all sounds
_SMALLEST = Window(0, 0)  # cannot be split: a server that is up can always answer so small a search

REQUEST_TOKEN = "request a new token as data_tools/FREESOUND.md describes"

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class NoPageError(KitError):
    """The server repeatedly fails for one search, but answers others: the search is too large, or a sound is broken."""


class PastEndError(KitError):
    """A page that does not exist, because the search has become shorter."""


class LostError(KitError):
    """An answer or a file that is refused or missing; another attempt would not help."""


class AgainError(KitError):
    """A missing answer, or an answer that another attempt may improve.

    Attributes:
        pause: Seconds to wait before any further request.
        kind: "server" for a status of 500 or more; "overloaded" if the search reports that it is overloaded; "foreign"
            for a page that is not the API's JSON; "" for all other reasons.
    """

    def __init__(self, why: str, pause: float = 0.0, kind: str = "") -> None:
        """Store the reason `why` as message, the seconds to pause before the next attempt, and the kind of failure."""
        super().__init__(why)
        self.pause, self.kind = pause, kind


class Response(NamedTuple):
    """An HTTP answer.

    Attributes:
        body: The received bytes; b"" if they were written to a file.
        length: Bytes of the received body.
        location: Target of a redirect.
        retry_after: Seconds to wait before the next request; 0 if the server states no time.
    """

    status: int
    body: bytes
    length: int
    location: str | None = None
    retry_after: float = 0.0


class Client:
    """A client of one site.

    Args:
        site: The API's address, such as https://freesound.org.
        key: API key, for searches.
        quota: Limits of requests per minute and day.
        transport: Sends the requests; tests replace it.
        clock: Source of the time; tests replace it.
        token: OAuth2 token, for uploaders' original files.
    """

    def __init__(
        self, site: str, key: SecretStr, quota: Quota, transport: "Http", clock: Clock, token: Token | None = None
    ) -> None:
        """Store the address, keys and limits for requests to the API, without making a request."""
        self.site, self._key, self._token = site, key, token
        self.quota, self._transport, self._clock = quota, transport, clock
        self.requests = 0
        self._renewing = asyncio.Lock()
        self._foreign: int | None = 0  # foreign answers before the first one from the API; None after it

    async def search(self, window: Window, user_filter: str | None = None, size: int = PAGE_SIZE) -> Page:
        """Return page `window.page` of the sounds uploaded in a time window, `size` per page, by rising upload time.

        user_filter: The user's filter, in Solr's syntax. It is put in parentheses, because an OR at its top level would
        make the window optional.

        Raises NoPageError if the server fails for this search only, PastEndError if the page does not exist, and
        DataError for an error that no later attempt can change.
        """
        url = self._search_url(upload_filter(window), user_filter, window.page, size)
        return await self._search_page(window, url, size)

    async def sounds_by_id(self, ids: Sequence[int], user_filter: str | None = None) -> dict[int, Sound | None]:
        """Search the sounds with the given ids; return a dict from id to sound, None for a sound that is not found.

        At most 150 ids (PAGE_SIZE) are allowed. An id for which the server fails has no key in the dict. Raises
        DataError for an error that no later attempt can change.
        """
        url = self._search_url(f"id:({' OR '.join(map(str, ids))})", user_filter, 1, len(ids))
        try:
            page = await self._search_page(_SMALLEST, url, len(ids))
        except NoPageError:
            if len(ids) == 1:
                return {}
            middle = len(ids) // 2
            first = await self.sounds_by_id(ids[:middle], user_filter)
            return first | await self.sounds_by_id(ids[middle:], user_filter)
        sounds: dict[int, Sound | None] = dict.fromkeys([] if None in page.sounds else ids)
        return sounds | {sound.id: sound for sound in page.sounds if sound}

    async def download_preview(self, url: str, into: Path, limit: int | None = None) -> int:
        """Download a sound's preview to the file `into`; return its size in bytes. limit: Maximum size.

        The request needs no key, and does not count against the API's limits.
        url: Absolute address, or path below the site's address. Raises LostError for a missing, refused or longer file.
        """
        return await self._download(url, into, limit, None)

    async def download_original(self, sound_id: int, into: Path, limit: int | None = None) -> int:
        """Download an original file to `into`, by an access token; return its size in bytes. limit: Maximum size.

        limit: Maximum bytes. Raises LostError.
        """
        return await self._download(f"/apiv2/sounds/{sound_id}/download/", into, limit, self._token)

    def _search_url(
        self, condition: str, user_filter: str | None, page: int, size: int, sort: str = "created_asc"
    ) -> str:
        """Return the URL of a search. condition: Filter of the search. user_filter: The user's additional filter."""
        both = " ".join([condition, *filter_in_parentheses(user_filter)])
        query = {"query": "", "filter": both, "sort": sort, "fields": FIELDS, "page": page, "page_size": size}
        return f"{self.site}/apiv2/search/?{urlencode(query)}"

    async def _search_page(self, window: Window, url: str, size: int) -> Page:
        """Request a page of search results until it arrives. Raises NoPageError if only this search keeps failing."""
        enough = FAILURES if size > 1 else 2 * FAILURES
        failures: list[AgainError] = []  # server errors in a row

        async def ask() -> Page:
            """Request the page once. Raises NoPageError if it has failed too often, but other searches work."""
            try:
                return await self._request_page(url, window.page)
            except AgainError as error:
                failures[:] = [*failures, error] if error.kind in ("server", "overloaded") else []
                is_enough = failures and len(failures) % enough == 0
                if is_enough and await self._fails_only_for(window, [failure.kind for failure in failures[-enough:]]):
                    raise NoPageError(f"{self.site} fails for this search, but not for others ({error})") from None
                raise

        return await self._retry(ask, SEARCH_ATTEMPTS, self._no_answer_error)

    async def _request_page(self, url: str, page: int) -> Page:
        """Make one request for a page of search results, and return it. Raises AgainError, PastEndError, DataError."""
        try:
            answer = await self._get_counted(url, {"Authorization": f"Token {self._key.get_secret_value()}"})
        except LostError as error:
            raise DataError(f"{self.site}: {error}; check the address") from None
        if answer.status == 404 and page > 1 and self._error_text(answer.body) is not None:
            raise PastEndError(f"the results of the search end before page {page}")
        if answer.status != 200:
            problem = self._error_of(answer, KEY)
            if isinstance(problem, AgainError) and problem.kind == "foreign" and self._foreign is not None:
                self._foreign += 1
                if self._foreign == FOREIGN_ATTEMPTS:
                    raise DataError(f"{self.site} does not answer like Freesound's API ({problem}); check the address")
            raise problem
        try:
            found = parse_page(answer.body)
        except DataError as error:
            raise AgainError(f"the server's answer is not a page of sounds ({error}); try again later") from None
        self._foreign = None
        return found

    async def _fails_only_for(self, window: Window, kinds: Sequence[str]) -> bool:
        """Return whether the server fails for this time window only. kinds: Kinds of the errors of the last attempts.

        If so, the caller should try smaller windows. If an attempt on a window of one second ended with an overloaded
        server (kind "overloaded"), the result is False, since so small a search cannot overload it. If all attempts
        ended like this, and the window was halved fewer than 8 times (UNPROVEN_SPLITS), the result is True. In all
        other cases, the function searches all sounds; it returns True if the server answers this search.
        """
        if set(kinds) == {"overloaded"} and window.splits < UNPROVEN_SPLITS:
            return bool(window.halves)
        if "overloaded" in kinds and not window.halves:
            return False  # one second cannot be too large a search, so all searches fail
        for sort in ("created_desc", "created_asc", "downloads_desc"):  # the first sound of one may be broken
            try:
                await self._request_page(self._search_url(upload_filter(_ANY), None, 1, 1, sort), 1)
            except AgainError:
                continue
            return True
        return False

    def _no_answer_error(self, why: str) -> DataError:
        """Return the error for an API that does not answer. why: The last failure."""
        return DataError(f"{self.site} does not answer ({why}); run the same command later to continue from here")

    async def _download(self, url: str, into: Path, limit: int | None, token: Token | None) -> int:
        """Download a file, in several attempts if necessary; return its number of bytes. limit: Maximum bytes."""

        async def ask() -> int:
            """Request the file once, and return its size; get a new access token if the old one was refused."""
            access = token.access if token else None
            answer, was_sent = await self._get_redirected(url, into, limit, access)
            if answer.status == 200:
                return answer.length
            refused = was_sent and answer.status in (401, 403) and self._error_text(answer.body) is not None
            if refused and token and token.file:
                await self._renew_token(token, access)
                raise AgainError("the access token had expired and was renewed")
            if refused or answer.status in (408, 429) or answer.status >= 500:
                raise self._error_of(answer, TOKEN)
            note = ", so the audio file of this sound no longer exists on it" if answer.status in (404, 410) else ""
            raise LostError(f"the server answered {answer.status}{note}")

        return await self._retry(ask, FILE_ATTEMPTS, lambda why: LostError(f"{why} ({FILE_ATTEMPTS} attempts)"))

    async def _get_redirected(
        self, url: str, into: Path, limit: int | None, access: SecretStr | None
    ) -> tuple[Response, bool]:
        """Request a URL and follow its redirects; return the final answer, and whether the last request had the token.

        Only the API's own host gets the token. Raises LostError for an address outside the site.
        """
        at = url if re.match(r"(\w+:)?//", url) else f"{self.site}/{url.lstrip('/')}"
        at = resolve_url(self.site, self.site, at)
        for _ in range(1 + _REDIRECTS):
            sends = access is not None and urlsplit(at)[:2] == urlsplit(self.site)[:2]
            headers = {"Authorization": f"Bearer {access.get_secret_value()}"} if access and sends else {}
            answer = await (self._get_counted if access else self._transport.get)(at, headers, into, limit)
            if answer.location is None:
                break
            at = resolve_url(self.site, at, answer.location)
        return answer, sends

    async def _renew_token(self, token: Token, refused: SecretStr | None) -> None:
        """Get a new access token after a refusal, unless another worker has got one. Raises DataError, AgainError."""
        async with self._renewing:
            if token.access != refused:
                return
            if token.is_renewed:
                raise DataError(f"{self.site} refuses even the renewed access token; {REQUEST_TOKEN}")
            form = {
                "client_id": token.client,
                "client_secret": self._key.get_secret_value(),
                "grant_type": "refresh_token",
                "refresh_token": token.refresh,
            }
            answer = await self._transport.post(f"{self.site}/apiv2/oauth2/access_token/", form)
            if answer.status in (408, 429) or answer.status >= 500:
                problem = f"the server answered {answer.status} to the request for a new access token"
                raise AgainError(problem, answer.retry_after)
            content = parse_json(answer.body, "the answer") if answer.status == 200 else None
            if not isinstance(content, dict):
                raise DataError(
                    f"{self.site} gives no new access token ({answer.status}); {REQUEST_TOKEN}, and write it to "
                    f"{token.file}"
                )
            token.renew(content)

    async def _get_counted(self, url: str, *asked: Any) -> Response:
        """Make a request when the API's limits allow it, and return the answer. asked: Arguments for Http.get."""
        request = await self.quota.take()
        self.requests += 1
        try:
            return await self._transport.get(url, *asked)
        finally:
            self.quota.mark_answered(request)

    async def _retry(
        self, ask: Callable[[], Awaitable[Result]], attempts: int, give_up: Callable[[str], Exception]
    ) -> Result:
        """Repeat the request `ask` with growing waits until it is answered; raise `give_up` after `attempts` failures.

        A pause that the API demands is no failure; DataError is raised after SEARCH_ATTEMPTS such pauses.
        """
        failed, pauses, began = 0, 0, self._clock.now()
        while True:
            try:
                return await ask()
            except AgainError as error:
                why, pause = str(error), error.pause
            if pause:
                pauses += 1
                self.quota.pause(pause)
            else:
                failed += 1
            if pauses == SEARCH_ATTEMPTS:
                raise self._no_answer_error(why)
            if failed == attempts:
                raise give_up(why)
            wait = pause or min(LONGEST_WAIT, 2.0**failed) * random.uniform(0.5, 1)
            lasts = self._clock.now() - began > self._clock.wall_seconds(_QUIET_SECONDS)
            if pause or failed > _QUIET_ATTEMPTS or lasts:
                log.info("%s: %s; next attempt in %s", self.site, why, about(wait))
            await self._clock.sleep(wait)

    def _error_of(self, answer: Response, secret: str) -> AgainError | DataError:
        """Return the exception for an HTTP error: AgainError if a retry may help, else DataError.

        secret: The secret that the request was made with, KEY or TOKEN.
        """
        words = self._error_text(answer.body)
        shown = f"the server answered {answer.status} {words or ''}".strip()
        if answer.status == 429:
            return self._throttling_error(words or "", answer.retry_after)
        if answer.status >= 500:
            return AgainError(shown, answer.retry_after, "overloaded" if "overloaded" in (words or "") else "server")
        if words is None:
            return AgainError(f"{shown}, with a page that is not from Freesound's API", answer.retry_after, "foreign")
        if answer.status == 408 or (answer.status == 400 and _OUTAGE.search(words) and not _FINAL.search(words)):
            return AgainError(shown, answer.retry_after)
        if answer.status in (401, 403):
            name = "token" if secret == TOKEN else "key"
            return DataError(f"{self.site} refuses the {name} ({words or answer.status}); correct {secret} or its file")
        return DataError(f"{self.site} refuses the request: {answer.status} {words}; check the address and the filter")

    def _throttling_error(self, words: str, pause: float) -> AgainError | DataError:
        """Return the exception for a 429 answer with the text `words`: AgainError, or DataError for a suspended key."""
        if "suspended" in words:
            return DataError(f"{self.site} has suspended this key ({words}); ask its administrators")
        if "/day" in words:
            return AgainError("too many requests today", pause or HOUR)
        return AgainError("too many requests", pause or MINUTE)

    def _error_text(self, body: bytes) -> str | None:
        """Return the error message in an answer of the API, on one line; None for a body that is not a JSON object.

        Such a body is from a proxy or another server. A key or token that the message repeats is replaced by "...".
        """
        try:
            content = parse_json(body, "the answer")
        except DataError:
            return None
        if not isinstance(content, dict):
            return None
        detail = str(content.get("detail", ""))
        for secret in (self._key, *([self._token.access] if self._token else [])):
            detail = detail.replace(secret.get_secret_value(), "...")
        return printable(" ".join(detail.split())[:200])


def resolve_url(site: str, base: str, url: str) -> str:
    """Return the absolute address of `url`, relative to `base`. Raises LostError if it does not belong to the site.

    An address belongs to the site if it has the site's scheme, and its host or a subdomain of its host. If the site is
    a test server on this machine, all ports of this machine belong to it. Files are requested from no other address.
    """
    try:
        address = urljoin(base, url)
        target, allowed = urlsplit(address), urlsplit(site)
    except ValueError:
        raise LostError(f"the server returned the address {url[:200]!a}, which is not valid") from None
    host = target.hostname or ""
    under = host == allowed.hostname or host.endswith(f".{allowed.hostname}") or (is_local(address) and is_local(site))
    if not under or target.scheme != allowed.scheme:
        raise LostError(
            f"the server returned the address {address[:200]!a}, which is not requested, since it does not belong to "
            f"{site}"
        )
    return address
