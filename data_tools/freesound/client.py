"""The API as a crawl needs it: a page of a search, a file; asked for again until it comes, within the quota.

Errors and limits as of 2026: https://freesound.org/docs/api/overview.html. The API itself sends no Retry-After; a proxy
in front of it may.
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError
from data_tools.freesound.credentials import KEY, TOKEN, Secret, Token
from data_tools.freesound.quota import MINUTE, Clock, Quota
from data_tools.freesound.sounds import FIELDS, PAGE_SIZE, MalformedError, Page, Sound, format_time, parse_page
from data_tools.freesound.transport import BrokenError, Response, Transport, UnfitError, is_local, is_public
from data_tools.freesound.windows import SPLITS, Window

SITE = "https://freesound.org"
SEARCH_ATTEMPTS = 40  # with the waits below, five to six hours of an API that does not answer
FILE_ATTEMPTS = 6
FOREIGN_ATTEMPTS = 6  # answers that are not the API's, until the address is taken to be wrong
FAILURES = 3  # of the server in a row, until one search is taken to be what it fails at; twice as many for one sound
LONGEST_WAIT = 600.0  # seconds between two attempts
HOUR = 3600.0  # until the day's limit is tried again: its window slides
_REDIRECTS = 3
_QUIET_ATTEMPTS, _QUIET_SECONDS = 2, 10.0  # that fail, and of the API's time, before the user hears of it

# Texts of a 400: of a search that is down or starting, and of a request that will never be right.
_OUTAGE = re.compile(r"connect|HTTP 5\d\d|unhandled|timed? ?out", re.IGNORECASE)
_FINAL = re.compile(r"HTTP 4\d\d|Invalid filter|Malformed", re.IGNORECASE)
_ANY = Window(0, 2**32 - 1)  # all sounds
_SMALLEST = Window(0, 0)  # cannot be split: a search so small is never too much for a server that is up

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Get = Callable[[str, Mapping[str, str], Path | None, int | None], Awaitable[Response]]


class NoPageError(Exception):
    """The server fails at this search again and again, and answers others: it is too large, or a sound is broken."""


class PastEndError(Exception):
    """There is no such page: the search has become shorter."""


class LostError(Exception):
    """A file that does not come: the text says why."""


class _AgainError(Exception):
    """An answer that may be better next time.

    pause: seconds without any request. of_server: a status of 500 or more.

    overloaded: the search names itself overloaded. foreign: a page of a proxy or of another server, not the API's JSON.
    """

    def __init__(
        self, why: str, pause: float = 0.0, of_server: bool = False, overloaded: bool = False, foreign: bool = False
    ) -> None:
        super().__init__(why)
        self.pause, self.of_server, self.overloaded, self.foreign = pause, of_server, overloaded, foreign


class Client:
    """site: where the API is, such as https://freesound.org. key, token: of the API, and of OAuth2 for originals."""

    def __init__(
        self, site: str, key: Secret, quota: Quota, transport: Transport, clock: Clock, token: Token | None = None
    ) -> None:
        self.site = site.rstrip("/")
        self._key, self._token = key, token
        self.quota = quota
        self._transport, self._clock = transport, clock
        self.requests = 0
        self._renewing = asyncio.Lock()
        self._foreign, self._has_answered = 0, False  # answers that are not the API's, before its first one
        self._fresh: Mapping[str, str] | None = None  # the header of the last token that was renewed

    async def search(self, window: Window, narrowed: str | None = None, size: int = PAGE_SIZE) -> Page:
        """Return the window's next page of `size` sounds, by rising upload time.

        narrowed: the user's filter, in Solr's syntax. It gets parentheses: an OR at its top level would make the window
        optional.

        Raises NoPageError, PastEndError, and DataError for an error that no later attempt can change.
        """
        url = self._address(" ".join([_within(window), *grouped(narrowed)]), window.page, size)
        enough = FAILURES if size > 1 else 2 * FAILURES
        ask = self._asking(url, window.page, window, enough)
        return await self._until_it_comes(ask, SEARCH_ATTEMPTS, self._give_up)

    def _asking(self, url: str, number: int, window: Window, enough: int) -> Callable[[], Awaitable[Page]]:
        """Return a function that asks for a page once. It raises NoPageError after `enough` failures in a row that only
        this search has."""
        failures: list[_AgainError] = []  # of the server, one after the other

        async def ask() -> Page:
            try:
                return await self._page(url, number)
            except _AgainError as error:
                failures[:] = [*failures, error] if error.of_server else []
                if failures and len(failures) % enough == 0 and await self._fails_at(window, failures[-enough:]):
                    raise NoPageError from None
                raise

        return ask

    async def sounds(self, ids: Sequence[int], narrowed: str | None = None) -> tuple[list[Sound], list[int]]:
        """Return the sounds of these ids (PAGE_SIZE at most) that the search finds, and the ids that it does not find.

        An id at which the server fails is in neither list. Raises DataError.
        """
        url = self._address(" ".join([f"id:({' OR '.join(map(str, ids))})", *grouped(narrowed)]), 1, PAGE_SIZE)
        ask = self._asking(url, 1, _SMALLEST, FAILURES if len(ids) > 1 else 2 * FAILURES)
        try:
            page = await self._until_it_comes(ask, SEARCH_ATTEMPTS, self._give_up)
        except NoPageError:
            if len(ids) == 1:
                return [], []
            halves = [await self.sounds(part, narrowed) for part in (ids[: len(ids) // 2], ids[len(ids) // 2 :])]
            return halves[0][0] + halves[1][0], halves[0][1] + halves[1][1]
        found = [sound for sound in page.sounds if sound]
        absent = set(ids) - {sound.id for sound in found}
        return found, [] if None in page.sounds else sorted(absent)

    def _address(self, filter_: str, page: int, size: int, sort: str = "created_asc") -> str:
        parameters = {"query": "", "filter": filter_, "sort": sort, "fields": FIELDS}
        return f"{self.site}/apiv2/search/?{urlencode(parameters | {'page': page, 'page_size': size})}"

    async def _page(self, url: str, page: int) -> Page:
        """One request. Raises _AgainError, PastEndError, DataError."""
        try:
            answer = await self._counted(url, {"Authorization": f"Token {self._key.reveal()}"})
        except UnfitError as error:
            raise DataError(f"{self.site}: {error}; check the address") from None
        if answer.status == 404 and page > 1 and self._detail(answer.body) is not None:
            raise PastEndError
        try:
            self._judge(answer, KEY)
            found = parse_page(answer.body)
        except MalformedError as error:
            raise _AgainError(f"its answer cannot be read: {error}") from None
        except _AgainError as error:
            self._foreign += error.foreign and not self._has_answered
            if self._foreign == FOREIGN_ATTEMPTS:
                raise DataError(f"{self.site} does not answer as the API does ({error}); check the address") from None
            raise
        self._has_answered = True
        return found

    async def _fails_at(self, window: Window, failures: Sequence[_AgainError]) -> bool:
        """Return whether the server fails at this window only.

        The first SPLITS halvings of an overloaded window need no proof; after them the API must answer another search.
        """
        if all(failure.overloaded for failure in failures) and window.splits < SPLITS:
            return bool(window.halves)
        if not window.halves and any(failure.overloaded for failure in failures):
            return False  # a second is not too much: all searches are
        for sort in ("created_desc", "created_asc", "downloads_desc"):  # the first sound of each may itself be broken
            try:
                await self._page(self._address(_within(_ANY), 1, 1, sort), 1)
            except (_AgainError, BrokenError):
                continue
            return True
        return False

    def _give_up(self, why: str) -> Exception:
        return DataError(f"{self.site} gives no answer ({why}); run the same command later: it goes on from here")

    async def preview(self, url: str, into: Path, limit: int | None = None) -> int:
        """Save a preview; returns its bytes. It needs no key and counts as no request. Raises LostError.

        url: absolute, or what follows the site. limit: its most bytes. Nothing is asked of other hosts than the API's
        own and those under it, whatever url and redirects say.
        """
        absolute = _joined(self.site, url) if re.match(r"(\w+:)?//", url) else f"{self.site}/{url.lstrip('/')}"
        return await self._file(absolute, into, limit, dict, self._transport.get, KEY)

    async def original(self, sound: int, into: Path, limit: int | None = None) -> int:
        """Save the uploader's file, which needs an access token; returns its bytes. limit: as many at most. Raises
        LostError. Another host that it is moved to is asked without the token, and only over https."""
        url = f"{self.site}/apiv2/sounds/{sound}/download/"
        return await self._file(url, into, limit, self._bearer, self._counted, TOKEN)

    def _bearer(self) -> Mapping[str, str]:
        assert self._token is not None
        return {"Authorization": f"Bearer {self._token.access.reveal()}"}

    async def _renew(self, refused: Mapping[str, str]) -> None:
        """Get a new access token after one was refused, unless another worker has. Raises DataError, _AgainError,
        BrokenError."""
        assert self._token is not None
        async with self._renewing:
            if self._bearer() != refused:
                return
            if refused == self._fresh:
                raise DataError(f"{self.site} refuses the renewed access token too; ask for one by hand again")
            form = {
                "client_id": self._token.client,
                "client_secret": self._key.reveal(),
                "grant_type": "refresh_token",
                "refresh_token": self._token.refresh.reveal(),
            }
            answer = await self._transport.post(f"{self.site}/apiv2/oauth2/access_token/", form)
            if answer.status in (408, 429) or answer.status >= 500:
                raise _AgainError(f"the answer for a new access token was {answer.status}", answer.retry_after)
            content = parse_json(answer.body, "the answer") if answer.status == 200 else None
            if not isinstance(content, dict):
                problem = f"{self.site} gives no new access token ({answer.status}); ask for one by hand again"
                raise DataError(f"{problem}, and write it to {self._token.file}")
            self._token.renew(content)
            self._fresh = self._bearer()

    async def _file(
        self, url: str, into: Path, limit: int | None, headers: Callable[[], Mapping[str, str]], get: Get, secret: str
    ) -> int:
        async def ask() -> int:
            at, authorization = url, headers()
            for _ in range(1 + _REDIRECTS):
                ours = self._is_ours(at)
                if not ours and (secret == KEY or not _is_public(at)):
                    problem = f"not an address of {self.site}" if secret == KEY else "not a public address over https"
                    raise LostError(f"{at[:200]!a} is {problem}")
                try:
                    exactly = urlsplit(at)[:2] == urlsplit(self.site)[:2]  # a token goes to no host under it either
                    answer = await get(at, authorization if exactly else {}, into, limit)
                except UnfitError as error:
                    raise LostError(str(error)) from None
                if answer.location is None:
                    break
                at = _joined(at, answer.location)
            if answer.status in (404, 410):
                raise LostError(f"the answer was {answer.status}: the file is not there any more")
            of_api = secret == TOKEN and self._is_ours(at) and self._detail(answer.body) is not None
            token_refused = answer.status in (401, 403) and of_api
            if token_refused and self._token and self._token.file:
                await self._renew(authorization)
                raise _AgainError("the access token had expired")
            if answer.status not in (200, 408, 429) and answer.status < 500 and not token_refused:
                raise LostError(f"the answer was {answer.status}")
            self._judge(answer, secret)
            return answer.length

        return await self._until_it_comes(ask, FILE_ATTEMPTS, lambda why: LostError(f"{why}, {FILE_ATTEMPTS} times"))

    async def _counted(
        self, url: str, headers: Mapping[str, str], into: Path | None = None, limit: int | None = None
    ) -> Response:
        request = await self.quota.take()
        self.requests += 1
        try:
            return await self._transport.get(url, headers, into, limit)
        finally:
            self.quota.answered(request)

    async def _until_it_comes(
        self, ask: Callable[[], Awaitable[Result]], attempts: int, give_up: Callable[[str], Exception]
    ) -> Result:
        """Ask, and ask again after longer and longer waits. Pauses that the API demands are counted by themselves."""
        failed, pauses, began = 0, 0, self._clock.now()
        while True:
            try:
                return await ask()
            except BrokenError as error:
                why = f"no connection, or a broken one: {error}"
            except _AgainError as error:
                why = str(error)
                if error.pause and (pauses := pauses + 1) < SEARCH_ATTEMPTS:
                    log.info("%s: %s; goes on in %.0f minutes", self.site, why, error.pause / 60)
                    self.quota.pause(error.pause)
                    await self._clock.sleep(error.pause)
                    continue
            failed += 1
            if pauses == SEARCH_ATTEMPTS:
                raise self._give_up(why)
            if failed == attempts:
                raise give_up(why)
            wait = min(LONGEST_WAIT, 2.0**failed) * random.uniform(0.5, 1)
            if failed > _QUIET_ATTEMPTS or self._clock.now() - began > self._clock.wall(_QUIET_SECONDS):
                log.info("%s: %s; asks again in %.0f seconds", self.site, why, wait)
            await self._clock.sleep(wait)

    def _judge(self, answer: Response, secret: str) -> None:
        """Raises _AgainError for what may be better next time, DataError for what will not."""
        if answer.status == 200:
            return
        words = self._detail(answer.body)
        detail = words or ""
        shown = f"the answer was {answer.status} {detail}".strip()
        if answer.status == 429:
            if "suspended" in detail:
                raise DataError(f"{self.site} has suspended this key ({detail}); ask its administrators")
            day = "/day" in detail
            pause = answer.retry_after or (HOUR if day else MINUTE)
            raise _AgainError("too many requests today" if day else "too many requests", pause)
        if answer.status >= 500:
            raise _AgainError(shown, answer.retry_after, of_server=True, overloaded="overloaded" in detail)
        if words is None:
            raise _AgainError(f"{shown}, not of the API", answer.retry_after, foreign=True)
        if answer.status == 408 or (answer.status == 400 and _OUTAGE.search(detail) and not _FINAL.search(detail)):
            raise _AgainError(shown, answer.retry_after)
        if answer.status in (401, 403):
            what = "token" if secret == TOKEN else "key"
            raise DataError(f"{self.site} refuses the {what} ({detail or answer.status}); correct {secret} or its file")
        raise DataError(f"{self.site} refuses the request: {answer.status} {detail}; check the address and the filter")

    def _detail(self, body: bytes) -> str | None:
        """The API's own words, on one line, without the key should they quote it; None for a body that is no object of
        JSON: it comes from a proxy, or from another server."""
        try:
            content = parse_json(body, "the answer")
        except DataError:
            return None
        if not isinstance(content, dict):
            return None
        detail = str(content.get("detail", ""))
        for secret in (self._key, self._token.access if self._token else None):
            detail = detail.replace(secret.reveal(), "...") if secret else detail
        return " ".join(filter(str.isprintable, " ".join(detail.split())[:200].split(" ")))

    def _is_ours(self, url: str) -> bool:
        """Whether an address is the API's own host or one under it, and not less encrypted; this machine's for a
        sandbox."""
        try:
            there, ours = urlsplit(url), urlsplit(self.site)
            same = there.netloc == ours.netloc or (there.hostname or "").endswith(f".{ours.hostname}")
            return (same or (is_local(url) and is_local(self.site))) and there.scheme == ours.scheme
        except ValueError:
            return False


def grouped(narrowed: str | None) -> list[str]:
    """Return a filter in parentheses, or no filter. One that starts with an exclusion gets all sounds to exclude from,
    which Solr adds at the top level only."""
    if not narrowed:
        return []
    excludes = re.match(r"\s*(?:NOT\s|[-!])", narrowed) and not re.search(r"\bOR\b|\|\|", narrowed)
    return [f"(*:* {narrowed})" if excludes else f"({narrowed})"]


def _within(window: Window) -> str:
    return f"created:[{format_time(window.first * 1000)} TO {format_time(window.last * 1000 + 999)}]"


def _is_public(url: str) -> bool:
    """Whether an address is encrypted and names a host, or a public number; what a name stands for is seen later."""
    try:
        there = urlsplit(url)
        host = there.hostname or ""
    except ValueError:
        return False
    try:
        return there.scheme == "https" and is_public(host)
    except ValueError:  # a name
        return there.scheme == "https" and bool(host)


def _joined(base: str, url: str) -> str:
    """Where an address leads from base. Raises LostError for what is not valid."""
    try:
        return urljoin(base, url)
    except ValueError:
        raise LostError(f"{url[:200]!a} is not a valid address") from None
