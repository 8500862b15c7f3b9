"""The API as a crawl needs it: a page of a search, a file; asked for again until it comes, within the quota.

Errors and limits as of 2026: https://freesound.org/docs/api/overview.html. The API sends no Retry-After.
"""

import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError
from data_tools.freesound.credentials import KEY, TOKEN, Secret
from data_tools.freesound.quota import DAY, MINUTE, Clock, Quota
from data_tools.freesound.sounds import FIELDS, PAGE_SIZE, MalformedError, Page, format_time, parse_page
from data_tools.freesound.transport import BrokenError, Response, Transport, UnfitError, is_public
from data_tools.freesound.windows import Window, too_much

SITE = "https://freesound.org"
SEARCH_ATTEMPTS = 40  # with the waits below, five to six hours of an API that does not answer
FILE_ATTEMPTS = 6
OVERLOADS = 3  # in a row, until the search is taken to be too large
LONGEST_WAIT = 600.0  # seconds between two attempts
_REDIRECTS = 3
_QUIET_ATTEMPTS, _QUIET_SECONDS = 2, 10.0  # that fail, and of the API's time, before the user hears of it

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Get = Callable[[str, Mapping[str, str], Path | None, int | None], Awaitable[Response]]


class OverloadedError(Exception):
    """The search is too much for the API, again and again, and can be split."""


class PastEndError(Exception):
    """There is no such page: the search has become shorter."""


class LostError(Exception):
    """A file that does not come: the text says why."""


class _AgainError(Exception):
    """An answer that may be better next time. pause: seconds for which nothing at all may be asked."""

    def __init__(self, why: str, pause: float = 0.0, overloaded: bool = False) -> None:
        super().__init__(why)
        self.pause, self.overloaded = pause, overloaded


class Client:
    """site: where the API is, such as https://freesound.org. key, token: of the API, and of OAuth2 for originals."""

    def __init__(
        self, site: str, key: Secret, quota: Quota, transport: Transport, clock: Clock, token: Secret | None = None
    ) -> None:
        self.site = site.rstrip("/")
        self._key, self._token = key, token
        self.quota = quota
        self._transport, self._clock = transport, clock
        self.requests = 0

    async def search(self, window: Window, narrowed: str | None = None) -> Page:
        """The window's next page, sounds by rising upload time. narrowed: a further filter, in Solr's syntax.

        Raises OverloadedError, PastEndError; DataError for what asking again cannot mend.
        """
        within = f"created:[{format_time(window.first * 1000)} TO {format_time(window.last * 1000 + 999)}]"
        parameters = {
            "query": "",
            "filter": f"{within} {narrowed}" if narrowed else within,
            "sort": "created_asc",
            "fields": FIELDS,
            "page": window.page,
            "page_size": PAGE_SIZE,
        }
        url = f"{self.site}/apiv2/search/?{urlencode(parameters)}"
        overloads = 0

        async def ask() -> Page:
            nonlocal overloads
            try:
                answer = await self._counted(url, {"Authorization": f"Token {self._key.reveal()}"})
            except UnfitError as error:
                raise DataError(f"{self.site}: {error}; check the address") from None
            if answer.status == 404 and window.page > 1:
                raise PastEndError
            try:
                self._judge(answer, KEY)
                return parse_page(answer.body)
            except MalformedError as error:
                raise _AgainError(f"its answer cannot be read: {error}") from None
            except _AgainError as error:
                overloads = overloads + 1 if error.overloaded else 0
                if overloads == OVERLOADS and too_much(window):
                    raise OverloadedError from None
                raise

        def give_up(why: str) -> Exception:
            return DataError(f"{self.site} gives no answer ({why}); run the same command later: it goes on from here")

        return await self._until_it_comes(ask, SEARCH_ATTEMPTS, give_up)

    async def preview(self, url: str, into: Path, limit: int | None = None) -> int:
        """Save a preview; returns its bytes. It counts as no request. Raises LostError.

        url: absolute, or what follows the site. limit: its most bytes. Nothing is asked of other hosts than the API's
        own and those under it, whatever url and redirects say.
        """
        absolute = _joined(self.site, url) if re.match(r"(\w+:)?//", url) else f"{self.site}/{url.lstrip('/')}"
        return await self._file(
            absolute, into, limit, {"Authorization": f"Token {self._key.reveal()}"}, self._transport.get, KEY
        )

    async def original(self, sound: int, into: Path, limit: int | None = None) -> int:
        """Save the uploader's file, which needs an access token; returns its bytes. limit: as many at most. Raises
        LostError. Another host that it is moved to is asked without the token, and only over https."""
        assert self._token is not None
        headers = {"Authorization": f"Bearer {self._token.reveal()}"}
        url = f"{self.site}/apiv2/sounds/{sound}/download/"
        return await self._file(url, into, limit, headers, self._counted, TOKEN)

    async def _file(
        self, url: str, into: Path, limit: int | None, authorization: Mapping[str, str], get: Get, secret: str
    ) -> int:
        async def ask() -> int:
            at = url
            for _ in range(1 + _REDIRECTS):
                ours = self._is_ours(at)
                if not ours and (secret == KEY or not _is_public(at)):
                    problem = f"not an address of {self.site}" if secret == KEY else "not a public address over https"
                    raise LostError(f"{at[:200]!a} is {problem}")
                try:
                    answer = await get(at, authorization if ours else {}, into, limit)
                except UnfitError as error:
                    raise LostError(str(error)) from None
                if answer.location is None:
                    break
                at = _joined(at, answer.location)
            if answer.status in (404, 410):
                raise LostError(f"the answer was {answer.status}: the file is not there any more")
            token_refused = answer.status in (401, 403) and secret == TOKEN and self._is_ours(at)
            if answer.status not in (200, 429) and answer.status < 500 and not token_refused:
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
        """Ask, and ask again after longer and longer waits. A pause the API demands is no failed attempt."""
        failed, began = 0, self._clock.now()
        while True:
            try:
                return await ask()
            except BrokenError as error:
                why = f"no connection, or a broken one: {error}"
            except _AgainError as error:
                why = str(error)
                if error.pause:
                    log.info("%s: %s; goes on in %.0f minutes", self.site, why, error.pause / 60)
                    self.quota.pause(error.pause)
                    await self._clock.sleep(error.pause)
                    continue
            failed += 1
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
        detail = self._detail(answer.body)
        if answer.status == 429:
            if "suspended" in detail:
                raise DataError(f"{self.site} has suspended this key ({detail}); ask its administrators")
            day = "/day" in detail
            raise _AgainError("too many requests today" if day else "too many requests", DAY if day else MINUTE)
        if answer.status >= 500:
            raise _AgainError(f"the answer was {answer.status} {detail}", overloaded="overloaded" in detail)
        if answer.status in (401, 403):
            what = "token" if secret == TOKEN else "key"
            raise DataError(f"{self.site} refuses the {what} ({detail or answer.status}); correct {secret} or its file")
        raise DataError(f"{self.site} refuses the request: {answer.status} {detail}; check the address and the filter")

    def _detail(self, body: bytes) -> str:
        """The API's own words, on one line, without the key should they quote it."""
        try:
            content = parse_json(body, "the answer")
        except DataError:
            return ""
        detail = str(content.get("detail", "")) if isinstance(content, dict) else ""
        for secret in (self._key, self._token):
            detail = detail.replace(secret.reveal(), "...") if secret else detail
        return " ".join(filter(str.isprintable, " ".join(detail.split())[:200].split(" ")))

    def _is_ours(self, url: str) -> bool:
        """Whether the key may be sent there: the API's own host or one under it, not less encrypted than the API."""
        try:
            there, ours = urlsplit(url), urlsplit(self.site)
        except ValueError:
            return False
        same = there.netloc == ours.netloc or (there.hostname or "").endswith(f".{ours.hostname}")
        return same and there.scheme == ours.scheme


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
